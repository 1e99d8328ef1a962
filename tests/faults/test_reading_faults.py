"""A fault at each request of opening and reading: correct values, a retry, or an error.

A fault never becomes a fill value. Objects that a server reports missing (404) are absent by
definition: such chunks are read as fill values unless ``missing_chunks="raise"``.
"""

import json

import fsspec
import numpy as np
import pytest
import xarray as xr
from fsspec.implementations.reference import LazyReferenceMapper

from xr_nczarr import NczarrError, StorageError, to_nczarr
from xr_nczarr.hierarchy.fetching import similar_stores

# A coordinate that cannot be read is opened with a warning and raises an error when loaded.
pytestmark = pytest.mark.filterwarnings(
    "ignore:/x (was not decoded|has no index):xarray.SerializationWarning"
)

RETRY = {"attempts": 3, "first_wait": 0.001, "timeout_seconds": 0.2}
PATIENT = {**RETRY, "attempts": 2, "timeout_seconds": 10}
GIVE_UP = {**PATIENT, "timeout_seconds": 0.05}
TRANSIENT = [("status", 429), ("status", 500), ("status", 503), ("reset", 0), ("truncate", 0)]
SILENT = [("stall", 0), ("silence", 0), ("pause", 0)]
TRANSIENT += SILENT
LASTING = [("status", 401), ("status", 403), ("status", 404), ("status", 416), ("short", 0)]
LASTING += [("long", 0), ("html", 0), ("ignore-range", 0), ("wrong-range", 0)]
STORES = ("v2", "v3", "references")
CLIENTS = ("fsspec", "obstore")


def values():
    field = np.arange(1.0, 13.0).reshape(3, 4)
    return xr.Dataset({"a": (("y", "x"), field)}, {"x": [1.0, 2.0, 3.0, 4.0]}, {"title": "t"})


def put(root, kind):
    """Write a store in a folder and return its name. The v2 store is not consolidated."""
    version = 3 if kind == "v3" else 2
    shards = {"shards": (3, 4)} if kind == "v3" else {}
    encoding = {"a": {"chunks": (3, 2), **shards}}
    objects = {}
    to_nczarr(values(), objects, encoding=encoding, zarr_format=version, consolidated=kind != "v2")
    objects = {key: bytes(data) for key, data in objects.items()}
    if kind == "references":
        data, references = b"", {}
        for key, part in objects.items():
            if key.rpartition("/")[2].startswith("."):
                references[key] = part.decode()
            else:
                references[key] = ["data.bin", len(data), len(part)]
                data += part
        objects = {"data.bin": data, "set.json": json.dumps(references).encode()}
    for key, data in objects.items():
        path = root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return "/set.json" if kind == "references" else ""


def put_ranged(root, kind):
    """Write a store whose chunks are read by byte ranges, and return its name."""
    if kind == "references":
        return put(root, kind)
    if kind == "shards":
        encoding = {"a": {"chunks": (3, 1), "shards": (3, 4)}}
        to_nczarr(values(), root / "store", zarr_format=3, encoding=encoding)
        return "/store"
    if kind == "zip":
        to_nczarr(values(), root / "store.zip", encoding={"a": {"chunks": (3, 2)}})
        return "/store.zip"
    put(root, "references")
    files = fsspec.filesystem("file")
    records = LazyReferenceMapper.create(f"{root}/records", fs=files, engine="pyarrow")
    references = json.loads((root / "set.json").read_text())
    for key in sorted(references, key=lambda key: ".z" not in key):
        records[key] = references[key]
    records.flush()
    return "/records"


def read_part(url, client):
    """Read only a part of each object."""
    options = {"retry": RETRY, "client": client}
    with xr.open_dataset(url, engine="nczarr", storage_options=options) as dataset:
        return dataset.isel(x=slice(1)).load()


@pytest.mark.parametrize("fault", ["wide-range", "long"])
@pytest.mark.parametrize("kind", ["shards", "references", "zip", "records"])
@pytest.mark.parametrize("client", CLIENTS)
def test_response_larger_than_requested_range_is_trimmed(
    http_server, tmp_path, kind, fault, client
):
    url = http_server.url + put_ranged(tmp_path / "served", kind)
    http_server.clear()
    http_server.fault(fault, times=None)
    xr.testing.assert_identical(read_part(url, client), values().isel(x=slice(1)))
    assert any(request.range for request in http_server.requests)


