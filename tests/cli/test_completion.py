"""Completion of the command in bash, zsh and fish."""

import os
import shutil
import subprocess
import sys

import pytest

from xr_nczarr.cli.main import candidates, main

LINES = {
    "a command": ("co", ["copy", "consolidate"]),
    "an option": ("copy one two --sto", ["--storage-option"]),
    "files": ("copy sto", ["store.zarr"]),
}
SHELLS = {
    "bash": """
source <(nczarr --completion bash)
complete_words() { COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 )); _nczarr
    if (( ${#COMPREPLY[@]} )); then echo "${COMPREPLY[@]}"; else compgen -f "${!#}"; fi; }
complete_words nczarr LINE
""",
    "fish": """
nczarr --completion fish | source
complete -C "nczarr LINE"
""",
}


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_completes_commands_options_and_paths(shell, line, tmp_path):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "store.zarr").mkdir()
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "nczarr"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m xr_nczarr "$@"\n')
    command.chmod(0o755)
    words, expected = LINES[line]
    done = subprocess.run(
        [shell, "-c", SHELLS[shell].replace("LINE", words)],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert sorted(word.rstrip("/") for word in done.stdout.split()) == sorted(expected), done.stderr


def test_zsh_completion_script_has_no_syntax_errors(tmp_path, capsys):
    if shutil.which("zsh") is None:
        pytest.skip("zsh is not installed")
    assert main(["--completion", "zsh"]) == 0
    script = tmp_path / "script"
    script.write_text(capsys.readouterr().out)
    assert subprocess.run(["zsh", "-n", script], timeout=60).returncode == 0


@pytest.mark.parametrize("arguments", [[], ["tcsh"]], ids=str)
def test_completion_for_unsupported_shell_is_rejected(arguments, capsys):
    assert main(["--completion", *arguments]) == 2
    assert "expected one of bash, zsh, fish" in capsys.readouterr().err


def test_unknown_commands_have_no_completions():
    assert candidates(["nothing", "--"]) == []
    assert candidates([]) == candidates([""])
