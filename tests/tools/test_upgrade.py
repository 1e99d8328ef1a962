"""`upgrade`, `consolidate` and the command `references` change no values."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import netCDF4
import numpy as np
import pytest
import xarray as xr
import zarr

import xr_nczarr
from tests.interruptions import InterruptedMapping
from tests.reading import RAW, assert_reads_as, read_groups
from tests.stores import (
    VINTAGES,
    Group,
    Size,
    Var,
    array_document,
    file_url,
    has_ncgen,
    put,
    read_objects,
    read_with_netcdf4,
    sample,
    write_netcdf_c,
    write_vintage,
)
from xr_nczarr.cli.main import main
from xr_nczarr.storage import MemoryStore
from xr_nczarr.storage.local import LocalStore


def numbers(release: str) -> Group:
    """Return variables without filters.

    Debian's build of netcdf-c 4.9.0 can therefore open them.
    """
    x = np.arange(4.0)
    root = Group({"x": 4}, {"v": Var(("/x",), x, {"units": "m"}, 0)}, {"title": "a title"})
    root.variables["scalar"] = Var((), np.array(3.5), {}, 0)
    root.variables["shorts"] = Var(("/x",), x.astype("i2"), {"n": np.int16(3)}, -1, (3,))
    root.groups["g"] = Group({"y": 2}, {"w": Var(("/g/y", "/x"), np.ones((2, 4), "f4"), {}, 0)})
    return root


@pytest.mark.parametrize("dialect", ["nczarr", "universal"])
@pytest.mark.parametrize("release", VINTAGES)
def test_netcdf_c_reads_same_values_from_upgraded_stores(
    tmp_path: Path, release: str, dialect: str
) -> None:
    content = sample(release)
    store = write_vintage(tmp_path / "store", content, release)
    chunks = {key: data for key, data in read_objects(store).items() if "/." not in f"/{key}"}
    xr_nczarr.upgrade(store, dialect)
    assert_reads_as(read_groups(store, **RAW), content)
    after = read_objects(store)
    assert {key: after[key] for key in chunks} == chunks
    assert any(".ncz" in key for key in after) == (dialect == "universal")
    with netCDF4.Dataset(file_url(store)) as root:
        result = read_with_netcdf4(root)
    assert set(content.variables) == set(result.variables)
    for name in ("v_f4", "field", "big"):
        np.testing.assert_array_equal(result.variables[name].values, content.variables[name].values)
    assert result.variables["scalar"].values == 3.5
    assert isinstance(result.dims["time"], Size) == isinstance(content.dims["time"], Size)
    if dialect == "universal":  # zarr-python does not support `>S1` and netcdf-c's shuffle
        assert (
            zarr.open(str(store))["field"][:].tolist() == content.variables["field"].values.tolist()
        )


@pytest.mark.skipif(not has_ncgen, reason="needs ncdump")
@pytest.mark.parametrize("release", VINTAGES)
def test_netcdf_c_4_9_0_reads_upgraded_universal_layout(tmp_path: Path, release: str) -> None:
    store = write_vintage(tmp_path / "store", numbers(release), release)
    xr_nczarr.upgrade(store, "universal")
    dump = ["ncdump", "-v", "v,shorts,scalar", file_url(store)]
    text = subprocess.run(dump, capture_output=True, text=True, check=True, timeout=60).stdout
    for line in ("v = 0, 1, 2, 3 ;", "shorts = 0, 1, 2, 3 ;", "scalar = 3.5 ;", "group: g {"):
        assert line in text, text


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("4.8.0", "nczarr"),
        ("4.8.0", "nczarr-4.8.1"),
        ("4.9.0", "universal"),
        ("4.9.2", "nczarr-4.8.1"),
    ],
)
def test_interrupted_upgrade_changes_no_values_and_can_be_retried(
    tmp_path: Path, before: str, after: str
) -> None:
    content = sample(before)
    original = read_objects(write_vintage(tmp_path / "store", content, before))
    done = dict(original)
    xr_nczarr.upgrade(done, after)
    changes = len(done.keys() ^ original.keys()) + sum(
        done[key] != original[key] for key in done.keys() & original.keys()
    )
    for count in range(0, changes, 7):
        objects = dict(original)
        with pytest.raises(InterruptedError):
            xr_nczarr.upgrade(InterruptedMapping(objects, count), after)
        assert_reads_as(read_groups(objects, **RAW), content)
        xr_nczarr.upgrade(objects, after)
        assert objects == done


def test_upgrade_rejects_dialect_without_unlimited_dimensions(tmp_path: Path) -> None:
    store = write_netcdf_c(tmp_path / "store")
    before = read_objects(store)
    with pytest.raises(xr_nczarr.ConflictError, match="time 3 unlimited, not time 3"):
        xr_nczarr.upgrade(store, "nczarr-4.8.1")
    assert read_objects(store) == before


def test_upgrade_rejects_fill_values_that_would_mask_values(tmp_path: Path) -> None:
    """netCDF's default fill value masks values in plain Zarr v2, but not in NCZarr."""
    dataset = xr.Dataset({"n": ("x", np.array([1, 2**32 - 1], "u4"))})
    xr_nczarr.to_nczarr(dataset, tmp_path / "store")
    before = read_objects(tmp_path / "store")
    with pytest.raises(xr_nczarr.ConflictError, match="absence of the attribute _FillValue of /n"):
        xr_nczarr.upgrade(tmp_path / "store", "zarr")
    assert read_objects(tmp_path / "store") == before


