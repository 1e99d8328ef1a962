"""What goes wrong at each request of an open and a read: right values, a retry, or an error.

Never a fill value. What a server says is not there (404) is absent by definition: a chunk of which
it says so is fill, unless ``missing_chunks="raise"``.
"""

import json

import numpy as np
import pytest
import xarray as xr

from xr_nczarr import NczarrError, to_nczarr

RETRY = {"attempts": 3, "first_wait": 0.001, "timeout_seconds": 0.2}
TRANSIENT = [("status", 429), ("status", 500), ("status", 503), ("reset", 0), ("truncate", 0)]
TRANSIENT += [("stall", 0)]
LASTING = [("status", 401), ("status", 403), ("status", 404), ("status", 416), ("short", 0)]
LASTING += [("long", 0), ("html", 0), ("ignore-range", 0), ("wrong-range", 0)]
STORES = ("v2", "v3", "references")


def values():
    field = np.arange(1.0, 13.0).reshape(3, 4)
    return xr.Dataset({"a": (("y", "x"), field)}, {"x": [1.0, 2.0, 3.0, 4.0]}, {"title": "t"})


def put(root, kind):
    """Put a store below a folder; give its name. That of v2 tells its members one by one."""
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


def read(url, **options):
    with xr.open_dataset(url, engine="nczarr", retry=RETRY, **options) as dataset:
        return dataset.load()


def assert_not_invented(found):
    """All there is has its values: with an attribute's document, names of dimensions may go."""
    for name in found.variables:
        if name in values().variables:
            np.testing.assert_array_equal(found[name].values, values()[name].values)


def outcomes(server, url, fault, status, times):
    """Read with a fault at each request in turn; give what was raised, or None."""
    server.clear()
    xr.testing.assert_identical(read(url), values())
    count = len(server.requests)
    assert count > 2
    for index in range(count):
        server.clear()
        server.fault(fault, status=status, after=index, times=times)
        try:
            found = read(url, missing_chunks="raise")
        except NczarrError as error:
            yield index, error
        else:
            assert_not_invented(found)
            yield index, None
    server.clear()


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize(("fault", "status"), TRANSIENT, ids=str)
def test_what_passes_is_tried_again_at_every_request(http_server, tmp_path, kind, fault, status):
    url = http_server.url + put(tmp_path / "served", kind)
    found = list(outcomes(http_server, url, fault, status, times=1))
    assert [index for index, error in found if error is not None] == []


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize(("fault", "status"), [*TRANSIENT[:-1], *LASTING], ids=str)
def test_what_stays_is_an_error_or_right_at_every_request(
    http_server, tmp_path, kind, fault, status
):
    url = http_server.url + put(tmp_path / "served", kind)
    found = dict(outcomes(http_server, url, fault, status, times=None))
    # A range may be cut from a whole answer, and for whole objects none is ignored.
    assert fault in ("ignore-range", "wrong-range", "long") or any(found.values())
    for error in filter(None, found.values()):
        text = str(error)
        assert http_server.url in text
        assert fault != "status" or status in (404,) or str(status) in text


@pytest.mark.parametrize("status", [401, 403, 404, 429, 500, 503])
def test_every_answer_of_s3_at_every_request(s3_server, tmp_path, status):
    put(tmp_path, "v2")
    for path in tmp_path.rglob("*"):
        if path.is_file():
            s3_server.put(f"s/{path.relative_to(tmp_path)}", path.read_bytes())
    options = {"storage_options": s3_server.storage_options, "missing_chunks": "raise"}
    xr.testing.assert_identical(read("s3://bucket/s", **options), values())
    count = len([one for one in s3_server.requests if one.method == "GET"])
    for index in range(count):
        seen = []

        def fail(request, index=index, seen=seen):
            seen.append(request)
            return status if len(seen) == index + 1 else None

        s3_server.fail, error = fail, None
        try:
            assert_not_invented(read("s3://bucket/s", **options))
        except NczarrError as raised:
            error = raised
        finally:
            s3_server.fail = None
        assert error is None or (status < 429 and "s3://bucket/s" in str(error))
        assert error is None or status == 404 or str(status) in str(error)
        assert error is not None or status not in (401, 403) or len(seen) <= index
