"""``nczarr dump``: a store as CDL."""

from __future__ import annotations

import argparse
import sys

from xr_nczarr.cli.arguments import add_target, open_options

HELP = "print a store as CDL, as ncdump does; ncgen makes the same dataset of it"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments, which are spelled as those of ncdump."""
    add_target(parser)
    parser.add_argument("-h", dest="header", action="store_true", help="no values")
    parser.add_argument(
        "-v", dest="variables", type=_names, metavar="VAR,...", help="values of these only"
    )
    parser.add_argument(
        "-g", dest="groups", type=_names, metavar="GROUP,...", help="values in these only"
    )
    parser.add_argument("-n", dest="name", help="name of the dataset")
    parser.add_argument("--help", action="help", help="show this help")


def run(parsed: argparse.Namespace) -> int:
    """Print the store; 1 when a variable had to be left out."""
    from xr_nczarr.tools.cdl import dump

    cdl = dump(
        parsed.target,
        header=parsed.header,
        variables=parsed.variables,
        groups=parsed.groups,
        name=parsed.name,
        **open_options(parsed),
    )
    sys.stdout.writelines(cdl)
    return 1 if cdl.left_out else 0


def _names(text: str) -> list[str]:
    return text.split(",")
