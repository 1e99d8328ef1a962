"""Complete ``nczarr`` command lines in a shell.

The completion scripts run ``nczarr --complete`` to obtain the candidates.
"""

from __future__ import annotations

from collections.abc import Sequence

from xr_nczarr.cli.arguments import Parser, UsageError
from xr_nczarr.cli.commands import COMMANDS
from xr_nczarr.errors import quote

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
