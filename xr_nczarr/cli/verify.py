"""``nczarr verify``."""

from __future__ import annotations

import argparse

from xr_nczarr.cli.arguments import add_json, add_target, open_options, show

HELP = "read every chunk and compare all documents; the exit code is 1 when there are errors"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_target(parser)
    add_json(parser)
    parser.add_argument(
        "--sample", type=int, metavar="N", help="read at most N chunks of each array, at random"
    )


def run(parsed: argparse.Namespace) -> int:
    """Verify the store."""
    from xr_nczarr.tools.verifying import verify

    result = verify(parsed.target, sample=parsed.sample, **open_options(parsed))
    show(result, parsed.json)
    return 0 if result.whole else 1
