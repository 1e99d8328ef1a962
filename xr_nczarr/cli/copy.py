"""``nczarr copy``."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from xr_nczarr.cli.arguments import add_json, add_storage_options, show

HELP = "copy what xarray opens into a new store; run again, it completes what was interrupted"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    parser.add_argument("source", metavar="SOURCE", help="a store, a reference set or a file")
    parser.add_argument("target", metavar="TARGET", help="path or URL of the new store")
    parser.add_argument("--engine", help="of xarray, for a source that is no store")
    parser.add_argument("--zarr-format", default="2", choices=("1", "2", "3", "3-draft"))
    parser.add_argument("--dialect", default="nczarr", help="nczarr (default), zarr, universal, …")
    parser.add_argument(
        "--chunks", type=_lengths, metavar="DIM=N,…", help="chunk lengths by dimension"
    )
    parser.add_argument(
        "--codecs", type=_codecs, metavar="JSON", help="list of numcodecs configurations"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace a store that is there")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    add_storage_options(parser)
    add_storage_options(parser, "target")
    add_json(parser)


def run(parsed: argparse.Namespace) -> int:
    """Copy."""
    from xr_nczarr.tools.copying import copy

    result = copy(
        parsed.source,
        parsed.target,
        engine=parsed.engine,
        zarr_format=parsed.zarr_format,
        dialect=parsed.dialect,
        chunks=parsed.chunks,
        codecs=parsed.codecs,
        storage_options=dict(parsed.storage_option),
        target_options=dict(parsed.target_option),
        overwrite=parsed.overwrite,
        progress=not parsed.quiet and sys.stderr.isatty(),
    )
    show(result, parsed.json)
    return 0


def _lengths(text: str) -> dict[str, int]:
    """Read ``time=10,lat=180``."""
    return {name: int(size) for name, _, size in (part.partition("=") for part in text.split(","))}


def _codecs(text: str) -> list[dict[str, Any]]:
    codecs = json.loads(text)
    if not isinstance(codecs, list) or not all(isinstance(each, dict) for each in codecs):
        raise ValueError("expected a list of objects")
    return codecs
