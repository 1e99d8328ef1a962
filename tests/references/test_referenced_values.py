"""Values read through reference sets, and errors for references that cannot be read."""

import base64
import json
import pickle
import time
import zlib

import fsspec
import numpy as np
import pytest
import xarray as xr
from fsspec.implementations.reference import LazyReferenceMapper

from tests.processes import in_a_child, in_a_new_interpreter
from tests.reading import open_store, peak_memory
from tests.small_stores import plain_objects
from tests.stores import array_document
from xr_nczarr.errors import (
    AccessDeniedError,
    LimitError,
    NczarrError,
    ReferenceSetError,
    RefusedError,
    StorageError,
)
from xr_nczarr.storage import Retry

VALUES = np.arange(8, dtype="<i4")


def metadata(attributes=(), shape=(8,), **changes):
    return {
        ".zgroup": '{"zarr_format": 2}',
        "t/.zarray": json.dumps(array_document(shape, fill_value=-1, chunks=[4]) | changes),
        "t/.zattrs": json.dumps({"_ARRAY_DIMENSIONS": ["x"], **dict(attributes)}),
    }


def read(document, **options):
    options = {"mask_and_scale": False} | options
    return xr.open_dataset(document, engine="nczarr", **options).t.values.tolist()


@pytest.fixture
def served(http_server):
    """Return a server with two files of consecutive chunks: one uncompressed, one deflated."""
    halves = [VALUES[:4].tobytes(), VALUES[4:].tobytes()]
    with open(f"{http_server.root}/raw.bin", "wb") as file:
        file.write(b"".join(halves))
    http_server.sizes = [len(zlib.compress(half)) for half in halves]
    with open(f"{http_server.root}/deflated.bin", "wb") as file:
        file.write(b"".join(map(zlib.compress, halves)))
    return http_server


def raw(server):
    url = f"{server.url}/raw.bin"
    return metadata() | {"t/0": [url, 0, 16], "t/1": [url, 16, 16]}


def deflated(server):
    url, (first, second) = f"{server.url}/deflated.bin", server.sizes
    entries = {"t/0": [url, 0, first], "t/1": [url, first, second]}
    return metadata(compressor={"id": "zlib", "level": 1}) | entries


def generated(**members):
    generator = {"key": "t/{{i}}", "url": "{{u}}", "offset": "{{i * 16}}", "length": "16"}
    generator |= {"dimensions": {"i": {"stop": 2}}} | members
    return {"version": 1, "refs": metadata(), "gen": [generator]}


# Regression D35
def test_reference_set_defined_entirely_by_generators_is_read(tmp_path):
    (tmp_path / "a.bin").write_bytes(VALUES.tobytes())
    assert read(generated(url=str(tmp_path / "a.bin"))) == VALUES.tolist()


# Regression D36
def test_templates_with_arguments_are_rendered(tmp_path):
    (tmp_path / "text").write_bytes(VALUES.tobytes())
    templates = {"u": str(tmp_path), "f": "{{u}}/{{c}}"}
    document = generated(url="{{f(c='text')}}") | {"templates": templates}
    assert read(document) == VALUES.tolist()


# Regressions D37, D38
@pytest.mark.parametrize("form", [deflated, raw])
def test_requested_range_is_extracted_if_response_contains_whole_object(served, form):
    served.fault("ignore-range", times=None)
    assert read(form(served)) == VALUES.tolist()
    alone = form(served)
    del alone["t/0"]
    assert read(alone) == [-1, -1, -1, -1, *VALUES[4:].tolist()]


# Regression D39
@pytest.mark.parametrize("kind", ["truncate", "wrong-range", "reset", "status"])
def test_transient_failures_are_retried(served, kind):
    served.fault(kind, times=1)
    assert read(raw(served)) == VALUES.tolist()


