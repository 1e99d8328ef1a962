"""Kerchunk's parquet layout: references are looked up lazily, with every parquet library."""

import importlib.util
import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

import fsspec
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from fsspec.implementations.reference import LazyReferenceMapper

from xr_nczarr import to_nczarr
from xr_nczarr.errors import LimitError, ReferenceSetError, UnsupportedError
from xr_nczarr.model import Limits
from xr_nczarr.references import write as write_references
from xr_nczarr.references.parquet import parse_parquet_references
from xr_nczarr.references.record_files import RecordFiles
from xr_nczarr.storage import LocalStore
from xr_nczarr.storage.store import Address

pytestmark = pytest.mark.filterwarnings("ignore:The 'fastparquet' engine")

LIBRARIES = ["pyarrow", "fastparquet"]


@dataclass
class Folder:
    """A function that fetches files from a directory, and a list of the names of fetched files."""

    path: str
    requested: list[str] = field(default_factory=list)

    def __call__(self, names):
        self.requested += names
        return LocalStore(self.path).fetch(names)


def nothing(names):
    """Return None for each name, as if the directory contained no files."""
    return [None] * len(names)


def hide_other_libraries(monkeypatch, *libraries):
    """Hide all parquet libraries except these."""
    find_spec = importlib.util.find_spec

    def find(name, package=None):
        return None if name in set(LIBRARIES) - set(libraries) else find_spec(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find)


def array(shape, chunks):
    return json.dumps({"zarr_format": 2, "shape": shape, "chunks": chunks, "dtype": "<f4"})


def write(path, engine):
    """Write a reference set with fsspec's own implementation, and return its references."""
    refs = {
        ".zgroup": '{"zarr_format": 2}',
        "g/x/.zarray": array([6, 10], [1, 2]),
        "t/.zarray": array([40], [1]),
        "s/.zarray": array([], []),
        "e/.zarray": array([0], [5]),
        "g/5/.zarray": array([3], [1]),
        "t/3": ["file:///a"],
        "s/0": b"raw",
        "g/5/1": ["file:///named/by/a/number"],
        **{f"t/{i}": ["s3://b/t.nc", 100 * i, 5] for i in range(10, 35)},
        **{
            f"g/x/{i}.{j}": [f"s3://b/{i}.nc", 100 * i + j, 20] if j else b"\0\xff"
            for i in range(6)
            for j in range(5)
            if (i + j) % 7 != 3
        },
    }
    mapper = LazyReferenceMapper.create(
        str(path), fs=fsspec.filesystem("file"), record_size=12, engine=engine
    )
    for key, value in refs.items():
        mapper[key] = value
    mapper.flush()
    return {
        key: value if isinstance(value, bytes) else Address(*value)
        for key, value in refs.items()
        if not isinstance(value, str)
    }


def open_folder(path):
    folder = Folder(str(path))
    return parse_parquet_references(next(folder([".zmetadata"])), folder), folder


# Regression D43
@pytest.mark.parametrize("reader", LIBRARIES)
@pytest.mark.parametrize("writer", LIBRARIES)
def test_references_written_with_one_library_are_read_with_another(
    tmp_path, monkeypatch, writer, reader
):
    expected = write(tmp_path, writer)
    hide_other_libraries(monkeypatch, reader)
    references, _ = open_folder(tmp_path)
    chunks = {key: value for key, value in references.items() if "/.z" not in "/" + key}
    assert chunks == expected
    for key in ("g/x/0.3", "t/0", "t/39", "t/40", "t/3.0", "t/03", "g/x/0/1", "s/1", "e/0", "u/0"):
        assert references.resolve(key) is None
    assert json.loads(references.resolve("g/x/.zarray"))["shape"] == [6, 10]
    assert references.names() == ([".zgroup"], ["e", "g", "s", "t"])
    assert references.names("g/x/") == ([".zarray"], [])


def test_repeated_lookup_reads_needed_record_file_once(tmp_path):
    write(tmp_path, "pyarrow")
    references, folder = open_folder(tmp_path)
    for _ in range(2):
        assert references.resolve("t/30") == Address("s3://b/t.nc", 3000, 5)
    assert folder.requested == [".zmetadata", "t/refs.2.parq"]


