"""Run the ``nczarr`` command, report errors, and determine the exit code.

The completion scripts for shells run ``nczarr --complete`` to obtain the candidates.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

from xr_nczarr import __version__
from xr_nczarr.cli.arguments import Parser, UsageError
from xr_nczarr.cli.commands import COMMANDS
from xr_nczarr.errors import NczarrError, quote, unknown

_FAILED = 2
_INTERRUPTED = 130
_PIPE_CLOSED = 141

# If there are no candidates, the shell completes file names.
_SCRIPTS = {
    "bash": """\
_nczarr() {
    COMPREPLY=($(nczarr --complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _nczarr nczarr""",
    "zsh": """\
#compdef nczarr
_nczarr() {
    local -a candidates=(${(f)"$(nczarr --complete "${(@)words[2,CURRENT]}" 2>/dev/null)"})
    if (( $#candidates )); then compadd -- $candidates; else _files; fi
}
compdef _nczarr nczarr""",
    "fish": """\
function __nczarr
    nczarr --complete (commandline -opc)[2..] (commandline -ct) 2>/dev/null
end
complete -c nczarr -a '(__nczarr)'""",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the ``nczarr`` command, and return its exit code.

    The exit code is 0 for success, 1 if problems or differences are found, and 2 if the command
    fails. A failed command prints a one-line message to standard error. The exit code is 130 if the
    command is interrupted, and 141 if its output pipe is closed.

    Parameters
    ----------
    arguments
        Command-line arguments, without the program name. None means ``sys.argv[1:]``.
    """
    for name in ("stdout", "stderr"):  # None if the caller closed them
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    if hasattr(sys.stdout, "reconfigure"):
        # Names and text from a store are printed as their original bytes.
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")
    command, *words = (sys.argv[1:] if arguments is None else arguments) or [""]
    program = f"nczarr {command}" if command in COMMANDS else "nczarr"
    parser = Parser(program, COMMANDS[command]) if command in COMMANDS else None

    def complain(error: object, text: str) -> None:
        sentences = [text, *getattr(error, "__notes__", ())]
        message = " ".join(". ".join(item.rstrip(". ") for item in sentences).split())
        message = message if parser is None else parser.in_flags(message)
        # Escape control characters, which a terminal would interpret.
        print(f"{program}: {''.join(map(quote, message))}", file=sys.stderr)

    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_: complain(None, f"warning: {message}")
            if parser is None:
                code = _run_without_command(command, words)
            else:
                result, display = parser.run(words)
                code = _show(result, **display)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has closed the pipe, so flushing the output on exit would fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _PIPE_CLOSED
    except KeyboardInterrupt as error:
        complain(error, "interrupted")
        return _INTERRUPTED
    except Exception as error:  # errors from other libraries are shown with their class
        if sys.flags.dev_mode:
            raise
        is_expected = isinstance(error, NczarrError | OSError | UsageError)
        complain(error, str(error) if is_expected else f"{type(error).__name__}: {error}")
        return _FAILED
    return code


def overview() -> str:
    """Return the help text that lists all subcommands."""
    lines = [f"  {name:<12} {add.__doc__}" for name, add in COMMANDS.items()]
    return "\n".join(
        [
            "Usage: nczarr COMMAND [OPTIONS] ...",
            "",
            "Inspect and change NCZarr stores, Zarr stores and reference sets.",
            "",
            "Commands:",
            *lines,
            "",
            "nczarr COMMAND --help prints the options of a command. nczarr --version prints the",
            "version. nczarr --completion SHELL prints a completion script for bash, zsh or fish.",
            "",
            "Exit codes: 0 for success, 1 for problems or differences found, 2 for failure.",
        ]
    )


def _run_without_command(option: str, words: Sequence[str]) -> int:
    """Handle arguments without a subcommand, such as ``--version``. Return the exit code."""
    if option in ("--help", "-h", "help"):
        print(overview())
    elif option == "--version":
        print(f"xr_nczarr {__version__}")
    elif option in ("--completion", "--complete"):
        print(script(*words) if option == "--completion" else "\n".join(candidates(words)))
    elif not option:  # the command line is empty
        print(overview(), file=sys.stderr)
        return _FAILED
    else:
        what = "option" if option.startswith("-") else "command"
        names = ("--help", "--version", "--completion") if what == "option" else COMMANDS
        raise UsageError(str(unknown(what, option, names)))
    return 0


def script(shell: str = "", *_: str) -> str:
    """Return the completion script for a shell.

    Raises
    ------
    UsageError
        If the shell is not bash, zsh or fish.
    """
    if shell not in _SCRIPTS:
        raise UsageError(
            f"unsupported shell {quote(shell)!r}; expected one of {', '.join(_SCRIPTS)}"
        )
    return _SCRIPTS[shell]


def candidates(words: Sequence[str]) -> list[str]:
    """Return the possible completions of the last word of a command line."""
    *before, last = words or [""]
    if not before:
        return [name for name in COMMANDS if name.startswith(last)]
    if before[0] not in COMMANDS or not last.startswith("-"):
        return []
    flags = Parser("nczarr", COMMANDS[before[0]]).flags
    return [flag for flag in flags if flag.startswith(last)]


def _show(result: Any, *, json: bool, quiet: bool) -> int:
    if isinstance(result, Iterable):  # text that is generated in pieces
        sys.stdout.writelines(result)
    elif json and result is not None:
        from json import dumps

        print(dumps(result.as_dict(), indent=2))
    elif not quiet and result is not None and (text := str(result)):
        print(text)
    return 0 if getattr(result, "whole", True) else 1
