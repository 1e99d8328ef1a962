"""``nczarr info``: what is in a store, and which of its chunks are there."""

from __future__ import annotations

import argparse

from xr_nczarr.cli.arguments import add_json, add_target, open_options, show

HELP = "tell what is in a store: groups, dimensions, variables, chunks, codecs, sizes"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_target(parser)
    add_json(parser)
    parser.add_argument(
        "--metadata", action="store_true", help="do not list the store to count its chunks"
    )


def run(parsed: argparse.Namespace) -> int:
    """Print it."""
    from xr_nczarr.tools.overview import info, open_hierarchy

    look = open_hierarchy if parsed.metadata else info
    show(look(parsed.target, **open_options(parsed)), parsed.json)
    return 0
