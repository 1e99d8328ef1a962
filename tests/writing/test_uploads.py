"""The pool of uploads limits the bytes in flight, and raises errors before the write ends."""

import pickle
import threading

import pytest

from xr_nczarr.writing.chunk_writes import Uploads

MIB = 1 << 20


def test_total_size_of_concurrent_uploads_is_limited():
    uploads, meeting = Uploads(8), threading.Barrier(2, timeout=60)
    lock, running, most = threading.Lock(), set(), []

    def work(number):
        with lock:
            running.add(number)
            most.append(len(running))
        meeting.wait()  # two uploads of 25 MiB fit into 64 MiB
        with lock:
            running.remove(number)

    for number in range(20):
        uploads.submit(work, number, 25 * MIB)
    uploads.finish()
    assert len(most) == 20
    assert max(most) == 2


def test_upload_above_size_limit_runs_alone():
    uploads, done = Uploads(8), []
    for number in range(3):
        uploads.submit(done.append, number, 1000 * MIB)
    uploads.finish()
    assert done == [0, 1, 2]


def test_first_upload_error_stops_later_uploads():
    uploads, done = Uploads(2), []

    def fail(number):
        raise ValueError(f"number {number}")

    uploads.submit(fail, 0, 300 * MIB)
    with pytest.raises(ValueError, match="number 0"):
        uploads.submit(done.append, 1, 300 * MIB)
    with pytest.raises(ValueError, match="number 0"):
        uploads.finish()
    uploads.end()
    assert done == []
    with pytest.raises(RuntimeError, match="has already ended"), uploads:
        pass


def test_unpickled_upload_task_is_rejected_if_its_write_has_ended():
    task, other = pickle.dumps(Uploads(8)), pickle.dumps(Uploads(8))
    pickle.loads(task).end()
    with pytest.raises(RuntimeError, match="has already ended"), pickle.loads(task):
        pass
    with pickle.loads(other):
        pass