@pytest.mark.parametrize("fault", ["more-range", "no-range", "far-range", "wrong-range"])
@pytest.mark.parametrize("kind", ["shards", "references", "zip", "records"])
@pytest.mark.parametrize("client", CLIENTS)
def test_response_with_wrong_range_raises_storage_error(http_server, tmp_path, kind, fault, client):
    url = http_server.url + put_ranged(tmp_path / "served", kind)
    http_server.clear()
    http_server.fault(fault, times=None)
    with pytest.raises(StorageError, match="the server sent"):
        read_part(url, client)


def read(url, *, retry=RETRY, storage_options=None, **options):
    storage_options = {**(storage_options or {}), "retry": retry}
    options["storage_options"] = storage_options
    with xr.open_dataset(url, engine="nczarr", **options) as dataset:
        return dataset.load()


def assert_values_are_stored_values(result):
    """Check the values of all variables, but not the names of their dimensions.

    If the attributes cannot be read, these names are not known.
    """
    for name in result.variables:
        if name in values().variables:
            np.testing.assert_array_equal(result[name].values, values()[name].values)


def outcomes(server, url, client, fault, status, times):
    """Read with a fault at each request in turn; yield its index and the error, or None."""
    server.clear()
    storage_options = {"client": client}
    xr.testing.assert_identical(read(url, storage_options=storage_options), values())
    count = len(server.requests)
    assert count > 2
    lasting = GIVE_UP if (fault, status) in SILENT else PATIENT
    for index in range(count):
        server.clear()
        server.fault(fault, status=status, after=index, times=times)
        try:
            opened = read(
                url,
                storage_options=storage_options,
                missing_chunks="raise",
                retry=RETRY if times else lasting,
            )
        except NczarrError as error:
            yield index, error
        else:
            assert_values_are_stored_values(opened)
            yield index, None
    server.clear()


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize(("fault", "status"), TRANSIENT, ids=str)
def test_every_request_is_retried_after_transient_fault(
    http_server, tmp_path, client, kind, fault, status
):
    url = http_server.url + put(tmp_path / "served", kind)
    result = list(outcomes(http_server, url, client, fault, status, times=1))
    assert [index for index, error in result if error is not None] == []


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize(("fault", "status"), [*TRANSIENT, *LASTING], ids=str)
def test_permanent_fault_during_any_request_raises_error_or_is_harmless(
    http_server, tmp_path, client, kind, fault, status
):
    url = http_server.url + put(tmp_path / "served", kind)
    result = dict(outcomes(http_server, url, client, fault, status, times=None))
    # A range can be cut from a complete response, and requests for complete objects have no range.
    assert fault in ("ignore-range", "wrong-range", "long") or any(result.values())
    for error in filter(None, result.values()):
        text = str(error)
        assert http_server.url in text
        assert fault != "status" or status in (404,) or str(status) in text


PASSING = [429, 500, 503, "reset", "truncate", "silence"]


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize(
    "fault", [*PASSING, 401, 403, 404, 416, "short", "long", "html", "ignore-range"]
)
def test_every_failing_s3_request_is_retried_or_raises_error(
    s3_server, tmp_path, client, fault, lasting
):
    put(tmp_path / "s", "v3")
    url = s3_server.upload(tmp_path / "s", "s")
    storage_options = s3_server.storage_options | {"client": client}
    options = {"storage_options": storage_options, "missing_chunks": "raise"}
    patience = 10 if fault != "silence" else 0.1 if lasting else 1
    retry = {**(GIVE_UP if lasting else RETRY), "timeout_seconds": patience}
    s3_server.clear()
    xr.testing.assert_identical(read(url, **options, retry={}), values())
    count = len(s3_server.requests)
    assert count > 4
    for index in range(count):
        seen = []

        def fail(request, index=index, seen=seen):
            seen.append(request)
            return fault if len(seen) == index + 1 or (lasting and len(seen) > index) else None

        similar_stores.clear()  # otherwise, later reads would send fewer requests
        s3_server.fail, error = fail, None
        try:
            opened = read(url, **options, retry=retry)
        except NczarrError as raised:
            error = raised
        else:
            assert_values_are_stored_values(opened)
        finally:
            s3_server.fail = None
        assert lasting or fault not in PASSING or error is None
        if error is not None:
            assert url in str(error)
            assert not isinstance(fault, int) or fault == 404 or str(fault) in str(error)
        # Two attempts for each concurrent request; aiohttp also repeats a request if a reused
        # connection broke.
        assert len(seen) - index <= 4 * count
        if lasting and fault not in ("long", "ignore-range"):
            assert error is not None
