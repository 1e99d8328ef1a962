"""The ``nczarr`` command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from xr_nczarr.errors import NczarrError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and give its exit code: 0 when it worked, 1 with one line when not."""
    parser = argparse.ArgumentParser(
        prog="nczarr", description="Look at and work on NCZarr and Zarr stores."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("demo", help="write a small store, open it with xarray and compute a mean")
    parser.parse_args(arguments)
    from xr_nczarr.cli.demo import demo

    try:
        demo()
    except NczarrError as error:
        print(f"nczarr: {error}", file=sys.stderr)
        return 1
    return 0