@pytest.mark.parametrize("zarr_format", [2, 3, "3-draft"])
def test_upgrade_keeps_integer_attributes_of_plain_zarr(zarr_format: int | str) -> None:
    store: dict[str, bytes] = {}
    dataset = xr.Dataset({"t": ("x", [1.5], {"n": 2, "many": [2, 3]})}, attrs={"n": 2**40})
    xr_nczarr.to_nczarr(dataset, store, zarr_format=zarr_format, dialect="zarr")
    before = dict(store)
    assert xr_nczarr.upgrade(store, "zarr").written == []
    assert store == before


def test_upgrade_of_nczarr_store_does_not_list_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = xr.DataTree.from_dict({"/a/b": xr.Dataset({"t": 1}), "/c": xr.Dataset({"t": 2})})
    xr_nczarr.to_nczarr(tree, tmp_path / "store")
    # Each listing would iterate over all keys of the store.
    monkeypatch.setattr(MemoryStore, "list_names", None)
    assert xr_nczarr.upgrade(tmp_path / "store", "universal").written


def test_upgrade_to_same_dialect_leaves_store_unchanged(tmp_path: Path) -> None:
    store = tmp_path / "store"
    xr_nczarr.to_nczarr(xr.Dataset({"a": ("x", [1.5, 2.5])}, attrs={"n": 1}), store)
    before = read_objects(store)
    assert xr_nczarr.upgrade(store).written == []
    assert read_objects(store) == before


@pytest.mark.parametrize("dialect", ["nczarr", "universal"])
def test_upgrade_keeps_fill_value_declared_only_by_attribute(tmp_path: Path, dialect: str) -> None:
    """nccopy 4.9.0 writes arrays whose fill value is only in the attribute."""
    values = np.arange(4, dtype="<i4")
    content = Group({"x": 4}, {"v": Var(("/x",), values, {"_FillValue": np.int32(2)}, fill=2)})
    store = write_vintage(tmp_path / "store", content, "4.9.0")
    document = json.loads((store / "v/.zarray").read_text())
    (store / "v/.zarray").write_text(json.dumps(document | {"fill_value": None}))
    xr_nczarr.upgrade(store, dialect)
    assert json.loads((store / "v/.zarray").read_text())["fill_value"] is None
    with netCDF4.Dataset(file_url(store)) as root:
        assert root["v"]._FillValue == 2
        assert root["v"][:].tolist() == [0, 1, None, 3]


