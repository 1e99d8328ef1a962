"""Define the parser of a subcommand, and the arguments shared by several subcommands."""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any, NoReturn

from xr_nczarr.errors import unknown

Run = Callable[[argparse.Namespace], Any]

_KEYWORD = re.compile(
    r"\b([a-z_]+)=((?:'[^']*'|\[[^]]*\]|\([^)]*\)|\{[^}]*\}|\w[\w.]*(?:\([^)]*\))?)?)"
)
_FUNCTION = re.compile(r"\bxr_nczarr\.(\w+) \((nczarr \1)\)")


class UsageError(Exception):
    """The error that is raised if a command line is invalid."""


class Parser(argparse.ArgumentParser):
    """The argument parser of a subcommand.

    Parameters
    ----------
    program
        Name of the program to show in messages, such as ``nczarr copy``.
    add
        Function that adds the arguments of the subcommand to the parser, and returns the function
        that runs the subcommand.
    """

    def __init__(self, program: str, add: Callable[[Parser], Run]) -> None:
        # Subcommands may redefine -h. In dump, -h has the same meaning as in ncdump.
        super().__init__(program, allow_abbrev=False, conflict_handler="resolve")
        self.description = add.__doc__
        self._run = add(self)

    def run(self, words: Sequence[str]) -> Any:
        """Parse the arguments of the subcommand, and run it.

        Returns
        -------
        tuple
            The result of the subcommand, and the options that determine how to print it.

        Raises
        ------
        UsageError
            If the arguments are invalid. The message shows the usage of the subcommand, unless an
            option is unknown.
        """
        parsed, unparsed = self.parse_known_args(words)
        for word in unparsed:
            if word.startswith("-"):
                raise UsageError(str(unknown("option", word.partition("=")[0], self.flags)))
            remedy = f"; select variables with -v {word}" if "-v" in self.flags else ""
            self.error(f"unexpected argument {word!r}{remedy}")
        display = {name: getattr(parsed, name, False) for name in ("json", "quiet")}
        return self._run(parsed), display

    def add(self, name: str, about: str, **keywords: Any) -> None:
        """Add an argument with the help text `about` and other keywords of `add_argument`.

        An option takes no value if `dest` is its only keyword, or if it has no keywords.
        """
        if name.startswith("-") and not keywords.keys() - {"dest"}:
            keywords["action"] = "store_true"
        self.add_argument(name, help=about, **keywords)

    def add_shared(self, *names: str) -> None:
        """Add arguments that several subcommands share, given their names in `_SHARED`."""
        for name in names:
            about, keywords = _SHARED[name]
            self.add(name, about, **keywords)

    @property
    def flags(self) -> list[str]:
        """All options of the subcommand, in their long and short forms."""
        return [flag for action in self._actions for flag in action.option_strings]

    def error(self, message: str) -> NoReturn:
        """Raise UsageError with argparse's message and the usage of the subcommand."""
        arguments = [str(action.metavar) for action in self._get_positional_actions()]
        problem = message.removeprefix("argument ").replace(
            "the following arguments are required: ", "missing "
        )
        raise UsageError(f"{problem}. Usage: {self.prog} [OPTIONS] {' '.join(arguments)}")

    def in_flags(self, message: str) -> str:
        """Replace Python keyword arguments in a message with the flags of the subcommand.

        For example, ``overwrite=True`` becomes ``--overwrite``. The name of a Python function is
        removed if its subcommand follows in parentheses: ``xr_nczarr.copy (nczarr copy)`` becomes
        ``nczarr copy``.
        """
        from ast import literal_eval
        from json import dumps
        from shlex import quote as shell_quote

        flags = {
            item.dest: item.option_strings[-1] for item in self._actions if item.option_strings
        }

        def rendered(value: Any) -> str:
            return value if isinstance(value, str) else dumps(value)

        def flag(keyword: re.Match[str]) -> str:
            from xr_nczarr.options import OPEN_OPTIONS

            name, text = keyword.groups()
            if name in flags and text.startswith("Limits("):
                return f"{flags[name]} {text[len('Limits(') : -1]}"
            try:
                value = literal_eval(text) if text else "…"
            except (ValueError, SyntaxError):
                return keyword[0]
            if name not in flags and "options" in flags and name in OPEN_OPTIONS:
                name, value = "options", {name: value}
            if name not in flags:
                return keyword[0]
            if value is True:
                return flags[name]
            if name.endswith("options") and isinstance(value, dict):
                pairs = (f"{key}={rendered(item)}" for key, item in value.items())
                return " ".join(f"{flags[name]} {shell_quote(pair)}" for pair in pairs)
            return f"{flags[name]} {shell_quote(rendered(value)) if text else value}"

        return _KEYWORD.sub(flag, _FUNCTION.sub(r"\2", message))


