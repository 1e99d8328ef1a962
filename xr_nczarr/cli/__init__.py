"""Implement the ``nczarr`` command and its subcommands. The entry point is `main`."""
