"""Parquet reference sets that are replaced while a dataset opened from them is being read."""

import json
import pickle
import string

import fsspec
import pytest
import xarray as xr
from fsspec.implementations.reference import LazyReferenceMapper

from tests.references.test_parquet import LIBRARIES, hide_other_libraries
from tests.stores import array_document
from xr_nczarr.errors import ReferenceSetError
from xr_nczarr.references import write
from xr_nczarr.references.parquet import parse_parquet_references

pytestmark = pytest.mark.filterwarnings("ignore:The 'fastparquet' engine")

LOWER, UPPER = string.ascii_lowercase, string.ascii_uppercase


@pytest.fixture(params=["local", "remote"])
def target(request, tmp_path):
    """Return the path or URL of a set that does not exist yet."""
    return f"{tmp_path}/set.parq" if request.param == "local" else f"memory://{tmp_path.name}.parq"


def reference_set(text):
    """Return a reference document for an array, in which each chunk contains one byte of `text`."""
    return {
        ".zgroup": '{"zarr_format": 2}',
        "t/.zarray": json.dumps(array_document([len(text)], "|u1", chunks=[1])),
        "t/.zattrs": '{"_ARRAY_DIMENSIONS": ["x"]}',
        **{f"t/{number}": character for number, character in enumerate(text)},
    }


def read(target, engine="nczarr", **selection):
    return xr.open_dataset(target, engine=engine).t.isel(**selection).values.tobytes()


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("pickled", [False, True])
def test_old_and_new_references_are_never_mixed(target, monkeypatch, library, pickled):
    write(reference_set(LOWER), target, record_size=2)
    opened = xr.open_dataset(target, engine="nczarr")
    opened = pickle.loads(pickle.dumps(opened)) if pickled else opened
    assert opened.t[:2].values.tobytes() == b"ab"
    write(reference_set(UPPER), target, record_size=3)
    hide_other_libraries(monkeypatch, library)
    with pytest.raises(
        ReferenceSetError, match=r"refs\.8.*replaced after it was opened.*Open the set again"
    ):
        opened.t[16:18].load()
    assert opened.t[:2].values.tobytes() == b"ab"
    assert read(target) == UPPER.encode()


def test_workers_never_mix_old_and_new_references(tmp_path, workers):
    write(reference_set(LOWER), tmp_path / "set.parq", record_size=2)
    opened = xr.open_dataset(tmp_path / "set.parq", engine="nczarr", chunks={"x": 2})
    write(reference_set(UPPER), tmp_path / "set.parq", record_size=3)
    with pytest.raises(ReferenceSetError, match="replaced after it was opened"):
        opened.t.data[:8].compute(scheduler=workers)  # its record files exist in both sets


def test_reading_record_file_missing_from_new_set_raises_error(tmp_path):
    write(reference_set(LOWER), tmp_path / "set.parq", record_size=2)
    opened = xr.open_dataset(tmp_path / "set.parq", engine="nczarr")
    write(reference_set(UPPER), tmp_path / "set.parq")
    with pytest.raises(ReferenceSetError, match=r"refs\.12\.parq: the file does not exist"):
        opened.t[24:].load()


@pytest.mark.parametrize("library", LIBRARIES)
def test_other_programs_can_read_and_change_reference_sets_that_contain_identifier(
    tmp_path, monkeypatch, library
):
    target = str(tmp_path / "set.parq")
    write(reference_set(LOWER), target, record_size=2)
    assert read(target, "kerchunk") == LOWER.encode()
    mapper = LazyReferenceMapper(target, fs=fsspec.filesystem("file"), engine=library)
    assert mapper["t/5"] == b"f"
    mapper["t/5"] = b"F"
    mapper.flush()  # removes the identifier from one record file and from .zmetadata
    hide_other_libraries(monkeypatch, library)
    assert read(target) == LOWER.replace("f", "F").encode()


def test_invalid_identifier_of_reference_set_raises_reference_set_error():
    document = {"metadata": {}, "record_size": 5, "xr_nczarr_set_id": 7}
    with pytest.raises(ReferenceSetError, match=r'"xr_nczarr_set_id" is 7; expected a string'):
        parse_parquet_references(json.dumps(document).encode(), list)