# Regression D39
@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 429, 500, 501, 503])
def test_error_for_failed_request_includes_status_url_and_key(served, status):
    served.fault("status", status=status, times=None)
    store = open_store(raw(served), retry=Retry(first_wait=0))
    with pytest.raises(StorageError) as caught:
        list(store.fetch(["t/0", "t/1"]))
    message = str(caught.value)
    assert str(status) in message
    assert f"{served.url}/raw.bin" in message
    assert "t/0" in message
    assert "bytes" in message
    assert isinstance(caught.value, AccessDeniedError) == (status in (401, 403))
    assert len(served.requests_for("*")) == (5 if status in (429, 500, 503) else 1)


# Regression D40
@pytest.mark.parametrize("kind", ["html", "short"])
@pytest.mark.parametrize("form", [raw, deflated])
def test_web_page_or_short_response_raises_storage_error(served, kind, form):
    served.fault(kind, times=None)
    document = form(served)
    with pytest.raises(StorageError) as caught:
        read(document)
    length = document["t/0"][2]
    problem = {
        "html": f"the server sent a web page instead of {length} bytes at offset 0",
        "short": f"the server returned {length // 2} bytes; expected {length} at offset 0",
    }
    assert f"t/0, {served.url}" in str(caught.value)
    assert problem[kind] in str(caught.value)
    assert ("page begins with <!DOCTYPE" in str(caught.value)) == (kind == "html")


# Regression D40
def test_reference_beyond_end_of_file_raises_storage_error(served, tmp_path):
    (tmp_path / "a.bin").write_bytes(VALUES.tobytes())
    for url in (f"{served.url}/raw.bin", str(tmp_path / "a.bin")):
        for start in (20, 32, 1000):
            with pytest.raises(StorageError, match="t/1"):
                read(metadata() | {"t/0": [url, 0, 16], "t/1": [url, start, 16]})


def test_error_for_reference_beyond_end_of_file_suggests_recreating_set(tmp_path):
    (tmp_path / "a.bin").write_bytes(VALUES.tobytes())
    with pytest.raises(
        StorageError,
        match=r"\. Rewrite the object, or recreate the reference set that refers to it",
    ):
        read(metadata() | {"t/0": [str(tmp_path / "a.bin"), 1000, 16]})


# Regression D40
def test_referenced_chunk_of_wrong_length_raises_nczarr_error(tmp_path):
    (tmp_path / "a.bin").write_bytes(VALUES.tobytes())
    with pytest.raises(NczarrError, match="12"):
        read(metadata() | {"t/0": [str(tmp_path / "a.bin"), 0, 12]})


# Regression D41
def test_local_reference_set_can_reference_remote_files(served, tmp_path):
    path = tmp_path / "refs.json"
    path.write_text(json.dumps(raw(served)))
    assert read(path) == VALUES.tolist()
    assert read(path, storage_options={"remote_protocol": "http"}) == VALUES.tolist()
    assert read(path, chunks={}) == VALUES.tolist()


# Regression D42
def test_references_to_one_file_can_be_in_any_order(served, tmp_path):
    with open(f"{served.root}/many.bin", "wb") as file:
        file.write(np.arange(1000, dtype="<i4").tobytes())
    order = np.random.default_rng(5).permutation(1000)
    entries = {
        f"t/{chunk}": [f"{served.url}/many.bin", 4 * int(place), 4]
        for chunk, place in enumerate(order)
    }
    assert read(metadata(shape=[1000], chunks=[1]) | entries) == order.tolist()


# Regression D43
@pytest.mark.parametrize("engine", ["pyarrow", "fastparquet"])
@pytest.mark.filterwarnings("ignore:The 'fastparquet' engine")
def test_chunks_missing_from_parquet_set_are_filled(tmp_path, engine):
    (tmp_path / "a.bin").write_bytes(VALUES.tobytes())
    mapper = LazyReferenceMapper.create(
        str(tmp_path / "set"), fs=fsspec.filesystem("file"), record_size=3, engine=engine
    )
    for key, value in metadata(shape=[32]).items():
        mapper[key] = value
    mapper["t/5"] = [str(tmp_path / "a.bin"), 16, 16]
    mapper["t/1"] = VALUES[:4].tobytes()
    mapper.flush()
    expected = np.full(32, -1)
    expected[4:8], expected[20:24] = VALUES[:4], VALUES[4:]
    assert read(tmp_path / "set") == expected.tolist()