def test_upgrade_restores_lost_dimension_names(tmp_path: Path) -> None:
    dataset = xr.Dataset({"v": ("x", ["a", "bc"]), "n": ("x", [1.5, 2.5])}, attrs={"title": "a"})
    dataset.to_zarr(tmp_path / "s", zarr_format=2, consolidated=False)
    (tmp_path / "s/.zattrs").write_text('{"yes": true, "both": [true, false]}')
    (tmp_path / "s/n/.zattrs").unlink()
    report = xr_nczarr.verify(tmp_path / "s", readers=True)
    reported = [item for item in report.findings if item.place == "/n"]
    assert "nczarr upgrade --dialect zarr" in " ".join(item.remedy for item in reported)
    xr_nczarr.upgrade(tmp_path / "s", "zarr")
    assert json.loads((tmp_path / "s/.zattrs").read_text()) == {"yes": True, "both": [True, False]}
    with xr.open_dataset(tmp_path / "s", engine="zarr", consolidated=False) as report:
        assert report["v"].values.tolist() == ["a", "bc"]
        assert report["n"].values.tolist() == [1.5, 2.5]


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_upgrade_annotates_plain_zarr_only_on_request(tmp_path: Path, zarr_format: int) -> None:
    dataset = xr.Dataset({"n": ("x", [1, 2])})
    dataset.to_zarr(tmp_path / "s", zarr_format=zarr_format, consolidated=False)
    before = read_objects(tmp_path / "s")
    for dialect in ("nczarr", "universal") if zarr_format == 2 else ("nczarr",):
        with pytest.raises(xr_nczarr.ConflictError, match=r"plain Zarr.*annotate=True"):
            xr_nczarr.upgrade(tmp_path / "s", dialect)
    assert main(["upgrade", str(tmp_path / "s")]) == 2
    assert read_objects(tmp_path / "s") == before
    assert main(["upgrade", "--annotate", str(tmp_path / "s")]) == 0
    assert xr_nczarr.info(tmp_path / "s").dialect != "zarr"


def test_dry_run_of_upgrade_lists_changes_without_making_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = write_vintage(tmp_path / "store", numbers("4.8.0"), "4.8.0")
    before = read_objects(store)
    planned = xr_nczarr.upgrade(store, dry_run=True)
    assert read_objects(store) == before
    assert main(["upgrade", "--dry-run", str(store)]) == 0
    assert read_objects(store) == before
    text = capsys.readouterr().out
    assert "nczarr-4.8.0 → nczarr-4.9.3" in text
    assert "this was a dry run, and nothing was changed" in text
    assert "\n  written: g/w/.zarray, g/w/.zattrs, " in text
    assert "\n  removed: .nczarr, " in text
    done = xr_nczarr.upgrade(store)
    assert (done.written, done.removed) == (planned.written, planned.removed)
    assert "dry run" not in str(done)
    after = read_objects(store)
    assert {key for key in after if after[key] != before.get(key)} == set(done.written)
    assert before.keys() - after.keys() == set(done.removed)


def test_dry_run_of_upgrade_takes_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = write_vintage(tmp_path / "store", numbers("4.8.0"), "4.8.0")
    for name in ("lock", "replacement_lock"):
        monkeypatch.setattr(LocalStore, name, None)
    assert xr_nczarr.upgrade(store, dry_run=True).written


