"""Arguments that subcommands share, and how a result is printed."""

from __future__ import annotations

import argparse
import json
from typing import Any, Protocol


class UsageError(Exception):
    """What the command was asked cannot be done, whatever the store."""


class Result(Protocol):
    """What a function of `xr_nczarr.tools` gives."""

    def as_dict(self) -> dict[str, Any]:
        """Give it as values of JSON."""


def add_target(parser: argparse.ArgumentParser, name: str = "target") -> None:
    """Add the store to open, and how to open it."""
    parser.add_argument(name, metavar=name.upper(), help="a path or URL, as the engine takes it")
    add_storage_options(parser)
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        type=_pair,
        metavar="NAME=VALUE",
        help="any other option of the engine, such as consolidated=false or group=/model",
    )


def add_storage_options(parser: argparse.ArgumentParser, name: str = "storage") -> None:
    """Add the option ``--storage-option``, or that of another `name`."""
    parser.add_argument(
        f"--{name}-option",
        action="append",
        default=[],
        type=_pair,
        metavar="NAME=VALUE",
        help="for the filesystem, as fsspec knows it; the value as JSON, or else as text",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--json``."""
    parser.add_argument("--json", action="store_true", help="print JSON, for a machine to read")


def open_options(parsed: argparse.Namespace) -> dict[str, Any]:
    """Give what `add_target` added, as keywords of the functions that open.

    Raises
    ------
    UsageError
        For an option or a value that there is not.
    """
    from xr_nczarr.backend.options import OPEN_OPTIONS, OpenOptions

    options = dict(parsed.option)
    unknown = sorted(options.keys() - set(OPEN_OPTIONS))
    if unknown:
        raise UsageError(f"there is no option {', '.join(unknown)}; see {', '.join(OPEN_OPTIONS)}")
    if parsed.storage_option:
        options["storage_options"] = dict(parsed.storage_option)
    try:
        OpenOptions(**options)
    except ValueError as error:
        raise UsageError(str(error)) from error
    return options


def show(result: Result, as_json: bool) -> None:
    """Print a result as text or as JSON."""
    print(json.dumps(result.as_dict(), indent=2) if as_json else result)


def _pair(text: str) -> tuple[str, Any]:
    name, sign, value = text.partition("=")
    if not (name and sign):
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE; found {text!r}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
