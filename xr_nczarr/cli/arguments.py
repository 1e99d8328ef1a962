"""Arguments that subcommands share."""

from __future__ import annotations

import argparse
from typing import Any

from xr_nczarr.errors import quote


class UsageError(Exception):
    """The arguments are wrong, whatever the store."""


def add_target(parser: argparse.ArgumentParser) -> None:
    """Add the store to open, and how to open it."""
    parser.add_argument("target", metavar="TARGET", help="a path or URL, as the engine takes it")
    add_storage_options(parser)
    about = "any other option of the engine, such as consolidated=false or group=/model"
    parser.add_argument("--option", dest="options", help=about, **_PAIRS)


def add_storage_options(parser: argparse.ArgumentParser, name: str = "storage") -> None:
    """Add the option ``--storage-option``, or that of another `name`."""
    about = "for its filesystem, as fsspec knows it; the value as JSON, or else as text"
    about = about if name == "storage" else "the same for TARGET"
    parser.add_argument(f"--{name}-option", dest=f"{name}_options", help=about, **_PAIRS)


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--json``."""
    parser.add_argument("--json", action="store_true", help="print JSON, for a machine to read")


def open_options(parsed: argparse.Namespace) -> dict[str, Any]:
    """Return what `add_target` added, as keyword arguments of the functions that open.

    Raises
    ------
    UsageError
        For an unknown option, and for a value that an option does not accept.
    """
    from xr_nczarr.options import OPEN_OPTIONS, OpenOptions

    options = dict(parsed.options)
    unknown = sorted(options.keys() - set(OPEN_OPTIONS))
    if unknown:
        raise UsageError(f"there is no option {', '.join(unknown)}; see {', '.join(OPEN_OPTIONS)}")
    if parsed.storage_options:
        options["storage_options"] = parsed.storage_options
    try:
        OpenOptions(**options)
    except ValueError as error:
        raise UsageError(str(error)) from error
    return options


def chosen(parsed: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Return arguments by their names, as keyword arguments."""
    return {name: getattr(parsed, name) for name in names}


def positions(selection: str) -> dict[str, int | slice]:
    """Parse positions such as ``time=0:10,lat=3``; raise UsageError for anything else."""
    by_name: dict[str, int | slice] = {}
    for item in filter(None, selection.split(",")):
        name, places = map(str.strip, item.rpartition("=")[::2])
        try:
            numbers = [int(part) if part.strip() else None for part in places.split(":")]
            if not name or name in by_name or len(numbers) > 3 or 0 in numbers[2:]:
                raise ValueError(item)
            by_name[name] = slice(*numbers) if len(numbers) > 1 else int(places)
        except ValueError as error:
            raise UsageError(
                f"found {quote(item)!r}, expected another dimension and positions in it. "
                "Write time=0:10, lat=3 or lon=::2"
            ) from error
    return by_name


class _Pairs(argparse.Action):
    """Gathers ``NAME=VALUE`` in a dictionary."""

    def __call__(self, _: Any, namespace: Any, values: Any, __: Any = None) -> None:
        name, value = values
        setattr(namespace, self.dest, {**getattr(namespace, self.dest), name: value})


def _pair(text: str) -> tuple[str, Any]:
    name, sign, value = text.partition("=")
    if not (name and sign):
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE; found {text!r}")
    import json

    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


_PAIRS: dict[str, Any] = {
    "action": _Pairs,
    "default": {},
    "type": _pair,
    "metavar": "NAME=VALUE",
}
