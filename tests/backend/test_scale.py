"""The cost of an operation, in function calls, depends only on the amount of data that it uses."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import xr_nczarr
from tests.stores import write_consolidated


def calls(work: Callable[[], Any]) -> int:
    """Return the number of function calls that `work` makes."""
    count = 0

    def counted(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    work()  # one-time imports and compilations do not count
    sys.setprofile(counted)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("action", ["open_dataset", "open_groups", "info"])
@pytest.mark.parametrize("kind", ["variables", "groups"])
def test_opening_cost_grows_linearly_with_number_of_variables_and_groups(tmp_path, kind, action):
    actions: dict[str, Callable[[str], Any]] = {
        "open_dataset": lambda path: xr.open_dataset(path, engine="nczarr", chunks=None),
        "open_groups": lambda path: xr.open_groups(path, engine="nczarr"),
        "info": xr_nczarr.info,
    }
    name = "g{}/v" if kind == "groups" else "v{}"
    counts = []
    for size in (100, 1000):
        path = write_consolidated(
            tmp_path / str(size), {name.format(item): 10 for item in range(size)}
        )
        counts.append(calls(lambda path=path: actions[action](path)))
    assert counts[1] < 10.5 * counts[0]


@pytest.mark.parametrize("action", ["open", "point", "stretch", "info", "explain", "verify"])
def test_cost_of_operations_is_independent_of_array_size(tmp_path, action):
    actions: dict[str, Callable[[str, xr.Dataset], Any]] = {
        "open": lambda path, _: xr.open_dataset(path, engine="nczarr", chunks=None),
        "point": lambda _, data: data["v"][567].values,
        "stretch": lambda _, data: data["v"][15:3005].values,
        "info": lambda path, _: xr_nczarr.info(path),
        "explain": lambda path, _: xr_nczarr.explain(path, {"t": slice(15, 3005)}),
        "verify": lambda path, _: xr_nczarr.verify(path, sample=5),
    }
    counts = []
    for size in (10**5, 10**9):
        path = write_consolidated(tmp_path / str(size), {"v": size})
        Path(path, "v").mkdir()
        np.arange(10, dtype="f4").tofile(f"{path}/v/56")
        data = xr.open_dataset(path, engine="nczarr", chunks=None)
        counts.append(calls(lambda path=path, data=data: actions[action](path, data)))
    assert counts[1] < 1.1 * counts[0]


def test_cost_of_reading_chunk_is_independent_of_record_file_size(tmp_path):
    pandas = pytest.importorskip("pandas")
    np.arange(10, dtype="f4").tofile(tmp_path / "data.bin")
    counts = []
    for size in (10**3, 10**5):
        path = Path(write_consolidated(tmp_path / f"{size}", {"v": 10 * size}))
        document = json.loads((path / ".zmetadata").read_text())
        document = {"metadata": document["metadata"], "record_size": size}
        (path / ".zmetadata").write_text(json.dumps(document))
        (path / ".zgroup").unlink()
        (path / "v").mkdir()
        columns = {"path": [str(tmp_path / "data.bin")] * size, "offset": 0, "size": 40}
        pandas.DataFrame({**columns, "raw": None}).to_parquet(path / "v/refs.0.parq")
        data = xr.open_dataset(path, engine="nczarr", chunks=None)
        assert data["v"][5005].item() == 5
        counts.append(calls(lambda data=data: data["v"][5005].values))
    assert counts[1] < 1.1 * counts[0]