@pytest.mark.parametrize("reader", LIBRARIES)
def test_all_row_groups_of_record_file_are_read(tmp_path, monkeypatch, reader):
    (tmp_path / "t").mkdir()
    rows = {"path": [f"u{i}" for i in range(100)], "offset": range(100), "size": [1] * 100}
    pd.DataFrame(rows).to_parquet(tmp_path / "t/refs.0.parq", row_group_size=7, engine="pyarrow")
    document = {"metadata": {"t/.zarray": array([200], [1])}, "record_size": 150}
    (tmp_path / ".zmetadata").write_text(json.dumps(document))
    hide_other_libraries(monkeypatch, reader)
    references, _ = open_folder(tmp_path)
    assert references.resolve("t/0") == Address("u0", 0, 1)
    assert references.resolve("t/99") == Address("u99", 99, 1)
    assert references.resolve("t/100") is references.resolve("t/160") is None


def test_threads_can_read_one_record_file_concurrently(tmp_path):
    """If two threads read one pyarrow file at the same time, the process can fail or crash."""
    count = 20_000
    rows = {"path": [f"u{i}" for i in range(count)], "offset": range(count), "size": [1] * count}
    pd.DataFrame(rows).to_parquet(tmp_path / "refs.0.parq", row_group_size=500, engine="pyarrow")
    numbers = [7919 * i % count for i in range(300)]
    for _ in range(20):
        records = RecordFiles(LocalStore(str(tmp_path)).fetch, count, 1 << 20)
        with ThreadPoolExecutor(8) as threads:
            results = list(threads.map(partial(records.row, "refs.0.parq"), numbers))
        assert [row["offset"] for row in results] == numbers


def test_pickled_subset_contains_only_its_references(tmp_path):
    write(tmp_path, "pyarrow")
    references, _ = open_folder(tmp_path)
    part = pickle.loads(pickle.dumps(references.subset("t/")))
    assert part.resolve("t/10") == Address("s3://b/t.nc", 1000, 5)
    assert part.resolve("g/x/.zarray") is part.resolve("g/x/0.0") is None
    assert references.subset("nothing/").key_count == 0


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"[]",
        b'{"metadata": {}}',
        b'{"metadata": [], "record_size": 5}',
        b'{"metadata": {}, "record_size": 0}',
        b'{"metadata": {}, "record_size": "5"}',
        b'{"metadata": {}, "record_size": 100000000000}',
    ],
)
def test_invalid_parquet_reference_document_raises_reference_set_error(document):
    with pytest.raises(ReferenceSetError):
        parse_parquet_references(document, nothing)


@pytest.mark.parametrize(
    ("shape", "chunks"), [([4], []), ([4], [0]), (["4"], [1]), (4, 4), ([-1], [1]), ([4.0], [1])]
)
def test_invalid_chunk_grid_raises_reference_set_error(shape, chunks):
    document = {"metadata": {"t/.zarray": array(shape, chunks)}, "record_size": 5}
    references = parse_parquet_references(json.dumps(document).encode(), nothing)
    with pytest.raises(ReferenceSetError) as caught:
        references.resolve("t/0")
    assert caught.value.key == "t/.zarray"


@pytest.mark.parametrize("other", ["{", array([4], [0]), array([0, 3], [0, 3])])
def test_broken_or_empty_array_does_not_affect_other_arrays(tmp_path, other):
    write(tmp_path, "pyarrow")
    document = json.loads((tmp_path / ".zmetadata").read_text())
    document["metadata"]["a/.zarray"] = other
    (tmp_path / ".zmetadata").write_text(json.dumps(document))
    references, _ = open_folder(tmp_path)
    assert references.resolve("t/3") == Address("file:///a")
    assert references.urls(30)
    assert references.key_count


def test_zero_length_array_has_no_chunks(tmp_path):
    document = {"metadata": {"t/.zarray": array([0, 3], [0, 3])}, "record_size": 5}
    references = parse_parquet_references(json.dumps(document).encode(), nothing)
    assert references.resolve("t/0.0") is None
    assert [key for key, _ in references.items()] == ["t/.zarray"]


