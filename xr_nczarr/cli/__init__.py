"""Implement the ``nczarr`` command, whose function is `main`, and its subcommands."""
