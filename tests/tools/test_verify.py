"""`verify` finds damage. Its statements about other programs are compared with these programs."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import netCDF4
import numcodecs
import numpy as np
import pytest
import xarray as xr
import zarr
from zarr.storage import MemoryStore

import xr_nczarr
from tests.interop import test_zarr_rectilinear as rectilinear
from tests.servers import HttpServer
from tests.small_stores import plain_objects
from tests.stores import (
    VINTAGES,
    array_document,
    file_url,
    put,
    read_objects,
    sample,
    shuffled,
    write_vintage,
)
from xr_nczarr.cli.main import main
from xr_nczarr.tools.readers import is_netcdf_name

FIELD = xr.Dataset({"a": (("t", "x"), np.arange(60.0).reshape(6, 10))}, {"t": np.arange(6)})
ENCODING = {"a": {"chunks": (2, 5), "zlib": True, "fletcher32": True}}


def make(path: Path, **options: Any) -> Path:
    xr_nczarr.to_nczarr(FIELD, path, encoding=ENCODING, **options)
    return path


def errors(path: Path, **options: Any) -> list[tuple[str, str]]:
    report = xr_nczarr.verify(path, **options).findings
    return [(item.place, item.problem) for item in report if item.severity == "error"]


@pytest.mark.parametrize("release", VINTAGES)
def test_verify_accepts_stores_from_every_netcdf_c_release(tmp_path: Path, release: str) -> None:
    report = xr_nczarr.verify(write_vintage(tmp_path / "store", sample(release), release))
    assert report.whole
    assert report.chunks["/field"] == (4, 4)
    assert report.chunks["/empty"] == (0, 1)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_verify_decodes_all_chunks_of_complete_store(tmp_path: Path, zarr_format: int) -> None:
    report = xr_nczarr.verify(make(tmp_path / "store", zarr_format=zarr_format))
    assert report.whole
    assert report.chunks == {"/a": (6, 6), "/t": (1, 1)}
    assert report.decoded == 7
    assert xr_nczarr.verify(tmp_path / "store", sample=2).decoded == 3
    for invalid in (0, -1, 0.5):
        with pytest.raises(ValueError, match="sample must be a positive integer or None"):
            xr_nczarr.verify(tmp_path / "store", sample=invalid)


def test_verify_reads_only_stored_chunks(tmp_path: Path) -> None:
    array = zarr.create_array(
        tmp_path / "store/a", shape=(3, 10_000_000), chunks=(1, 1), dtype="i2", zarr_format=2
    )
    array[2, 9_999_999] = array[0, 7] = 1
    zarr.open_group(tmp_path / "store", mode="a", zarr_format=2)
    report = xr_nczarr.verify(tmp_path / "store", sample=2)
    assert (report.chunks, report.decoded) == ({"/a": (2, 30_000_000)}, 2)
    (tmp_path / "store/a/2.9999999").write_bytes(b"damaged")
    assert [place for place, _ in errors(tmp_path / "store")] == ["a/2.9999999"]


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_verify_reports_missing_chunks_as_errors_only_on_request(
    tmp_path: Path, zarr_format: int
) -> None:
    store = make(tmp_path / "store", zarr_format=zarr_format)
    (store / {2: "a/1.1", 3: "a/c/1/1"}[zarr_format]).unlink()
    assert errors(store) == []
    assert len(errors(store, missing_chunks="raise")) == 1


def write_sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 8 << 30)


@pytest.mark.parametrize(
    ("replace", "problem"),
    [
        pytest.param(os.mkdir, "the path is a directory or a device", id="directory"),
        pytest.param(os.mkfifo, "the path is a directory or a device", id="fifo"),
        pytest.param(lambda path: path.symlink_to("gone"), "the target of the symbolic", id="link"),
        pytest.param(lambda path: path.symlink_to(path.name), "Too many levels", id="link-loop"),
        pytest.param(write_sparse, "the file is 8,589,934,592 bytes long", id="huge-file"),
    ],
)
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_verify_reports_special_files_in_place_of_chunks(
    tmp_path: Path, replace: Any, problem: str, zarr_format: int
) -> None:
    store = make(tmp_path / "store", zarr_format=zarr_format)
    path = store / {2: "a/1.1", 3: "a/c/1/1"}[zarr_format]
    path.unlink()
    replace(path)
    report = xr_nczarr.verify(store)
    (finding,) = report.findings
    assert (finding.severity, finding.place) == ("error", path.relative_to(store).as_posix())
    assert finding.problem.startswith(problem)
    assert (report.chunks["/a"], report.decoded) == ((6, 6), 6)


def test_verify_warns_about_missing_chunks_and_lists_their_keys(
    tmp_path: Path, capsys: Any
) -> None:
    store = make(tmp_path / "store")
    for key in ("a/1.1", "a/2.0"):
        (store / key).unlink()
    report = xr_nczarr.verify(store)
    assert report.whole
    (finding,) = report.findings
    assert (finding.severity, finding.detail) == ("warning", "2 of 6: a/1.1, a/2.0")
    assert main(["verify", str(store)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{store}: 5 of 7 chunks stored, 5 read: 0 errors, 1 warning",
        "warning: /a (2 of 6: a/1.1, a/2.0): chunks are missing and are read as the fill value",
    ]


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_verify_reports_missing_coordinate_chunk_as_error(
    tmp_path: Path, zarr_format: int, capsys: Any
) -> None:
    store = make(tmp_path / "store", zarr_format=zarr_format)
    key = {2: "t/0", 3: "t/c/0"}[zarr_format]
    (store / key).unlink()
    assert main(["verify", str(store)]) == 1
    title, line = capsys.readouterr().out.splitlines()
    assert title == f"{store}: 6 of 7 chunks stored, 6 read: 1 error, 0 warnings"
    assert line.startswith(f"error: /t (1 of 1: {key}): chunks of a coordinate are missing")


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_verify_accepts_missing_chunk_of_single_value_coordinate(
    tmp_path: Path, zarr_format: int
) -> None:
    dataset = xr.Dataset({"v": ("member", [1.0])}, {"member": [0]})
    dataset.to_zarr(tmp_path / "s", zarr_format=zarr_format, consolidated=False)
    assert not list((tmp_path / "s/member").glob("*0*"))  # zarr-python does not store the chunk
    report = xr_nczarr.verify(tmp_path / "s")
    assert report.whole
    assert [item.place for item in report.findings] == ["/member"]


def test_verify_truncates_long_list_of_missing_chunks(tmp_path: Path) -> None:
    dataset = xr.Dataset({"v": (("y", "x"), np.zeros((100, 100)))})
    encoding = {"v": {"chunks": (1, 1), "write_empty_chunks": True}}
    xr_nczarr.to_nczarr(dataset, tmp_path / "s", encoding=encoding)
    for path in (tmp_path / "s/v").glob("[0-9]*"):
        if path.name != "0.2":
            path.unlink()
    (finding,) = xr_nczarr.verify(tmp_path / "s").findings
    assert finding.detail == "9,999 of 10,000: v/0.0, v/0.1, v/0.3, v/0.4, v/0.5, …"


def test_verify_counts_rectilinear_chunks() -> None:
    store = dict(rectilinear.STORE)
    document = json.loads(store["plain/zarr.json"])
    document["chunk_grid"]["configuration"]["chunk_shapes"] = [[1, 1, 8], [[2, 3]]]
    store = {key: data for key, data in store.items() if key.startswith(("plain/", "zarr.json"))}
    store["plain/zarr.json"] = json.dumps(document).encode()
    for row, length in enumerate((1, 1, 8)):
        for column in range(3):
            store[f"plain/c/{row}/{column}"] = bytes(4 * length * 2)
    result = xr_nczarr.verify(store)
    assert (result.chunks, result.decoded, result.findings) == ({"/plain": (9, 9)}, 9, [])
    store["plain/c/2/1"] = b"cut"
    (finding,) = xr_nczarr.verify(store).findings
    assert finding.place == "plain/c/2/1"


def test_verify_reports_each_damaged_inner_chunk_of_shard() -> None:
    values = np.random.default_rng(0).random(8)
    encoding = {"v": {"chunks": 2, "shards": 8, "fletcher32": True}}
    store: dict[str, bytes] = {}
    xr_nczarr.to_nczarr(xr.Dataset({"v": ("x", values)}), store, encoding=encoding, zarr_format=3)
    shard = bytearray(store["v/c/0"])
    for number in (1, 3):
        shard[number * 20] ^= 255
    store["v/c/0"] = bytes(shard)
    result = xr_nczarr.verify(store)
    damaged = [f"chunk ({number},), codec fletcher32 (codecs)" for number in (1, 3)]
    assert [finding.detail for finding in result.findings] == damaged
    assert (result.chunks, result.decoded) == ({"/v": (1, 1)}, 0)


def test_verify_reports_problem_shared_by_many_variables_on_one_line(tmp_path: Path) -> None:
    names = [f"v{number}" for number in range(20)]
    dataset = xr.Dataset({name: ("x", np.arange(4.0)) for name in names})
    encoding = {name: {"zlib": True, "chunks": 2} for name in names}
    xr_nczarr.to_nczarr(dataset, tmp_path / "s", encoding=encoding)
    assert str(xr_nczarr.verify(tmp_path / "s")).count("\n") == 0
    assert str(xr_nczarr.verify(tmp_path / "s", readers=True)).count("codec zlib") == 1
    for name in names:
        (tmp_path / "s" / name / "0").unlink()
        (tmp_path / "s" / name / "1").write_bytes(b"cut")
    report = xr_nczarr.verify(tmp_path / "s")
    assert len(report.findings) == 40
    assert "20 of 40 chunks stored, 0 read: 20 errors, 20 warnings" in str(report)
    assert str(report).count("\n") == 2
    assert "/v0 (1 of 2: v0/0), /v1 (1 of 2: v1/0), /v2 (1 of 2: v2/0) and 17 more: chunks" in str(
        report
    )


def test_verify_reports_missing_referenced_file_once(tmp_path: Path) -> None:
    array = array_document([20], chunks=[2], fill_value=0)
    references: dict[str, Any] = {".zgroup": '{"zarr_format": 2}', "v/.zarray": json.dumps(array)}
    references |= {f"v/{n}": [f"{tmp_path}/gone", 8 * n, 8] for n in range(10)}
    result = xr_nczarr.verify(references)
    assert len(result.findings) == 10
    (line,) = str(result).splitlines()[1:]
    assert f"v/0 (chunk (0,), {tmp_path}/gone, 8 bytes at offset 0), " in line
    assert "and 7 more: the reference set refers to an object that does not exist" in line


def test_verify_can_list_features_that_readers_need(tmp_path: Path, capsys: Any) -> None:
    store = make(tmp_path / "store")
    assert main(["verify", str(store)]) == 0
    assert "netCDF-C" not in capsys.readouterr().out
    assert main(["verify", "--readers", str(store)]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        "note: /: readers must support Zarr version 2",
        "note: /: NCZarr metadata is in the layout of netCDF-C 4.9.3 or later",
        *(
            f"note: /a: readers must support the codec {codec}, which netCDF-C loads as a plugin"
            for codec in ("shuffle", "zlib", "fletcher32")
        ),
    ]


@contextlib.contextmanager
def unprivileged(path: Path) -> Iterator[None]:
    """Run the block without the permissions of root, which could read every file."""
    if os.geteuid() != 0:
        yield
        return
    for folder in path.parents:
        folder.chmod(folder.stat().st_mode | 0o055)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_verify_counts_unreadable_chunks_as_present_but_not_decoded(tmp_path: Path) -> None:
    store = make(tmp_path / "store")
    whole = repr(xr_nczarr.info(store)), xr_nczarr.verify(store)
    (store / "a/1.1").chmod(0)
    with unprivileged(store):
        overview, report = repr(xr_nczarr.info(store)), xr_nczarr.verify(store)
    assert overview == whole[0]
    assert report.chunks == whole[1].chunks
    assert (whole[1].decoded, report.decoded) == (7, 6)
    (finding,) = report.findings
    assert (finding.place, finding.problem) == ("a/1.1", "Permission denied")


@pytest.fixture
def serve_over_http(tmp_path: Path, http_server: HttpServer) -> Callable[..., str]:
    def serve(zarr_format: int = 2, **options: Any) -> str:
        make(Path(http_server.root, "s"), zarr_format=zarr_format, consolidated=True, **options)
        for key in {2: ("a/1.1", "a/2.0"), 3: ("a/c/1/1", "a/c/2/0")}[zarr_format]:
            Path(http_server.root, "s", key).unlink()
        return f"{http_server.url}/s"

    return serve


@pytest.mark.parametrize("dialect", ["nczarr", "zarr"])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_chunks_of_unlistable_store_are_counted_individually(
    zarr_format: int, dialect: str, serve_over_http: Any, http_server: HttpServer
) -> None:
    url = serve_over_http(zarr_format, dialect=dialect)
    local = Path(http_server.root, "s")
    expected, report = xr_nczarr.verify(local), xr_nczarr.verify(url)
    assert (report.chunks, report.decoded) == (expected.chunks, expected.decoded)
    assert report.findings == expected.findings
    overview = repr(xr_nczarr.info(url)).splitlines()[1:]
    assert overview == repr(xr_nczarr.info(local)).splitlines()[1:]
    assert "  4 of 6  " in "".join(overview)
    explained = xr_nczarr.explain(url, variables=["a"]).readings[0]
    assert explained == xr_nczarr.explain(local, variables=["a"]).readings[0]
    assert explained.absent == 2


def test_chunks_of_unlistable_store_are_counted_concurrently(
    serve_over_http: Any, http_server: HttpServer
) -> None:
    url = serve_over_http()
    http_server.clear()
    http_server.fault("latency", path="*/a/*", seconds=0.3, times=None)
    xr_nczarr.info(url)
    assert http_server.most_in_flight >= 3
    assert {item.method for item in http_server.requests_for("*/a/0.0")} == {"HEAD"}


def test_more_than_10000_chunks_are_not_looked_up_individually(
    http_server: HttpServer,
) -> None:
    group = zarr.open_group(Path(http_server.root, "s"), mode="w", zarr_format=2)
    group.create_array("a", shape=(10_001,), chunks=(1,), dtype="i2")
    xr_nczarr.consolidate(Path(http_server.root, "s"))
    url = f"{http_server.url}/s"
    reason = "10,001 chunks are too many to look up one by one (at most 10,000)"
    assert reason in " ".join(repr(xr_nczarr.info(url)).split())
    assert reason in " ".join(str(xr_nczarr.verify(url, sample=1)).split())
    assert xr_nczarr.explain(url).readings[0].fetched_bytes is None
    assert not [item for item in http_server.requests if item.method == "HEAD"]


def test_chunks_of_huge_array_are_not_looked_up(tmp_path: Path, http_server: HttpServer) -> None:
    group = zarr.open_group(Path(http_server.root, "s"), mode="w", zarr_format=2)
    group.create_array("a", shape=(10**12,), chunks=(1,), dtype="i2")
    xr_nczarr.consolidate(Path(http_server.root, "s"))
    url = f"{http_server.url}/s"
    with pytest.raises(
        xr_nczarr.UnsupportedError, match=r"1,000,000,000,000 chunks exist.*Pass sample=100"
    ):
        xr_nczarr.verify(url)
    assert xr_nczarr.verify(url, sample=2).decoded == 2
    with pytest.raises(
        xr_nczarr.UnsupportedError, match=r"1,000,000,000,000 chunks are too many.*listed"
    ):
        xr_nczarr.references.write(url, tmp_path / "set.json")


def test_chunks_are_counted_even_if_server_rejects_head_requests(
    serve_over_http: Any, http_server: HttpServer
) -> None:
    url = serve_over_http()
    http_server.fault("status", path="*/t/0", status=405, times=1)
    assert xr_nczarr.info(url).stored_chunks["/t"].present == 1


@pytest.mark.parametrize("dialect", ["nczarr", "zarr"])
def test_reference_set_of_unlistable_store_includes_chunks(
    tmp_path: Path, dialect: str, serve_over_http: Any, http_server: HttpServer
) -> None:
    url = serve_over_http(dialect=dialect)
    assert main(["references", url, str(tmp_path / "set.json")]) == 0
    written = xr_nczarr.references.expand(json.loads((tmp_path / "set.json").read_text()))
    local = Path(http_server.root, "s")
    files = read_objects(local)
    assert written.keys() == {name for name in files if "/." not in f"/{name}" or ".z" in name}
    assert written["a/0.0"] == [f"{url}/a/0.0"]
    options = {"allow": [url]}
    opened = xr.open_dataset(tmp_path / "set.json", engine="nczarr", storage_options=options)
    xr.testing.assert_identical(opened.load(), xr.open_dataset(local, engine="nczarr").load())


def damage_chunk(store: Path) -> None:
    data = bytearray((store / "a/1.1").read_bytes())
    data[-1] ^= 1  # a byte of the checksum
    (store / "a/1.1").write_bytes(data)


def cut_chunk(store: Path) -> None:
    (store / "t/0").write_bytes((store / "t/0").read_bytes()[:-3])


def make_consolidated_stale(store: Path) -> None:
    document = json.loads((store / "a/.zattrs").read_text())
    (store / "a/.zattrs").write_text(json.dumps(document | {"new": 1}))


def cut_consolidated(store: Path) -> None:
    (store / ".zmetadata").write_text((store / ".zmetadata").read_text()[:40])


def truncate_consolidated(store: Path) -> None:
    (store / ".zmetadata").write_bytes(b"")


def clear_consolidated(store: Path) -> None:
    stored = json.loads((store / ".zmetadata").read_text())
    (store / ".zmetadata").write_text(json.dumps(stored | {"metadata": {}}))


def hide_from_consolidated(store: Path) -> None:
    xr_nczarr.to_nczarr(xr.Dataset({"b": 1}), store, mode="a", consolidated=False)
    stale = json.loads((store / ".zmetadata").read_text())
    stale["metadata"] = {k: v for k, v in stale["metadata"].items() if not k.startswith("b/")}
    (store / ".zmetadata").write_text(json.dumps(stale))


def remove_array(store: Path) -> None:
    (store / "t/.zarray").unlink()


def change_shape(store: Path) -> None:
    document = json.loads((store / "a/.zarray").read_text())
    (store / "a/.zarray").write_text(json.dumps(document | {"shape": [6, 9]}))


def leave_a_journal(store: Path) -> None:
    (store / ".nczarr_unfinished").write_text("{}")


DAMAGES = {
    damage_chunk: ("a/1.1", "checksum"),
    cut_chunk: ("t/0", "expected 4,096 (chunk of shape (512,)"),
    make_consolidated_stale: ("a/.zattrs", "in .zmetadata is stale"),
    cut_consolidated: (".zmetadata", "the document is not valid JSON"),
    truncate_consolidated: (".zmetadata", "the document is empty"),
    clear_consolidated: ("a/.zarray", "missing from .zmetadata"),
    hide_from_consolidated: ("b/.zarray", "missing from .zmetadata"),
    remove_array: ("/", "missing"),
    change_shape: ("a/.zattrs", "9 elements"),
    leave_a_journal: (".nczarr_unfinished", "interrupted"),
}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_verify_reports_every_kind_of_damage_with_location(
    tmp_path: Path, damage: Any, capsys
) -> None:
    store = make(tmp_path / "store")
    assert main(["verify", str(store)]) == 0
    damage(store)
    place, words = DAMAGES[damage]
    problems = errors(store)
    assert any(place in where and words in problem for where, problem in problems), problems
    capsys.readouterr()
    assert main(["verify", str(store), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["whole"] is False


@pytest.mark.parametrize("consolidated", [True, False])
def test_verify_reports_damaged_journal(tmp_path: Path, consolidated: bool) -> None:
    store = make(tmp_path / "store", consolidated=consolidated)
    (store / ".nczarr_journal").write_text('{"documents": [')
    assert errors(store) == [(".nczarr_journal", "the journal of an interrupted write is damaged")]
    with pytest.raises(xr_nczarr.MetadataError, match=r"store: \.nczarr_journal"):
        xr_nczarr.to_nczarr(FIELD, store, mode="a")


def test_verify_does_not_report_writer_lock_as_leftover() -> None:
    xr_nczarr.to_nczarr(FIELD, "memory://locked")
    fsspec.filesystem("memory").pipe_file("/locked/.nczarr-writer.lock", b"another")
    report = xr_nczarr.verify("memory://locked")
    (lock,) = (item for item in report.findings if item.place == ".nczarr-writer.lock")
    assert (lock.severity, lock.remedy) == (
        "warning",
        "Wait for that write to finish, or run it again",
    )


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_verify_reports_documents_that_differ_from_consolidated_metadata(
    tmp_path: Path, zarr_format: int
) -> None:
    store = make(tmp_path / "store", zarr_format=zarr_format, consolidated=True)
    names = ("a/.zattrs", "t/.zattrs") if zarr_format == 2 else ("a/zarr.json", "t/zarr.json")
    for name in names:
        members = json.loads((store / name).read_text())
        (store / name).write_text(json.dumps(members | {"new": {"must_understand": False}}))
    (store / "t" / names[0].rpartition("/")[2].replace("attrs", "array")).unlink()
    key = ".zmetadata" if zarr_format == 2 else "zarr.json"
    array = names[0].rpartition("/")[2].replace("attrs", "array")
    problems = errors(store)
    assert (names[0], f"the copy of the document in {key} is stale") in problems
    assert (f"t/{array}", f"the document exists only in {key}") in problems
    xr_nczarr.consolidate(store)
    assert not [problem for _, problem in errors(store) if key in problem]


@pytest.mark.filterwarnings("ignore:Consolidated metadata:UserWarning")
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_verify_accepts_consolidated_metadata_from_zarr_python(
    tmp_path: Path, zarr_format: int
) -> None:
    store = tmp_path / "store"
    tree = xr.DataTree.from_dict({"/": FIELD, "/a1/b1": FIELD, "/empty": xr.Dataset()})
    tree.to_zarr(store, zarr_format=zarr_format, consolidated=True)
    assert errors(store) == []
    assert xr_nczarr.info(store, consolidated="check").consolidated


def test_verify_reports_leftover_objects(tmp_path: Path) -> None:
    store = make(tmp_path / "store")
    put(store, {"a/7.0": b"old", "notes.txt": b"dear"})
    report = xr_nczarr.verify(store)
    assert report.whole
    assert {"a/7.0", "notes.txt"} <= {finding.place for finding in report.findings}


def test_key_with_thousands_of_digits_is_not_mistaken_for_chunk() -> None:
    store: dict[str, bytes] = {}
    xr_nczarr.to_nczarr(FIELD, store)
    key = "t/" + "1" * 5000
    report = xr_nczarr.verify({**store, key: b"old"})
    assert key in {finding.place for finding in report.findings}
    assert report.whole


def unknown_type(store: Path, member: str) -> None:
    document = next(store.glob(f"a/{member}"))
    document.write_text(document.read_text().replace("<f8", "<q9").replace("float64", "quux"))


def no_json(store: Path, member: str) -> None:
    (store / "a" / member).write_text("{")


def another_shape(store: Path, member: str) -> None:
    document = json.loads((store / "a" / member).read_text())
    (store / "a" / member).write_text(json.dumps(document | {"shape": [6, 7]}))


@pytest.mark.parametrize("consolidated", [False, True])
@pytest.mark.parametrize("damage", [unknown_type, no_json, another_shape])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_verify_does_not_suggest_removing_chunks_of_unreadable_array(
    tmp_path: Path, zarr_format: int, damage: Any, consolidated: bool
) -> None:
    store = make(tmp_path / "store", zarr_format=zarr_format, consolidated=consolidated)
    damage(store, ".zarray" if zarr_format == 2 else "zarr.json")
    report = xr_nczarr.verify(store, readers=True)
    assert any("a/" in item.place for item in report.findings if item.severity == "error")
    assert not [item for item in report.findings if item.remedy.startswith("Remove")]
    assert damage is not no_json or "parts of the document are not valid JSON" not in str(
        report
    )  # `upgrade` creates some of them


@pytest.mark.parametrize("gone", ["a/.zarray", "g/.zgroup"])
def test_verify_suggests_caution_before_removing_chunks_without_metadata(
    tmp_path: Path, gone: str
) -> None:
    tree = xr.DataTree.from_dict({"/": FIELD, "/g": FIELD.rename(a="b")})
    xr_nczarr.to_nczarr(tree, tmp_path / "s", dialect="zarr", consolidated=False)
    (tmp_path / "s" / gone).unlink()
    report = xr_nczarr.verify(tmp_path / "s").findings
    reported = [item for item in report if item.place.startswith(gone[:2])]
    assert reported
    assert all(item.remedy.startswith("Remove the object, unless") for item in reported)


def test_verify_does_not_suggest_removing_objects_of_unreadable_group(
    tmp_path: Path,
) -> None:
    tree = xr.DataTree.from_dict({"/": FIELD, "/g": FIELD.rename(a="b")})
    xr_nczarr.to_nczarr(tree, tmp_path / "s", dialect="zarr", consolidated=True)
    (tmp_path / "s/g/.zgroup").write_text("{")
    report = xr_nczarr.verify(tmp_path / "s")
    assert ("g/.zgroup", "error") in {(item.place, item.severity) for item in report.findings}
    assert "Remove" not in str(report)


@pytest.mark.skipif(shutil.which("gdal_translate") is None, reason="needs GDAL")
def test_verify_finds_no_leftovers_in_gdal_v3_draft_store(tmp_path: Path) -> None:
    FIELD.to_netcdf(tmp_path / "f.nc", engine="netcdf4")
    draft = ["gdal_translate", "-q", "-of", "Zarr", "-co", "FORMAT=ZARR_V3"]
    subprocess.run([*draft, f"NETCDF:{tmp_path}/f.nc:a", tmp_path / "s"], check=True, timeout=60)
    report = xr_nczarr.verify(tmp_path / "s")
    assert report.whole
    assert "Remove" not in str(report)
    put(tmp_path / "s", {"data/root/s/c9/9": b"old"})
    assert "data/root/s/c9/9: the object is not a chunk of any array" in str(
        xr_nczarr.verify(tmp_path / "s")
    )


# ---- statements about other programs, checked with these programs

VALUES = np.array([0, 1, 2, 3], "<f4")
SHUFFLED = numcodecs.Zlib(4).encode(shuffled(VALUES.tobytes(), 4))


def array(chunk: bytes, attributes: Any = None, dtype: str = "<f4", **members: Any) -> dict:
    names = {"_ARRAY_DIMENSIONS": ["x"] * (len(members.get("shape", [4])))}
    document = array_document(members.pop("shape", (4,)), dtype, **members)
    key = ".".join("0" * max(1, len(document["shape"])))
    result = {".zgroup": {"zarr_format": 2}, "v/.zarray": document, f"v/{key}": chunk}
    return result | {"v/.zattrs": names if attributes is None else attributes}


def filters(size: Any, level: Any) -> dict:
    return {
        "filters": [{"id": "shuffle", "elementsize": size}],
        "compressor": {"id": "zlib", "level": level},
    }


ANNOTATED = {
    ".zattrs": {
        "_nczarr_superblock": {"version": "2.0.0"},
        "_nczarr_group": {"dimensions": {"x": 4}, "arrays": ["v"], "groups": []},
    }
}
NOTE = {"_nczarr_array": {"dimension_references": ["/x"], "storage": "chunked"}}
NAMED = NOTE | {"_ARRAY_DIMENSIONS": ["x"]}
LZ4 = numcodecs.LZ4().encode(VALUES.tobytes())
ROWS = np.arange(4, dtype="<f4").reshape(2, 2)

CLAIMS = {
    "shuffle of 0": (
        "zarr",
        "element size",
        array(SHUFFLED, NAMED, **filters(0, 4)) | ANNOTATED,
    ),
    "numbers as text": (
        "zarr",
        "are strings, which only",
        array(SHUFFLED, NAMED, **filters("0", "4")) | ANNOTATED,
    ),
    "netcdf's char": ("zarr", ">S1", array(b"abcd", NAMED, ">S1") | ANNOTATED),
    "old char": ("zarr", "of type <U1", array(b"abcd", NAMED, "<U1") | ANNOTATED),
    "no JSON": ("zarr", "not valid JSON", array(VALUES.tobytes()) | {"v/.zattrs": b'{"a": 001}'}),
    "no names": ("xarray", "requires dimension names", array(VALUES.tobytes(), {})),
    "names of a scalar": (
        "xarray",
        "0 names",
        array(b"\0" * 4, {"_ARRAY_DIMENSIONS": []}, shape=(1,)),
    ),
    "text": ("netcdf", "<U2", array(b"\0" * 32, dtype="<U2")),
    "complex": ("netcdf", "<c8", array(b"\0" * 32, dtype="<c8")),
    "half": ("netcdf", "<f2", array(b"\0" * 8, dtype="<f2")),
    "big-endian half": ("netcdf", ">f2", array(b"\0" * 8, dtype=">f2")),
    "codec": ("netcdf", "lz4", array(LZ4, compressor={"id": "lz4", "acceleration": 1})),
    "order": ("netcdf", "order F", array(ROWS.tobytes("F"), shape=(2, 2), order="F")),
    "escape": ("netcdf", r"\u", array(VALUES.tobytes(), {"t": "é"})),
    "version 3": ("netcdf", "must support Zarr version 3", {}),
}


def read_right(program: str, store: Path) -> bool:
    """Return whether a program reads the same values and attributes as this package."""
    expected = xr.open_dataset(store, engine="nczarr", decode_cf=False)
    try:
        if program == "zarr":
            values, text = zarr.open_group(str(store), mode="r")["v"][...], None
            return values.tobytes() == expected["v"].values.tobytes()
        if program == "xarray":
            result = xr.open_dataset(store, engine="zarr", consolidated=False, decode_cf=False)
            return bool((result["v"].values == expected["v"].values).all())
        with netCDF4.Dataset(file_url(store, "zarr")) as root:
            values = np.asarray(root["v"][...])
            text = root["v"].t if "t" in root["v"].ncattrs() else None
    except Exception:
        return False
    same = values.tobytes() == expected["v"].values.tobytes()
    return same and text == expected["v"].attrs.get("t")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("claim", CLAIMS)
def test_programs_reported_as_incompatible_cannot_read_store(tmp_path: Path, claim: str) -> None:
    program, words, documents = CLAIMS[claim]
    store = put(tmp_path / "store", documents)
    if not documents:
        xr_nczarr.to_nczarr(xr.Dataset({"v": ("x", VALUES)}), store, zarr_format=3)
    report = xr_nczarr.verify(store, readers=True)
    assert report.whole, str(report)
    assert [item for item in report.findings if words in item.problem], str(report)
    assert not read_right(program, store)


def netcdf_c_creates(name: str) -> bool:
    with netCDF4.Dataset("memory", "w", diskless=True) as file:
        try:
            file.createDimension("x", 1)
            variable = file.createVariable(name, "f4", ("x",))
        except (RuntimeError, AttributeError, ValueError):
            return False
        return bool(variable.name == name)  # netCDF-C normalizes names


def test_netcdf_name_check_agrees_with_netcdf_c() -> None:
    characters = [*map(chr, range(1, 0x100)), "\u2028", "\ufeff", "e\u0301", "ü"]
    names = [text for item in characters for text in (f"{item}a", f"a{item}a", f"a{item}")]
    names += ["a" * 256, "a" * 257, "ü" * 128, "ü" * 129]
    assert [is_netcdf_name(name) for name in names] == list(map(netcdf_c_creates, names))


NAMED_BADLY = {
    "variable": xr.Dataset({"v ": ("x", VALUES)}),
    "dimension": xr.Dataset({"v": ("+x", VALUES)}),
    "decomposed": xr.Dataset({"e\u0301": ("x", VALUES)}),
    "group": xr.DataTree.from_dict({"/.g": xr.Dataset({"v": ("x", VALUES)})}),
}


@pytest.mark.parametrize("kind", NAMED_BADLY)
def test_verify_reports_names_that_prevent_netcdf_c_from_opening_store(
    tmp_path: Path, kind: str
) -> None:
    store = tmp_path / "store"
    xr_nczarr.to_nczarr(NAMED_BADLY[kind], store)
    report = str(xr_nczarr.verify(store, readers=True))
    assert report.count("netCDF-C cannot open a store that contains the name") == 1
    with pytest.raises(OSError, match="NetCDF"):
        netCDF4.Dataset(file_url(store, "nczarr"))


def test_verify_reports_dimension_names_with_slashes(tmp_path: Path) -> None:
    store = put(tmp_path / "store", plain_objects(dimension="g/x"))
    report = str(xr_nczarr.verify(store, readers=True))
    assert "netCDF-C cannot open a store that contains the name 'g/x'" in report
    with pytest.raises(OSError, match="NetCDF"):
        netCDF4.Dataset(file_url(store, "zarr"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("program", ["zarr", "xarray", "netcdf"])
def test_every_program_can_read_store_without_reported_incompatibilities(
    tmp_path: Path, program: str
) -> None:
    store = put(tmp_path / "store", array(VALUES.tobytes()))
    (finding,) = xr_nczarr.verify(store, readers=True).findings
    assert str(finding) == "note: /: readers must support Zarr version 2"
    assert read_right(program, store)


@pytest.mark.parametrize("shape", [(), (4,)], ids=["scalar", "vector"])
@pytest.mark.parametrize("attributes", [{}, {"_ARRAY_DIMENSIONS": ["x"]}], ids=["none", "v2"])
def test_verify_reports_missing_v3_dimension_names_if_xarray_needs_them(
    shape: tuple[int, ...], attributes: dict[str, Any]
) -> None:
    group = zarr.open_group(MemoryStore(), mode="w", zarr_format=3)
    group.create_array("v", shape=shape, dtype="f4", attributes=attributes)[...] = 1
    report = xr_nczarr.verify(group.store, readers=True)
    names = [item for item in report.findings if "requires dimension names" in item.problem]
    if shape:
        assert [item.place for item in names] == ["/v"]
        with pytest.raises(KeyError, match="dimension_names"):
            xr.open_dataset(group.store, engine="zarr", consolidated=False)
    else:
        assert not names
        xr.open_dataset(group.store, engine="zarr", consolidated=False)