# Regression D47
def test_generators_of_one_trillion_keys_are_not_expanded():
    huge = {"i": {"stop": 10**6}, "j": {"stop": 10**6}}
    started = time.process_time()
    formula = generated(key="u/{{i}}.{{j}}", url="nowhere", dimensions=huge)
    assert read(formula) == [-1] * 8
    with pytest.raises(LimitError, match="max_references"):
        read(generated(key="t/{{i + j}}", url="nowhere", dimensions=huge))
    assert time.process_time() - started < 2


# Regression D47
def test_generator_over_long_dimension_uses_little_memory(tmp_path):
    (tmp_path / "a.bin").write_bytes(VALUES.tobytes())
    url = str(tmp_path / "a.bin")
    document = generated(url=url, dimensions={"i": {"stop": 10**7}})
    result = []
    assert peak_memory(lambda: result.extend(read(document))) < 20 << 20
    assert result == VALUES.tolist()


# Regression D48
@pytest.mark.parametrize("scaled", ["in the filter", "in the attributes"])
def test_fill_value_attribute_is_compared_with_values_decoded_by_filters(scaled):
    packed = np.array([0, 2, -99, 6], "<i2")
    if scaled == "in the filter":
        # As in Zarr, attributes describe the values after the filters have decoded them.
        scale = {
            "id": "fixedscaleoffset",
            "scale": 2,
            "offset": 10,
            "dtype": "<f8",
            "astype": "<i2",
        }
        entries = metadata({"_FillValue": -39.5}, shape=[4], dtype="<f8", filters=[scale])
    else:
        scale = {"scale_factor": 0.5, "add_offset": 10.0, "_FillValue": -99}
        entries = metadata(scale, shape=[4], dtype="<i2")
    entries["t/0"] = "base64:" + base64.b64encode(packed.tobytes()).decode()
    result = read(entries, mask_and_scale=True)
    np.testing.assert_array_equal(result, [10, 11, np.nan, 13])


# Regression D48
@pytest.mark.parametrize(("fill", "stored", "expected"), [(255, 255, 127.5), (100, 200, 100.0)])
def test_ambiguous_fill_value_of_scaled_array_causes_warning(fill, stored, expected):
    scale = {"id": "fixedscaleoffset", "scale": 2, "offset": 0, "dtype": "<f8", "astype": "|u1"}
    entries = metadata({"_FillValue": fill}, shape=[4], dtype="<f8", filters=[scale])
    packed = np.array([1, 2, stored, 100], "u1")
    entries["t/0"] = "base64:" + base64.b64encode(packed.tobytes()).decode()
    with pytest.warns(UserWarning, match=f"_FillValue {fill}.* {expected} is masked"):
        result = read(entries, mask_and_scale=True)
    np.testing.assert_array_equal(result, [0.5, 1, np.nan, 50])


# Regression D49
def test_nan_in_metadata_is_read_as_nan():
    text = json.dumps(metadata({"missing_value": "MARK"}, dtype="<f4", fill_value="MARK"))
    dataset = xr.open_dataset(
        json.loads(text.replace('\\"MARK\\"', "NaN")), engine="nczarr", mask_and_scale=False
    )
    assert np.isnan(dataset.t.attrs["missing_value"])
    assert np.isnan(dataset.t.values).all()
    as_object = metadata()
    as_object["t/.zattrs"] = {"_ARRAY_DIMENSIONS": ["x"], "bound": float("nan")}
    assert np.isnan(xr.open_dataset(as_object, engine="nczarr").t.attrs["bound"])


def _first_values(dataset):
    return dataset.t.values.tolist()


