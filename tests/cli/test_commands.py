"""Behavior common to all ``nczarr`` commands: exit codes, one-line errors and closed pipes."""

import subprocess
import sys

import pytest
import xarray as xr

import xr_nczarr
from xr_nczarr.cli import main as frame
from xr_nczarr.cli.arguments import Parser, UsageError, open_options
from xr_nczarr.cli.commands import COMMANDS
from xr_nczarr.cli.main import main


def run(*arguments, **options):
    command = [sys.executable, "-m", "xr_nczarr", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **options)


@pytest.mark.parametrize(
    ("arguments", "code"), [((), 2), (("--help",), 0), (("-h",), 0), (("help",), 0)], ids=str
)
def test_usage_is_printed_if_command_is_missing_or_help_is_requested(arguments, code):
    done = run(*arguments)
    assert done.returncode == code
    printed = done.stderr if code else done.stdout
    assert "Usage: nczarr COMMAND" in printed
    assert all(f"\n  {name} " in printed for name in COMMANDS)


def test_version_option_prints_version():
    assert run("--version").stdout == f"xr_nczarr {xr_nczarr.__version__}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_option(name):
    done = run(name, "--help")
    assert done.returncode == 0
    assert f"usage: nczarr {name}" in done.stdout


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (frame.NczarrError("bad\x1b[31m\nname", store="s"), 2, "nczarr demo: s: bad\\x1b[31m name"),
        (UsageError("no such thing"), 2, "nczarr demo: no such thing"),
        (OSError(28, "No space left"), 2, "nczarr demo: [Errno 28] No space left"),
        (KeyError("another's"), 2, 'nczarr demo: KeyError: "another\'s"'),
        (KeyboardInterrupt(), 130, "nczarr demo: interrupted"),
    ],
)
def test_errors_are_printed_on_one_line_without_traceback(
    error, code, message, monkeypatch, capsys
):
    def fail(_):
        raise error

    monkeypatch.setitem(COMMANDS, "demo", lambda _: fail)
    assert main(["demo"]) == code
    assert capsys.readouterr().err.splitlines() == [message]