def sparse_set(path, chunks, record_size):
    """Write a reference set for an array with `chunks` chunks, only three of which exist."""
    (path / "t").mkdir()
    for record, rows in ((0, [b"first", None]), (chunks // record_size - 1, [None, b"last", b""])):
        pd.DataFrame({"raw": rows}).to_parquet(path / f"t/refs.{record}.parq", engine="pyarrow")
    document = {"metadata": {"t/.zarray": array([2, chunks // 2], [1, 1])}}
    (path / ".zmetadata").write_text(json.dumps({**document, "record_size": record_size}))


def test_missing_record_files_are_requested_once(tmp_path):
    sparse_set(tmp_path, 10**9, 10**6)
    references, folder = open_folder(tmp_path)
    chunks = {key: value for key, value in references.items() if key != "t/.zarray"}
    assert chunks == {"t/0.0": b"first", "t/1.499000001": b"last", "t/1.499000002": b""}
    assert len(folder.requested) == 1 + 1000


def test_converting_set_with_too_many_record_files_is_rejected(tmp_path):
    sparse_set(tmp_path, 10**15, 10**6)
    with pytest.raises(UnsupportedError, match=r"1,000,000,000 record files.*larger record_size"):
        write_references(tmp_path, tmp_path / "set.json")
    assert not (tmp_path / "set.json").exists()


@pytest.mark.parametrize("reader", LIBRARIES)
@pytest.mark.parametrize("cut", [slice(0), slice(50), slice(100, None), slice(0, -9)])
def test_error_for_damaged_record_file_includes_file_name(tmp_path, monkeypatch, reader, cut):
    write(tmp_path, "pyarrow")
    record = tmp_path / "t/refs.0.parq"
    record.write_bytes(record.read_bytes()[cut])
    hide_other_libraries(monkeypatch, reader)
    references, _ = open_folder(tmp_path)
    with pytest.raises(ReferenceSetError) as caught:
        references.resolve("t/10")
    assert caught.value.key == "t/refs.0.parq"


def test_record_file_with_undecodable_url_raises_reference_set_error(tmp_path):
    write(tmp_path, "pyarrow")
    record = tmp_path / "t/refs.0.parq"
    rows = pd.DataFrame({"path": ["s3://b/undecodable"] * 12, "offset": 1, "size": 1})
    rows.to_parquet(record, compression=None)
    record.write_bytes(record.read_bytes().replace(b"undecodable", b"\xffndecodable"))
    references, _ = open_folder(tmp_path)
    with pytest.raises(ReferenceSetError, match=r"refs\.0\.parq: the parquet file cannot be read"):
        references.resolve("t/10")


@pytest.mark.parametrize(("column", "value"), [("offset", -1), ("size", -5), ("offset", 0.5)])
def test_invalid_value_in_record_file_raises_reference_set_error(tmp_path, column, value):
    (tmp_path / "t").mkdir()
    rows = {"path": ["u"], "offset": [1], "size": [1]} | {column: [value]}
    pd.DataFrame(rows).to_parquet(tmp_path / "t/refs.0.parq")
    document = {"metadata": {"t/.zarray": array([2], [1])}, "record_size": 5}
    references = parse_parquet_references(json.dumps(document).encode(), Folder(str(tmp_path)))
    with pytest.raises(ReferenceSetError, match=f"{column} is {value}; expected"):
        references.resolve("t/0")


@pytest.mark.parametrize("reader", LIBRARIES)
@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        (
            {"path": [b"u"], "offset": [1], "size": [1]},
            'the value in column "path" is b.u.; expected a string',
        ),
        (
            {"path": [7], "offset": [1], "size": [1]},
            'the value in column "path" is .*7.*; expected a string',
        ),
        ({"path": [None], "raw": [[1, 2, 3, 4]]}, "raw"),
        ({"url": ["u"], "offset": [1], "size": [1]}, 'neither a "path" nor a "raw" column'),
    ],
)
def test_invalid_columns_are_not_read_as_missing_chunks(
    tmp_path, monkeypatch, reader, rows, problem
):
    (tmp_path / "t").mkdir()
    pd.DataFrame(rows).to_parquet(tmp_path / "t/refs.0.parq", engine="pyarrow")
    document = {"metadata": {"t/.zarray": array([1], [1])}, "record_size": 5}
    hide_other_libraries(monkeypatch, reader)
    references = parse_parquet_references(json.dumps(document).encode(), Folder(str(tmp_path)))
    with pytest.raises(ReferenceSetError, match=problem):
        references.resolve("t/0")


def test_parquet_references_are_found_regardless_of_dimension_separator(tmp_path):
    (tmp_path / "t").mkdir()
    numbers = np.arange(6, dtype="<f4")
    raw = [chunk.tobytes() for chunk in numbers.reshape(3, 2)]
    pd.DataFrame({"raw": raw}).to_parquet(tmp_path / "t/refs.0.parq", engine="pyarrow")
    metadata = {
        ".zgroup": {"zarr_format": 2},
        "t/.zarray": {
            **json.loads(array([3, 2], [1, 2])),
            "dimension_separator": "/",
            "fill_value": None,
            "compressor": None,
            "filters": None,
            "order": "C",
        },
        "t/.zattrs": {"_ARRAY_DIMENSIONS": ["y", "x"]},
    }
    document = {"metadata": metadata, "record_size": 5}
    (tmp_path / ".zmetadata").write_text(json.dumps(document))
    opened = xr.open_dataset(tmp_path, engine="nczarr")
    assert opened.t.values.ravel().tolist() == numbers.tolist()


def test_record_file_with_more_rows_than_record_size_is_rejected(tmp_path):
    (tmp_path / "t").mkdir()
    pd.DataFrame({"path": ["u"] * 6}).to_parquet(tmp_path / "t/refs.0.parq")
    document = {"metadata": {"t/.zarray": array([6], [1])}, "record_size": 5}
    references = parse_parquet_references(json.dumps(document).encode(), Folder(str(tmp_path)))
    with pytest.raises(LimitError, match="6 rows"):
        references.resolve("t/0")


@pytest.mark.parametrize("reader", LIBRARIES)
def test_parquet_references_to_same_url_share_one_string_object(tmp_path, monkeypatch, reader):
    count, url = 10_000, "s3://" + "x" * 10_000
    pd.DataFrame({"path": [url] * count}).to_parquet(tmp_path / "refs.0.parq", engine="pyarrow")
    hide_other_libraries(monkeypatch, reader)
    records = RecordFiles(LocalStore(str(tmp_path)).fetch, count, 1 << 20)
    first, last = (records.row("refs.0.parq", row)["path"] for row in (0, count - 1))
    assert first == url
    assert first is last


@pytest.mark.parametrize("reader", LIBRARIES)
def test_record_file_with_too_much_text_is_rejected(tmp_path, monkeypatch, reader):
    (tmp_path / "t").mkdir()
    urls = [f"s3://{'x' * 10_000}{number}" for number in range(200)]
    rows = {"path": urls, "offset": range(200), "size": range(200)}
    file = tmp_path / "t/refs.0.parq"
    pd.DataFrame(rows).to_parquet(file, engine="pyarrow", compression="zstd")
    document = {"metadata": {"t/.zarray": array([200], [1])}, "record_size": 200}
    hide_other_libraries(monkeypatch, reader)
    limits = Limits(max_consolidated_bytes=1_000_000)
    assert file.stat().st_size < 100_000
    folder = Folder(str(tmp_path))
    references = parse_parquet_references(json.dumps(document).encode(), folder, limits)
    with pytest.raises(LimitError, match=r"limit of 1,000,000.*max_consolidated_bytes"):
        references.resolve("t/0")


def test_error_for_missing_parquet_library_suggests_installation(tmp_path, monkeypatch):
    write(tmp_path, "pyarrow")
    hide_other_libraries(monkeypatch)
    references, _ = open_folder(tmp_path)
    assert references.resolve(".zgroup") is not None
    with pytest.raises(UnsupportedError, match="Install pyarrow or fastparquet"):
        references.resolve("t/10")


@pytest.mark.filterwarnings("ignore:/x was not decoded and has no index")
@pytest.mark.parametrize("damaged", ["a", "x"])
def test_damaged_record_file_affects_only_its_own_variable(tmp_path, damaged):
    dataset = xr.Dataset({"a": ("x", [1.0, 2.0]), "b": ("x", [3.0, 4.0])}, {"x": [5.0, 6.0]})
    to_nczarr(dataset, tmp_path / "store", dialect="zarr")
    write_references(tmp_path / "store", tmp_path / "set.parq")
    (tmp_path / "set.parq" / damaged / "refs.0.parq").write_bytes(b"damaged")
    opened = xr.open_dataset(tmp_path / "set.parq", engine="nczarr")
    for name in dataset.variables.keys() - {damaged}:
        assert opened[name].values.tolist() == dataset[name].values.tolist()
    with pytest.raises(ReferenceSetError, match="the parquet file cannot be read"):
        opened[damaged].load()