def call(function: Callable[..., Any], parsed: argparse.Namespace, **more: Any) -> Any:
    """Call a function with the parsed arguments that match its parameters, and with `more`.

    Progress is shown only if the function supports it, standard error is a terminal, tqdm is
    installed, and ``--quiet`` was not passed.

    Raises
    ------
    UsageError
        If ``--option``, ``--storage-option`` or a similar flag, such as ``--target-option``, has an
        invalid value.
    """
    parameters = inspect.signature(function).parameters
    arguments = {name: value for name, value in vars(parsed).items() if name in parameters} | more
    if "options" in parsed:
        arguments |= open_options(parsed, function)
    for name, value in arguments.items():
        if name.endswith("_options"):
            _check_options(f"--{name.removesuffix('_options')}-option", storage_options=value)
    if "progress" in parameters:
        shown = sys.stderr.isatty() and find_spec("tqdm") is not None
        arguments["progress"] = shown and not getattr(parsed, "quiet", False)
    return function(**arguments)


def open_options(parsed: argparse.Namespace, function: Callable[..., Any]) -> dict[str, Any]:
    """Convert the values of ``--option`` to keyword arguments for a function.

    Raises
    ------
    UsageError
        If an option is unknown, has a dedicated flag such as ``--limit``, or has an invalid value.
    """
    from xr_nczarr.options import OPEN_OPTIONS

    keywords = function.__kwdefaults__ or ()
    allowed = [name for name in OPEN_OPTIONS if name in keywords and name not in parsed]
    flags = {"limits": "--limit", "storage_options": "--storage-option"}
    for name in parsed.options:
        if name in flags and name in parsed:
            raise UsageError(f"--option cannot set {name}. Use {flags[name]} NAME=VALUE")
        if name not in allowed:
            raise UsageError(str(unknown("option", name, allowed)))
    _check_options("--option", **parsed.options)
    return dict(parsed.options)


def _check_options(flag: str, **options: Any) -> None:
    """Raise UsageError if an option that was passed with `flag` has an invalid value."""
    from xr_nczarr.options import OpenOptions

    try:
        _ = OpenOptions(**options).access
    except ValueError as error:
        words = {"None": "null", "True": "true", "False": "false"}
        reason = re.sub("None|True|False", lambda word: words[word[0]], str(error))
        raise UsageError(f"{flag}: {reason}") from error


def invalid_value(text: str, expected: str) -> argparse.ArgumentTypeError:
    """Build the error for an argument whose value `text` cannot be parsed.

    `expected` describes the values that are accepted.
    """
    return argparse.ArgumentTypeError(f"invalid value {text!r}; expected {expected}")


def parse_names(text: str) -> list[str]:
    """Parse a comma-separated list of names."""
    return text.split(",")


