"""``nczarr consolidate``."""

from __future__ import annotations

import argparse

from xr_nczarr.cli.arguments import add_json, add_storage_options, show

HELP = "write the one document that holds all metadata of a store"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("target", metavar="STORE", help="a path or URL")
    add_storage_options(parser)
    add_json(parser)


def run(parsed: argparse.Namespace) -> int:
    """Consolidate the store."""
    from xr_nczarr.tools.metadata import consolidate

    show(consolidate(parsed.target, storage_options=dict(parsed.storage_option)), parsed.json)
    return 0