def test_annotating_plain_zarr_preserves_json_and_unknown_members(tmp_path: Path) -> None:
    attributes = {"_ARRAY_DIMENSIONS": ["x"], "deep": {"a": [1, None]}, "x_list": ["a", 1]}
    members = {".zgroup": {"zarr_format": 2}, ".zattrs": {"_NCProperties": "mine"}}
    members["v/.zarray"] = array_document((2,)) | {"vendor": {"k": 1}}
    members |= {"v/.zattrs": attributes, "v/0": np.array([1, 2], "<i4").tobytes()}
    store = put(tmp_path / "store", members)
    assert xr_nczarr.upgrade(store, annotate=True).after == "nczarr-4.9.3"
    result = json.loads((store / "v/.zattrs").read_text())
    assert attributes.items() <= result.items()
    assert json.loads((store / ".zattrs").read_text())["_NCProperties"] == "mine"
    assert json.loads((store / "v/.zarray").read_text())["vendor"] == {"k": 1}
    with netCDF4.Dataset(file_url(store)) as root:
        assert root["v"][:].tolist() == [1, 2]
        assert json.loads(root["v"].deep) == {"a": [1, None]}


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_consolidate_writes_metadata_equal_to_separate_documents(
    tmp_path: Path, zarr_format: int
) -> None:
    store, dataset = tmp_path / "store", xr.Dataset({"a": ("x", [1, 2])})
    xr_nczarr.to_nczarr(dataset, store, zarr_format=zarr_format, consolidated=False)
    assert xr_nczarr.consolidate(store).nodes == 2
    xr.testing.assert_identical(xr.open_dataset(store, engine="nczarr", consolidated=True), dataset)
    xr_nczarr.info(store, consolidated="check")
    assert list(zarr.open_consolidated(str(store))) == ["a"]


def test_consolidate_refreshes_stale_metadata_in_zip_file(tmp_path: Path) -> None:
    store = str(tmp_path / "store.zip")
    xr_nczarr.to_nczarr(xr.Dataset({"a": ("x", [1, 2])}), f"file://{store}#mode=nczarr,zip")
    xr_nczarr.to_nczarr(xr.Dataset({"b": 1}), store, mode="a", consolidated=False)
    xr_nczarr.consolidate(store)
    assert {"a", "b"} <= set(xr.open_dataset(store, engine="nczarr", consolidated=True).variables)


def test_error_during_consolidation_includes_note_about_store_state() -> None:
    store = InterruptedMapping({})
    xr_nczarr.to_nczarr(xr.Dataset({"a": ("x", [1, 2])}), store, consolidated=False)
    store.max_changes = len(store.changes)
    with pytest.raises(InterruptedError) as caught:
        xr_nczarr.consolidate(store)
    assert "either the whole change or none of it" in caught.value.__notes__[0]


def test_consolidate_rejects_stores_from_netcdf_c_4_8_0(tmp_path: Path) -> None:
    store = write_vintage(tmp_path / "store", numbers("4.8.0"), "4.8.0")
    with pytest.raises(xr_nczarr.UnsupportedError, match=r"4\.8\.0"):
        xr_nczarr.consolidate(store)


def test_commands_can_upgrade_consolidate_and_create_references(tmp_path: Path, capsys) -> None:
    store = write_vintage(tmp_path / "store", numbers("4.9.0"), "4.9.0")
    assert main(["upgrade", str(store), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["before"] == "nczarr-4.8.1"
    assert main(["consolidate", str(store)]) == 0
    assert ".zmetadata contains the metadata of 6 nodes" in capsys.readouterr().out
    assert main(["references", str(store), str(tmp_path / "set.json")]) == 0
    result = xr.open_dataset(tmp_path / "set.json", engine="nczarr")
    assert result.v.values.tolist() == [0, 1, 2, 3]
    assert main(["upgrade", str(tmp_path / "nowhere")]) == 2
    assert "nczarr upgrade:" in capsys.readouterr().err


def test_plain_http_stores_cannot_be_upgraded_or_consolidated(http_server, capsys) -> None:
    write_vintage(Path(http_server.root) / "store", numbers("4.10"), "4.10")
    for command in ("upgrade", "consolidate"):
        assert main([command, f"{http_server.url}/store"]) == 2
        assert "plain HTTP is read-only" in capsys.readouterr().err


def test_reference_sets_cannot_be_upgraded_or_consolidated(tmp_path: Path, capsys) -> None:
    write_vintage(tmp_path / "store", numbers("4.10"), "4.10")
    xr_nczarr.references.write(tmp_path / "store", tmp_path / "set.json")
    for command in ("upgrade", "consolidate"):
        assert main([command, str(tmp_path / "set.json")]) == 2
        reported = capsys.readouterr().err
        assert (
            "reference sets are read-only. Run this on a machine that has the store on a local disk"
            in reported
        )
