"""The ``nczarr`` command: `main`, its subcommands and the arguments that they share."""