def parse_selection(text: str) -> dict[str, Any]:
    """Parse a selection such as ``time=0:10,lat=45.5``.

    Integers, and ranges such as ``0:10``, are positions. Everything else is a label. Two labels
    separated by a slash form a range that includes both labels.
    """
    by_name: dict[str, Any] = {}
    for item in filter(None, text.split(",")):
        name, places = map(str.strip, item.partition("=")[::2])
        if not name or not places or name in by_name:
            raise invalid_value(
                text,
                "DIM=VALUE pairs that name each dimension only once. Write, for example, "
                "time=0:10 or lat=3,lon=::2 or time=2000-01/2000-03,lat=45.5",
            )
        by_name[name] = _places(places)
    return by_name


def _places(text: str) -> Any:
    if "/" in text:
        first, _, last = text.partition("/")
        return slice(first or None, last or None)
    try:
        numbers = [int(part) if part.strip() else None for part in text.split(":")]
    except ValueError:
        return text
    if len(numbers) > 3 or 0 in numbers[2:]:
        raise invalid_value(text, "START:STOP:STEP with a nonzero STEP")
    return slice(*numbers) if len(numbers) > 1 else numbers[0]


class _Pairs(argparse.Action):
    """The action of a repeatable option that collects ``NAME=VALUE`` pairs in a dict."""

    def __init__(self, option_strings: Sequence[str], dest: str, **keywords: Any) -> None:
        keywords = {"type": _pair, "default": {}, "metavar": "NAME=VALUE", **keywords}
        # The dict has the name of the Python parameter: --limit is stored in `limits`.
        super().__init__(option_strings, f"{dest}s", **keywords)

    def __call__(self, _: Any, namespace: Any, values: Any, __: Any = None) -> None:
        name, value = values
        setattr(namespace, self.dest, {**getattr(namespace, self.dest), name: value})


def _pair(text: str) -> tuple[str, Any]:
    name, sign, value = text.partition("=")
    if not (name and sign):
        raise invalid_value(text, "NAME=VALUE")
    import json

    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _limit(text: str) -> tuple[str, Any]:
    from xr_nczarr import Limits

    name, limit = _pair(text)
    try:
        Limits.of({name: limit})
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return name, limit


_FSSPEC = "fsspec option{}; VALUE is JSON or a plain string"
_SHARED: dict[str, tuple[str, dict[str, Any]]] = {
    "target": ("path or URL, as for engine='nczarr' in xarray", {"metavar": "TARGET"}),
    "--storage-option": (_FSSPEC.format(""), {"action": _Pairs}),
    "--target-option": (_FSSPEC.format(" for TARGET"), {"action": _Pairs}),
    "--second-option": (_FSSPEC.format(" for SECOND"), {"action": _Pairs}),
    "--limit": (
        "override a limit that protects memory while reading, such as max_nodes=1000000",
        {"action": _Pairs, "type": _limit},
    ),
    "--option": (
        "any other option of the engine, such as consolidated=false or group=/model",
        {"action": _Pairs},
    ),
    "--group": ("path of the group to use as the root", {"metavar": "GROUP"}),
    "--engine": (
        "xarray engine for a file that is neither a store nor a netCDF file",
        {"metavar": "ENGINE"},
    ),
    "--assume-endian": (
        "byte order of the chunks, overriding the metadata of the store",
        {"choices": ("little", "big")},
    ),
    "-v": (
        "select only these variables, and the coordinates of their dimensions",
        {"dest": "variables", "type": parse_names, "metavar": "VAR,..."},
    ),
    "--select": (
        "select positions (time=0:10,lat=3) or labels (time=2000-01/2000-03,lat=45.5)",
        {"type": parse_selection, "default": {}, "metavar": "DIM=VALUE,..."},
    ),
    "--dialect": (
        "metadata layout: nczarr (default), zarr, universal, or an older layout such as "
        "nczarr-4.8.1",
        {"default": "nczarr", "metavar": "DIALECT"},
    ),
    "--quiet": ("print only warnings and errors, not the result or the progress", {}),
    "--json": ("print the result as JSON", {}),
}
"""The help text and the keywords of each argument that several subcommands share."""
