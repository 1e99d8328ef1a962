"""The frame of the ``nczarr`` command: exit codes, errors in one line, closed pipes."""

import subprocess
import sys

import pytest

from xr_nczarr.cli import main as frame
from xr_nczarr.cli.arguments import UsageError, add_target, open_options
from xr_nczarr.cli.main import main


def run(*arguments, **options):
    command = [sys.executable, "-m", "xr_nczarr", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **options)


def test_without_a_command_the_usage_is_printed_and_the_code_is_2():
    done = run()
    assert done.returncode == 2
    assert "usage: nczarr" in done.stderr


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (frame.NczarrError("bad\x1b[31m\nname", store="s"), 2, "nczarr demo: s: bad\\x1b[31m name"),
        (UsageError("no such thing"), 2, "nczarr demo: no such thing"),
        (OSError(28, "No space left"), 2, "nczarr demo: [Errno 28] No space left"),
        (KeyboardInterrupt(), 130, None),
    ],
)
def test_an_error_is_one_line_without_a_traceback(error, code, message, monkeypatch, capsys):
    from xr_nczarr.cli import demo

    def fail():
        raise error

    monkeypatch.setattr(demo, "demo", fail)
    assert main(["demo"]) == code
    assert capsys.readouterr().err.splitlines() == ([message] if message else [])


def test_a_closed_pipe_ends_the_command_silently():
    shell = f"{sys.executable} -m xr_nczarr demo | head -c 1 > /dev/null; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=60)
    assert done.stderr == ""


def test_options_are_json_or_text():
    import argparse

    parser = argparse.ArgumentParser()
    add_target(parser)
    pairs = ["--storage-option", "anon=true", "--storage-option", "key=abc"]
    parsed = parser.parse_args(["x", *pairs, "--option", "group=/a", "--option", "threads=2"])
    assert open_options(parsed) == {
        "group": "/a",
        "threads": 2,
        "storage_options": {"anon": True, "key": "abc"},
    }
    for wrong in ("nothing=1", "missing_chunks=maybe"):
        with pytest.raises(UsageError, match=wrong.split("=")[0]):
            open_options(parser.parse_args(["x", "--option", wrong]))


@pytest.mark.parametrize("wrong", ["--codecs={}", "--codecs=zlib", "--chunks=time", "--chunks=t=x"])
def test_what_is_no_argument_is_told_with_what_would_be(wrong, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["copy", "one", "two", wrong])
    assert "expected" in capsys.readouterr().err.splitlines()[-1]
