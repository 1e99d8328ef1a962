"""The progress display of long operations."""

import sys

import numpy as np
import pytest
import xarray as xr
from tqdm import tqdm

import xr_nczarr
from tests.reading import read
from tests.writes import example
from xr_nczarr import to_nczarr
from xr_nczarr.progress import Progress


@pytest.fixture
def store():
    objects = {}
    dataset = xr.Dataset({"v": ("x", np.arange(8.0))})
    xr_nczarr.to_nczarr(dataset, objects, encoding={"v": {"chunks": 2}})
    return objects


def test_progress_shows_percentage_and_rate(capsys):
    with Progress(True, 2_000_000) as progress:
        progress.advance(500_000)
        progress.advance(1_500_000)
    shown = capsys.readouterr().err.rstrip("\n").rpartition("\r")[2]
    assert "100%" in shown
    assert "B/s" in shown


def test_progress_without_total_shows_count(capsys):
    with Progress(True, None, " keys") as progress:
        assert [*progress.count("abc")] == ["a", "b", "c"]
    shown = capsys.readouterr().err.rstrip("\n").rpartition("\r")[2]
    assert "3 keys" in shown
    assert "%" not in shown


def test_warning_replaces_progress_bar_if_tqdm_is_missing(store, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with pytest.warns(UserWarning, match="tqdm is not installed"):
        xr_nczarr.copy(store, tmp_path / "copy", progress=True)
    assert capsys.readouterr().err == ""
    assert read(tmp_path / "copy").equals(read(store))


def test_progress_of_failed_operation_does_not_reach_100_percent(capsys):
    def fail():
        with Progress(True, 100) as progress:
            progress.advance(50)
            raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011
        fail()
    assert "100%" not in capsys.readouterr().err


def test_dask_workers_report_progress_to_client(workers):
    with workers.as_current(), Progress(True, 10) as progress:
        workers.gather([workers.submit(progress.advance, n, pure=False) for n in (3, 4)])
        events = workers.get_events(progress._topic)
    assert sorted(count for _, count in events) == [3, 4]


@pytest.mark.parametrize(
    "operation",
    [
        lambda store, path: xr_nczarr.copy(store, path / "copy", progress=True),
        lambda store, path: xr_nczarr.copy(store, path / "copy", chunks={"x": 4}, progress=True),
        lambda store, path: xr_nczarr.verify(store, progress=True),
    ],
    ids=["copy as bytes", "copy in other chunks", "verify"],
)
def test_progress_of_copy_and_verify_reaches_100_percent(operation, store, tmp_path, capsys):
    operation(store, tmp_path)
    assert "100%" in capsys.readouterr().err


def test_listing_objects_and_writing_references_show_progress_counts(store, tmp_path, capsys):
    xr_nczarr.info(store, progress=True)
    assert f"{len(store)} objects" in capsys.readouterr().err
    xr_nczarr.copy(store, tmp_path / "copy")
    xr_nczarr.references.write(tmp_path / "copy", tmp_path / "set.json", progress=True)
    assert " references" in capsys.readouterr().err


def test_consolidate_shows_number_of_documents_read(tmp_path, capsys):
    datasets = {f"/g{number}": xr.Dataset({"v": ("x", [1.0])}) for number in range(5)}
    xr_nczarr.to_nczarr(xr.DataTree.from_dict(datasets), tmp_path / "s")
    documents = [*(tmp_path / "s").rglob(".z*")]
    xr_nczarr.consolidate(tmp_path / "s", progress=True)
    shown = capsys.readouterr().err.rstrip("\n").rpartition("\r")[2]
    assert f"{len(documents)} documents" in shown
    xr_nczarr.consolidate(tmp_path / "s")
    assert capsys.readouterr().err == ""


def test_progress_is_not_shown_by_default(store, tmp_path, capsys):
    xr_nczarr.verify(store)
    xr_nczarr.info(store)
    xr_nczarr.copy(store, tmp_path / "copy")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("chunks", [None, {"t": 2}], ids=["numpy", "dask"])
def test_progress_shows_total_bytes_of_all_variables(tmp_path, capsys, chunks):
    dataset = example() if chunks is None else example().chunk(chunks)
    to_nczarr(dataset, tmp_path / "store", progress=True)
    shown = capsys.readouterr().err.rpartition("\r")[2]
    assert "100%" in shown
    size = tqdm.format_sizeof(dataset.nbytes)
    assert f" {size}/{size} [" in shown


def test_progress_bar_reaches_100_percent_with_distributed_client(tmp_path, workers, capfd):
    with workers.as_current():
        to_nczarr(example().chunk(t=2), tmp_path / "store", progress=True)
    shown, others = capfd.readouterr()[::-1]
    assert "100%" in shown.rpartition("\r")[2]
    assert others == ""
    assert read(tmp_path / "store").equals(example())
