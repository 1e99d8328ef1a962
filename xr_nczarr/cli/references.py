"""``nczarr references``."""

from __future__ import annotations

import argparse

from xr_nczarr.cli.arguments import add_storage_options

HELP = "write the reference set of a store: JSON, or parquet if the target ends in .parq"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("source", metavar="STORE", help="a path or URL of a store, or of a set")
    parser.add_argument("target", metavar="TARGET", help="the file or directory to write")
    parser.add_argument(
        "--inline-below",
        type=int,
        default=0,
        metavar="BYTES",
        help="chunks of fewer bytes lie in the set itself",
    )
    add_storage_options(parser)


def run(parsed: argparse.Namespace) -> int:
    """Write the set."""
    from xr_nczarr.references import write

    options = dict(parsed.storage_option)
    write(parsed.source, parsed.target, inline_below=parsed.inline_below, storage_options=options)
    return 0
