"""The ``nczarr`` command: `main`, and a module for each subcommand."""
