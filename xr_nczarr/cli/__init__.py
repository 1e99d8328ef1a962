"""Implement the ``nczarr`` command, whose entry point is `main`, and its subcommands."""
