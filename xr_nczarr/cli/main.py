"""The frame of the ``nczarr`` command: its errors and its exit codes."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from xr_nczarr import __version__
from xr_nczarr.cli.arguments import UsageError
from xr_nczarr.cli.commands import COMMANDS
from xr_nczarr.errors import NczarrError, quote

_FAILED = 2
_INTERRUPTED = 130
_PIPE_CLOSED = 141


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    That is 0 when all is well, 1 when problems were found in what was looked at, 2 when the command
    could not do its work: one line on the standard error output says why.
    """
    for name in ("stdout", "stderr"):  # None where the caller closed them
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    if hasattr(sys.stdout, "reconfigure"):
        # Names and texts of a store come out as the bytes they are.
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")
    parsed = _parser().parse_args(arguments)
    try:
        code = _show(parsed.run(parsed), getattr(parsed, "json", False))
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of the output has closed it: nothing may be flushed at the exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _PIPE_CLOSED
    except KeyboardInterrupt:
        return _INTERRUPTED
    except Exception as error:  # those of other libraries too, by their name
        if sys.flags.dev_mode:
            raise
        known = isinstance(error, NczarrError | OSError | UsageError)
        text = str(error) if known else f"{type(error).__name__}: {error}"
        print(f"nczarr {parsed.command}: {_one_line(text)}", file=sys.stderr)
        return _FAILED
    return code


def _show(result: Any, as_json: bool) -> int:
    """Print the result of a command; return the exit code."""
    if isinstance(result, Iterable):  # CDL comes in pieces
        sys.stdout.writelines(result)
    elif result is not None and as_json:
        import json

        print(json.dumps(result.as_dict(), indent=2))
    elif result is not None:
        print(result)
    return 0 if getattr(result, "whole", True) else 1


def _one_line(text: str) -> str:
    """Return a message on one line, without characters that a terminal would act upon."""
    return "".join(map(quote, " ".join(text.split())))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nczarr",
        description="Look at and work on NCZarr, Zarr and reference sets.",
        epilog="Exit code: 0 all is well, 1 problems were found, 2 the command failed.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"xr_nczarr {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for add in COMMANDS:
        name, help_text = add.__name__, str(add.__doc__)
        command = commands.add_parser(
            name,
            help=help_text[0].lower() + help_text[1:].rstrip("."),
            description=help_text,
            allow_abbrev=False,
            add_help=name != "dump",  # where -h is ncdump's
        )
        command.set_defaults(run=add(command))
    return parser
