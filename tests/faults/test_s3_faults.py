"""Each request that changes an object store is forbidden, fails once, or fails permanently.

``NCZARR_S3_FAULTS=1`` tries all these faults at each request, in versions 2 and 3. The default run
tries one fault at every second request in version 2. For a replacement, it tries every fourth
request, and for an append of longer text every request.
"""

import itertools
import os

import numpy as np
import pytest
import xarray as xr

from tests.interruptions import Write, read_or_none
from xr_nczarr import ConflictError, NczarrError, to_nczarr

ALL = bool(os.environ.get("NCZARR_S3_FAULTS"))
ENCODING = {"a": {"chunks": (4,)}}
RETRY = {"first_wait": 0.001}
CLIENTS = {
    # Otherwise, botocore would wait between its own retries.
    "fsspec": {"config_kwargs": {"retries": {"total_max_attempts": 1}}},
    "obstore": {"client": "obstore"},
}


def values(start, stop, sign=1):
    n = np.arange(start, stop)
    return xr.Dataset({"a": ("t", sign * (n + 1.0))}, {"t": n})


def named(start, stop, name):
    """Return a dataset with strings that NCZarr stores with a fixed width."""
    return values(start, stop).assign(s=("t", np.array([name] * (stop - start), object)))


OLD = values(0, 6)
CREATE = Write(OLD, OLD, options={"encoding": ENCODING, "unlimited_dims": "t"})
LONGER_TEXT = named(6, 9, "longer")
WRITES = {
    "create": CREATE,
    "append": Write(values(6, 9), values(0, 9), OLD, {"append_dim": "t"}),
    "append_longer_text": Write(
        LONGER_TEXT,
        xr.concat([named(0, 6, "ab"), LONGER_TEXT], "t"),
        named(0, 6, "ab"),
        {"append_dim": "t"},
    ),
    "replace": Write(values(0, 3, -1), values(0, 3, -1), OLD, {"mode": "w"}),
    "region": Write(
        values(0, 6, -1).drop_vars("t"), OLD.assign(a=-OLD.a), OLD, {"region": {"t": slice(0, 6)}}
    ),
}
FAULTS = [(403, 1000), (500, 1), (500, 1000)]  # the status, and the number of failing requests


def is_change(request):
    return request.method in ("PUT", "DELETE", "POST")


def found(server):
    return read_or_none({key.partition("/")[2]: data for key, data in server.objects().items()})


@pytest.mark.parametrize("version", [2, 3] if ALL else [2])
@pytest.mark.parametrize("action", WRITES)
@pytest.mark.parametrize("client", CLIENTS)
def test_failed_s3_request_leaves_store_in_old_or_new_state(s3_server, client, action, version):
    write, original = WRITES[action], {}
    target = f"{s3_server.url}/s"
    options = CLIENTS[client] | s3_server.storage_options | {"retry": RETRY}
    options = {"storage_options": options, "zarr_format": version}
    if write.before is not None:
        to_nczarr(write.before, original, zarr_format=version, **CREATE.options)
        original = {f"s/{key}": data for key, data in original.items()}
    s3_server.restore(original)
    s3_server.clear()
    write.run(target, **options)
    whole = s3_server.objects()
    count = sum(map(is_change, s3_server.requests))
    assert found(s3_server).identical(write.after)
    step = 1 if action == "append_longer_text" else 2 if count < 15 else 4
    some = zip(range(0, count, step), itertools.cycle(FAULTS))
    for n, (status, times) in itertools.product(range(count), FAULTS) if ALL else some:
        s3_server.restore(original)
        changes = itertools.count()

        def fail(request, failing=range(n, n + times), status=status, changes=changes):
            return status if is_change(request) and next(changes) in failing else None

        s3_server.fail, raised = fail, None
        try:
            write.run(target, **options)
        except NczarrError as error:
            raised = error
        finally:
            s3_server.fail = None
        # On a busy machine, the first write may have repeated a request.
        assert (raised is None) == (times == 1 or next(changes) <= n)
        left = found(s3_server)
        if raised is not None:
            assert str(status) in str(raised)
            assert s3_server.url in str(raised)
            reported = str(raised).replace("Try again later", "")
            assert "again" in reported or "the writer lock" in reported or n == 0
            if action == "region":
                assert [*np.sign(left.a.values)] in [
                    [a] * 4 + [b] * 2 for a in (1, -1) for b in (1, -1)
                ]
                xr.testing.assert_identical(abs(left), write.before)
            elif action != "replace" or left is not None:
                write.check(left)
            write.rerun(target, left, **options)
        assert s3_server.objects() == whole


@pytest.mark.parametrize("client", CLIENTS)
def test_append_is_rejected_if_another_writer_acquires_lock_first(s3_server, client):
    to_nczarr(values(0, 3), original := {})
    s3_server.restore({f"s/{key}": data for key, data in original.items()})
    key, puts = "s/.nczarr-writer.lock", itertools.count()
    s3_server.put(key, b"first")

    def replace_lock(request):
        if request.path == f"/{s3_server.bucket}/{key}":
            if request.method == "GET" and s3_server.objects().get(key) == b"first":
                s3_server._backend().delete_object(s3_server.bucket, key)  # the first writer ends
            elif request.method == "PUT" and next(puts) == 1:
                s3_server._backend().put_object(s3_server.bucket, key, b"second")

    s3_server.fail = replace_lock
    with pytest.raises(ConflictError, match="another write to this store is in progress"):
        to_nczarr(
            values(3, 6),
            f"{s3_server.url}/s",
            append_dim="t",
            storage_options=CLIENTS[client] | s3_server.storage_options,
        )
    assert s3_server.objects()[key] == b"second"
