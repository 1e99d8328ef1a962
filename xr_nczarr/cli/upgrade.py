"""``nczarr upgrade``."""

from __future__ import annotations

import argparse

from xr_nczarr.cli.arguments import add_json, add_storage_options, show

HELP = "spell the annotations of a store in another dialect, in place; chunks stay as they are"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("target", metavar="STORE", help="a path or URL")
    parser.add_argument(
        "--dialect",
        default="nczarr",
        help="nczarr (default), universal, zarr, or a layout such as nczarr-4.8.1",
    )
    add_storage_options(parser)
    add_json(parser)


def run(parsed: argparse.Namespace) -> int:
    """Upgrade the store."""
    from xr_nczarr.tools.metadata import upgrade

    options = dict(parsed.storage_option)
    show(upgrade(parsed.target, parsed.dialect, storage_options=options), parsed.json)
    return 0
