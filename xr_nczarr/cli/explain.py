"""``nczarr explain``: what reading a selection takes."""

from __future__ import annotations

import argparse

from xr_nczarr.cli.arguments import add_json, add_target, open_options, show

HELP = "tell the requests, bytes and chunks that reading a selection takes"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add_target(parser)
    add_json(parser)
    parser.add_argument("--select", default="", metavar="DIM=POSITIONS,...", help="time=0:10,lat=3")
    parser.add_argument("-v", dest="variables", metavar="VAR,...", help="of these variables only")


def run(parsed: argparse.Namespace) -> int:
    """Print it."""
    from xr_nczarr.tools.explain import explain, selection_of

    variables = parsed.variables.split(",") if parsed.variables else None
    selection = selection_of(parsed.select)
    options = open_options(parsed)
    show(explain(parsed.target, selection, variables=variables, **options), parsed.json)
    return 0