# Regression D50
def test_pickled_reference_set_keeps_storage_options(served, workers):
    headers = {"headers": {"Authorization": "secret"}}
    with open(f"{served.root}/refs.json", "w") as file:
        json.dump(metadata() | {"t/0": ["raw.bin", 0, 16], "t/1": ["raw.bin", 16, 16]}, file)
    dataset = xr.open_dataset(
        f"{served.url}/refs.json", engine="nczarr", storage_options=headers, chunks={}
    )
    assert dataset.t.data.compute(scheduler=workers).tolist() == VALUES.tolist()
    seen = {request.headers.get("Authorization") for request in served.requests_for("*")}
    assert seen == {"secret"}
    lazy = xr.open_dataset(f"{served.url}/refs.json", engine="nczarr", storage_options=headers)
    assert _first_values(pickle.loads(pickle.dumps(lazy))) == VALUES.tolist()


def _first_values_here_and_in_a_fork(references):
    dataset = xr.open_dataset(references, engine="nczarr", cache=False)
    return _first_values(dataset), in_a_child("fork", _first_values, dataset)


# Regression D50
def test_forked_process_can_continue_reading(served):
    result = in_a_new_interpreter(_first_values_here_and_in_a_fork, raw(served))
    assert result == (VALUES.tolist(), VALUES.tolist())
    assert len(served.requests_for("/raw.bin")) >= 2


def test_empty_names_in_reference_set_are_not_listed_as_children():
    references = {".zgroup": '{"zarr_format": 2}', "/x": "{}", "//": "{}", "a/": "{}"}
    assert list(xr.open_dataset(references, engine="nczarr")) == []


@pytest.mark.parametrize(
    ("shape", "key"),
    [((2, 4), "t/0"), ((2, 4), "t/0.0.0"), ((8,), "t/0.0"), ((), "t/0.0")],
    ids=["too few", "too many", "vector", "scalar"],
)
def test_chunk_keys_of_wrong_rank_are_rejected(shape, key):
    """kerchunk 0.2.10 stores two-dimensional arrays of small GRIB files as chunk 0."""
    document = metadata(shape=shape, chunks=shape) | {key: "a" * 4 * max(1, np.prod(shape))}
    document["t/.zattrs"] = json.dumps({"_ARRAY_DIMENSIONS": ["x", "y"][: len(shape)]})
    with pytest.raises(ReferenceSetError, match=r"t/.*: all chunk keys .* wrong number of indices"):
        read(document)


def test_leftover_chunk_key_of_wrong_rank_is_ignored():
    document = metadata() | {"t/0": "a" * 16, "t/0.0": "b" * 16}
    assert read(document)[4:] == [-1] * 4


def test_lone_surrogate_in_consolidated_metadata_is_rejected():
    with pytest.raises(ReferenceSetError, match=r"references: \.zmetadata: the inline data"):
        read(metadata() | {".zmetadata": "\ud800"})


def test_error_for_invalid_reference_dict_begins_with_store_name():
    with pytest.raises(ValueError, match=r"^references"):
        xr.open_dataset({"version": 1, "refs": [], "gen": 3}, engine="nczarr")


@pytest.mark.parametrize("url", ["{{", "{{t}}", "{{ 1 // 0 }}", "{{ x.y }}"])
def test_error_for_invalid_template_includes_key_that_uses_template(url):
    document = {"version": 1, "templates": {"t": "{{t}}"}, "refs": {"a/0": [url]}}
    with pytest.raises(NczarrError, match=r"references: a/0: "):
        xr.open_dataset(document, engine="nczarr")


@pytest.mark.parametrize("name", ["a\0b", "a\ud800b"])
def test_references_to_invalid_file_names_are_rejected(tmp_path, name):
    references = {
        key: data.decode() for key, data in plain_objects().items() if not key.endswith("0")
    }
    (tmp_path / "s.json").write_text(json.dumps(references | {"a/0": [name, 0, 16]}))
    opened = xr.open_dataset(tmp_path / "s.json", engine="nczarr")
    with pytest.raises(RefusedError, match=r"s\.json: a/0: the reference set refers to"):
        opened.load()
