"""The frame of the ``nczarr`` command: exit codes, errors in one line, closed pipes."""

import subprocess
import sys

import pytest
import xarray as xr

import xr_nczarr
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
        (KeyError("another's"), 2, 'nczarr demo: KeyError: "another\'s"'),
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


@pytest.mark.parametrize(
    ("command", "target", "code"), [("dump", "one", 0), ("info", "nothing", 2)]
)
def test_closed_streams_change_no_exit_code_and_no_other_stream(command, target, code, tmp_path):
    xr_nczarr.to_nczarr(xr.Dataset({"v": ("x", [1.0, 2.0])}), tmp_path / "one")
    shell = f"{sys.executable} -m xr_nczarr {command} {tmp_path}/{target} "
    for closed in (">&-", "2>&-"):
        done = subprocess.run(
            ["bash", "-c", shell + closed], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == code
        assert bool(done.stdout) == (code == 0 and closed == "2>&-")
        assert bool(done.stderr) == (code == 2 and closed == ">&-")


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


@pytest.mark.parametrize(
    "wrong",
    [
        "copy one two --codecs={}",
        "copy one two --codecs=zlib",
        "copy one two --chunks=time",
        "copy one two --chunks=t=x",
        "verify one --sample=-1",
        "references one two --inline-below=-1",
    ],
)
def test_what_is_no_argument_is_told_with_what_would_be(wrong, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(wrong.split())
    assert "expected" in capsys.readouterr().err.splitlines()[-1]


def test_lists_of_dimensions_may_have_spaces(tmp_path, capsys):
    xr_nczarr.to_nczarr(xr.Dataset({"v": (("y", "x"), [[1.0, 2.0]])}), tmp_path / "one")
    assert main(["explain", f"{tmp_path}/one", "--select", "y=0, x = 1"]) == 0
    assert "there is no" not in capsys.readouterr().err
    assert main(["copy", f"{tmp_path}/one", f"{tmp_path}/two", "--chunks", "y=1, x=1"]) == 0
    assert "chunks 1×1" in str(xr_nczarr.open_hierarchy(tmp_path / "two"))


def test_what_a_store_does_not_have_is_told_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    dataset = xr.Dataset({"v": ("x", [1.0, 2.0])})
    xr_nczarr.to_nczarr(xr.DataTree.from_dict({"/": dataset, "/g": dataset}), "one")
    dataset.to_netcdf("one.nc", engine="scipy")
    for wrong, words in {
        "copy one two --chunks=nothing=2": "no chunks of 2 along nothing",
        "copy one two --chunks=x=0": "no chunks of 0 along x",
        "copy one.nc two --engine=nothing": "no engine nothing",
        "info one.nc": "nczarr copy",
        "explain one --select=x=::0": "expected",
        "explain one --select=x=0,x=1": "expected",
        "info one --option=group=/nothing": "no group '/nothing'",
        "dump one --option=group=/nothing": "no group '/nothing'",
        "verify one --option=group=/nothing": "no group '/nothing'",
        "explain one --option=group=/nothing": "no group '/nothing'",
    }.items():
        assert main(wrong.split()) == 2, wrong
        found = capsys.readouterr().err
        assert words in found, found
        assert found.count("\n") == 1


def test_one_group_of_a_store_is_looked_at_and_the_rest_is_not_taken_for_lost(tmp_path):
    inner = xr.Dataset({"w": (("y", "x"), [[1.0, 2.0]])})
    tree = xr.DataTree.from_dict({"/": xr.Dataset({"v": ("x", [1.0, 2.0])}), "/g": inner})
    xr_nczarr.to_nczarr(tree, tmp_path / "one", consolidated=False)
    store, options = tmp_path / "one", {"group": "/g"}
    (group,) = xr_nczarr.info(store, **options).as_dict()["groups"]
    assert [each["objects_present"] for each in group["variables"]] == [1]
    found = xr_nczarr.verify(store, **options)
    assert found.whole
    assert not [finding for finding in found.findings if "Remove" in finding.remedy]
    assert found.decoded == 1
    text = str(xr_nczarr.dump(store, **options))
    assert " w =\n" in text
    assert " v =" not in text