def test_closed_pipe_ends_command_silently():
    shell = f"{sys.executable} -m xr_nczarr demo | head -c 1 > /dev/null; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=60)
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("command", "target", "code"), [("dump", "one", 0), ("info", "nothing", 2)]
)
def test_closing_stdout_or_stderr_does_not_change_exit_code(command, target, code, tmp_path):
    xr_nczarr.to_nczarr(xr.Dataset({"v": ("x", [1.0, 2.0])}), tmp_path / "one")
    shell = f"{sys.executable} -m xr_nczarr {command} {tmp_path}/{target} "
    for closed in (">&-", "2>&-"):
        done = subprocess.run(
            ["bash", "-c", shell + closed], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == code
        assert bool(done.stdout) == (code == 0 and closed == "2>&-")
        assert bool(done.stderr) == (code == 2 and closed == ">&-")


def test_option_values_are_parsed_as_json_or_text():
    parser = Parser("nczarr info", COMMANDS["info"])
    pairs = ["--storage-option", "anon=true", "--storage-option", "key=abc"]
    parsed = parser.parse_args(["x", *pairs, "--option", "group=/a", "--option", "zarr_format=2"])
    assert parsed.storage_options == {"anon": True, "key": "abc"}
    assert open_options(parsed, xr_nczarr.dump) == {"group": "/a", "zarr_format": 2}
    for wrong in ("nothing=1", "missing_chunks=maybe"):
        with pytest.raises(UsageError, match=wrong.split("=")[0]):
            open_options(parser.parse_args(["x", "--option", wrong]), xr_nczarr.dump)


def test_comma_separated_arguments_can_contain_spaces(tmp_path, capsys):
    xr_nczarr.to_nczarr(xr.Dataset({"v": (("y", "x"), [[1.0, 2.0]])}), tmp_path / "one")
    assert main(["explain", f"{tmp_path}/one", "--select", "y=0, x = 1"]) == 0
    assert "there is no" not in capsys.readouterr().err
    assert main(["copy", f"{tmp_path}/one", f"{tmp_path}/two", "--chunks", "y=1, x=1"]) == 0
    assert " 1×1 " in str(xr_nczarr.info(tmp_path / "two"))


def test_commands_on_one_group_ignore_other_groups(tmp_path):
    inner = xr.Dataset({"w": (("y", "x"), [[1.0, 2.0]])})
    tree = xr.DataTree.from_dict({"/": xr.Dataset({"v": ("x", [1.0, 2.0])}), "/g": inner})
    xr_nczarr.to_nczarr(tree, tmp_path / "one", consolidated=False)
    store, options = tmp_path / "one", {"group": "/g"}
    (group,) = xr_nczarr.info(store, **options).as_dict()["groups"]
    assert [item["objects_present"] for item in group["variables"]] == [1]
    report = xr_nczarr.verify(store, **options)
    assert report.whole
    assert not [finding for finding in report.findings if "Remove" in finding.remedy]
    assert report.decoded == 1
    text = str(xr_nczarr.dump(store, **options))
    assert " w =\n" in text
    assert " v =" not in text


def test_selections_by_label_and_position_are_equivalent(tmp_path, capsys):
    times = xr.date_range("2026-01-01", periods=10)
    dataset = xr.Dataset({"v": ("time", range(10))}, {"time": times})
    xr_nczarr.to_nczarr(dataset, tmp_path / "one", encoding={"v": {"chunks": 2}})
    printed = []
    for select in ("time=2:6", "time=2026-01-03/2026-01-06"):
        assert main(["explain", f"{tmp_path}/one", "-v", "v", "--select", select]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
    assert "2 of 5" in printed[0]
    assert main(["copy", f"{tmp_path}/one", f"{tmp_path}/two", "--select", "time=2026-01-03/"]) == 0
    xr.testing.assert_identical(
        xr.open_dataset(tmp_path / "two", engine="nczarr").load(), dataset.isel(time=slice(2, None))
    )


def test_error_for_exceeded_limit_suggests_increasing_it(tmp_path, capsys):
    xr_nczarr.to_nczarr(xr.Dataset({"t": ("x", [1.0]), "u": ("x", [2.0])}), tmp_path / "s")
    store, other = str(tmp_path / "s"), str(tmp_path / "other")
    assert main(["info", store, "--limit", "max_nodes=1"]) == 2
    assert capsys.readouterr().err.endswith("If you trust the store, pass --limit max_nodes=…\n")
    commands = [["info", store], ["copy", store, other], ["diff", store, store], ["verify", store]]
    for words in commands:
        assert main([*words, "--limit", "max_metadata_bytes=8"]) == 2, words
        assert (
            "pass --limit max_chunk_bytes=… for a chunk, or max_metadata_bytes"
            in capsys.readouterr().err
        )
        assert main([*words, "--limit", "max_metadata_bytes=9999"]) == 0, words
        capsys.readouterr()


@pytest.mark.parametrize("command", ["info", "verify"])
def test_remedies_printed_by_commands_use_command_line_flags(command, tmp_path, capsys):
    xr_nczarr.to_nczarr(xr.Dataset({"t": ("x", [1.0, 2.0])}), tmp_path / "s")
    main([command, str(tmp_path / "s"), "--limit", "max_chunk_bytes=1"])
    assert "--limit max_chunk_bytes=…" in " ".join(capsys.readouterr().out.split())


def test_stored_text_that_looks_like_keyword_argument_is_printed_unchanged(tmp_path, capsys):
    comment = "compared with rtol=0.5 and group='g'"
    for name, attrs in {"a": {"comment": comment}, "b": {}}.items():
        xr_nczarr.to_nczarr(xr.Dataset({"group=a": ("x", [1.0])}, attrs=attrs), tmp_path / name)
    main(["diff", str(tmp_path / "a"), str(tmp_path / "b")])
    main(["info", str(tmp_path / "a")])
    printed = capsys.readouterr().out
    assert "rtol=0.5 and group=" in printed
    assert "group=a(x)" in printed


@pytest.mark.parametrize("words", ["verify S", "consolidate S", "references S S.json", "diff S S"])
def test_quiet_option_prints_only_errors(words, tmp_path, capsys):
    xr_nczarr.to_nczarr(xr.Dataset({"t": ("x", [1.0, 2.0])}), tmp_path / "s")
    words = [word.replace("S", str(tmp_path / "s")) for word in words.split()]
    assert main([*words, "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")
    assert main([words[0], "--quiet", str(tmp_path / "nothing"), *words[2:]]) == 2
    assert "nothing" in capsys.readouterr().err
