"""Stores in every NCZarr layout, plain Zarr v2 from zarr-python, and stores from xarray."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr

import xr_nczarr
from tests.reading import RAW, assert_reads_as, assert_values, read, read_groups
from tests.servers import HttpServer
from tests.stores import (
    VINTAGES,
    ZARR_ARRAYS,
    Bare,
    Group,
    Var,
    array_document,
    cf_dataset,
    put,
    sample,
    spell,
    write_netcdf_c,
    write_vintage,
    write_with_zarr_python,
)

FOUR = np.arange(4, dtype="f4")
DIALECTS = {
    "4.8.0": "nczarr-4.8.0",
    "4.8.1": "nczarr-4.8.1",
    "4.9.0": "nczarr-4.8.1",
    "4.9.2": "nczarr-4.9.1",
    "4.9.3": "nczarr-4.9.3",
    "4.10": "nczarr-4.9.3",
    "dev": "nczarr-preview",
}


@pytest.mark.parametrize("release", VINTAGES)
def test_stores_from_every_netcdf_c_release_are_read_correctly(
    tmp_path: Path, release: str, way: str
) -> None:
    store = write_vintage(tmp_path / "store", sample(release), release)
    assert_reads_as(read_groups(store, way, **RAW), sample(release))


@pytest.mark.parametrize("release", ["4.8.0", "4.9.0", "4.10"])
def test_dask_workers_read_stores_from_every_netcdf_c_release(
    tmp_path: Path, release: str, workers: Any
) -> None:
    store = write_vintage(tmp_path / "store", sample(release), release)
    assert_reads_as(read_groups(store, workers, **RAW), sample(release))


@pytest.mark.parametrize(("release", "dialect"), DIALECTS.items())
def test_dialect_is_reported_in_encoding_and_by_info(
    tmp_path: Path, release: str, dialect: str
) -> None:
    store = write_vintage(tmp_path / "store", sample(release), release)
    assert xr.open_dataset(store, engine="nczarr").encoding["dialect"] == dialect
    assert xr_nczarr.info(store).dialect == dialect


@pytest.mark.parametrize("release", VINTAGES)
def test_unlistable_store_can_be_opened_through_nczarr_metadata(
    http_server: HttpServer, release: str
) -> None:
    write_vintage(Path(http_server.root) / "store", sample(release), release)
    assert_reads_as(read_groups(f"{http_server.url}/store", **RAW), sample(release))


def test_datatree_contains_all_groups(tmp_path: Path) -> None:
    content = sample("4.10")
    content.groups["g"].dims["x"] = content.dims["x"]
    del content.groups["g"].variables["own"], content.groups["g"].variables["mixed"]
    store = write_vintage(tmp_path / "store", content, "4.10")
    tree = xr.open_datatree(store, engine="nczarr", **RAW)
    assert tree.groups == ("/", "/g", "/g/deep")
    assert tree["g/deep/below"].dims == ("z", "time")
    inner = xr.open_dataset(store, engine="nczarr", group="g/deep", **RAW)
    xr.testing.assert_identical(inner, tree["g/deep"].to_dataset(inherit=False))


def test_error_for_missing_group_includes_group_name(tmp_path: Path) -> None:
    store = write_vintage(tmp_path / "store", sample("4.10"), "4.10")
    with pytest.raises(xr_nczarr.NotFoundError, match="nowhere"):
        xr.open_dataset(store, engine="nczarr", group="g/nowhere")


@pytest.mark.parametrize("release", ["4.9.0", "4.10"])
def test_stored_values_are_decoded_according_to_cf_conventions(
    tmp_path: Path, release: str, way: str
) -> None:
    opened = read(write_vintage(tmp_path / "store", sample(release), release), way)
    assert opened.letters.dims == ("x",)
    assert opened.letters.dtype == "S5"
    assert opened.letters.values.tolist() == [b"abcde", b"fgh k", b"lmnop", b"qrst "]
    np.testing.assert_allclose(opened.packed.values, [0.1, np.nan, 0.3, 0.4])
    assert opened.time.values[1] == np.datetime64("2000-01-02")
    assert opened.empty.dtype == "i2"
    assert opened.holes.encoding["_FillValue"].dtype == "f8"


def test_encoding_has_same_keys_as_with_netcdf4_engine(tmp_path: Path) -> None:
    store = write_vintage(tmp_path / "store", sample("4.10"), "4.10")
    opened = xr.open_dataset(store, engine="nczarr")
    expected = {"zlib": True, "complevel": 4, "shuffle": True, "fletcher32": False}
    expected |= {"chunksizes": (2, 3), "preferred_chunks": {"time": 2, "x": 3}}
    assert expected.items() <= opened.field.encoding.items()
    assert opened.packed.encoding["fletcher32"]
    assert opened.packed.encoding["dtype"] == np.dtype("i2")
    assert opened.big.encoding["dtype"].byteorder == ">"
    assert opened.encoding["unlimited_dims"] == {"time"}


SCALARS = {
    "no dimensions": ((), {}, "0", {"_ARRAY_DIMENSIONS": []}),
    "no dimensions at all": ((), {}, "0", {}),
    "named scalar": ((1,), {}, "0", {"_ARRAY_DIMENSIONS": ["_scalar_"]}),
    "flagged": ((1,), {}, "0", {"_nczarr_array": {"dimension_references": [], "scalar": 1}}),
    "stored as scalar": ((1,), {"_NCZARR_ARRAY": {"dimrefs": [], "storage": "scalar"}}, "0", {}),
}


@pytest.mark.parametrize("spelling", SCALARS)
def test_scalars_have_no_dimensions_in_any_layout(tmp_path: Path, spelling: str, way: str) -> None:
    shape, members, key, attributes = SCALARS[spelling]
    documents = {".zgroup": {"zarr_format": 2}, f"s/{key}": np.int32(7).tobytes()}
    documents |= {"s/.zarray": array_document(shape) | members, "s/.zattrs": attributes}
    opened = read(put(tmp_path / "store", documents), way)
    assert opened.s.dims == ()
    assert opened.s.values[()] == 7


@pytest.mark.parametrize("spelling", [False, Bare("False"), Bare("True")])
@pytest.mark.parametrize("single", [True, False])
def test_metadata_from_netcdf_c_development_versions_can_be_read(
    tmp_path: Path, spelling: Any, single: bool
) -> None:
    group = {"dimensions": {"x": {"size": 2, "unlimited": spelling}}, "arrays": ["v"], "groups": []}
    root = {"_nczarr_superblock": {"version": "2.0.0"}, "_nczarr_group": group}
    attributes = {"_nczarr_array": {"dimension_references": ["/x"], "storage": "chunked"}, "n": 3}
    attributes["_nczarr_attrs"] = {"types": {"n": "<i2"}}
    documents = {".zgroup": {"zarr_format": 2}, ".zattrs": root, "v/.zattrs": attributes}
    documents["v/.zarray"] = array_document((2,))
    if single:
        documents = {".zmetadata": {"metadata": documents, "zarr_consolidated_format": 1}}
    store = {key: spell(document) for key, document in documents.items()}
    opened = read(put(tmp_path / "store", store | {"v/0": np.arange(2, dtype="i4").tobytes()}))
    assert opened.v.dims == ("x",)
    assert opened.v.values.tolist() == [0, 1]
    assert type(opened.v.attrs["n"]) is np.int16
    assert opened.encoding["unlimited_dims"] == ({"x"} if spelling == "True" else set())


@pytest.fixture(scope="module")
def plain_zarr(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_with_zarr_python(tmp_path_factory.mktemp("plain") / "store.zarr")


@pytest.mark.parametrize("name", ZARR_ARRAYS)
def test_nczarr_engine_and_zarr_python_read_same_values(
    plain_zarr: Path, name: str, way: str
) -> None:
    others = [other for other in ZARR_ARRAYS if other != name]
    opened = read(plain_zarr, way, drop_variables=others, **RAW)[name]
    stored = zarr.open_group(plain_zarr, mode="r")[name]
    expected = np.asarray(stored[...])
    if expected.dtype.kind == "T":
        expected = expected.astype(object)
    if expected.dtype.kind == "M":
        # xarray chooses the unit of decoded times.
        opened, expected = opened.astype("M8[ns]"), expected.astype("M8[ns]")
    assert opened.dims == tuple(f"{name}_{axis}" for axis in range(expected.ndim))
    assert opened.attrs["n"] == 5
    assert_values(opened.values, expected, name)


def test_dask_workers_read_plain_zarr(plain_zarr: Path, workers: Any) -> None:
    opened = read(plain_zarr, workers, **RAW)
    for name in ("<f4", "texts", "records", "fortran_big", "scaled"):
        expected = np.asarray(zarr.open_group(plain_zarr, mode="r")[name][...])
        expected = expected.astype(object) if expected.dtype.kind == "T" else expected
        assert_values(opened[name].values, expected, name)


@pytest.mark.parametrize("consolidated", [True, False, None])
def test_nczarr_and_zarr_engines_read_xarray_stores_identically(
    tmp_path: Path, consolidated: bool | None, way: str
) -> None:
    store = tmp_path / "store.zarr"
    cf_dataset().to_zarr(store, zarr_format=2, consolidated=consolidated is not False)
    expected = xr.open_dataset(store, engine="zarr", consolidated=consolidated is not False)
    opened = read(store, way, consolidated=consolidated)
    xr.testing.assert_identical(opened, expected)
    for name, variable in expected.variables.items():
        # Engine zarr returns or records NumPy's StringDType for vlen-utf8.
        text = "T" in (variable.dtype.kind, np.dtype(variable.encoding.get("dtype")).kind)
        assert opened[name].dtype == ("O" if text else variable.dtype), name
        same = ("dtype", "scale_factor", "_FillValue", "chunks", "units", "calendar")
        for key in same:
            if key in variable.encoding and variable.ndim and not text:
                left = opened[name].encoding.get("chunksizes" if key == "chunks" else key)
                np.testing.assert_equal(left, variable.encoding[key], f"{name}.{key}")


def test_error_for_damaged_json_includes_key(tmp_path: Path) -> None:
    documents: dict[str, Any] = {".zgroup": {"zarr_format": 2}}
    documents |= {"good/.zarray": array_document((2,)), "good/0": bytes(8)}
    documents |= {"bad/.zarray": json.dumps(array_document((2,)))[:-9], "bad/0": bytes(8)}
    opened = xr.open_dataset(put(tmp_path / "store", documents), engine="nczarr")
    assert opened.good.values.tolist() == [0, 0]
    with pytest.raises(xr_nczarr.MetadataError) as caught:
        opened.bad.load()
    assert caught.value.key == "bad/.zarray"


# Regression D5
def test_character_variable_does_not_prevent_reading_other_variables(
    tmp_path: Path, way: str
) -> None:
    store = write_netcdf_c(tmp_path / "s")
    result = read(store, way)
    assert result.letters.values.tolist() == [b"abcde", b"fgh k", b"lmnop", b"qrst "]
    assert result.v_i4.values.tolist() == [0, 1, 2, 100]


# Regression D6
def test_scalar_from_netcdf_c_4_9_0_has_no_dimensions(tmp_path: Path, way: str) -> None:
    result = read(write_vintage(tmp_path / "s", sample("4.9.0"), "4.9.0"), way)
    assert (result.scalar.dims, result.scalar.item()) == ((), 3.5)


# Regression D7
def test_characters_declared_as_unicode_are_read_as_bytes(tmp_path: Path, way: str) -> None:
    content = Group({"n": 3}, {"c": Var(("/n",), np.array([*"abc"], "S1"), fill="")})
    store = write_vintage(tmp_path / "s", content, "4.9.0")
    assert json.loads((store / "c/.zarray").read_text())["dtype"] == "<U1"
    assert read(store, way).c.item() == b"abc"


# Regression D8
@pytest.mark.parametrize("release", ["4.8.1", "4.9.0", "4.9.2", "4.10", "dev"])
def test_internal_attributes_are_hidden(tmp_path: Path, release: str) -> None:
    content = Group({"x": 4}, {"v": Var(("/x",), FOUR), "w": Var(("/x",), FOUR, {"units": "m"})})
    content.attrs["title"] = "t"
    result = xr.open_dataset(write_vintage(tmp_path / "s", content, release), engine="nczarr")
    assert (result.v.attrs, result.w.attrs, result.attrs) == ({}, {"units": "m"}, {"title": "t"})


# Regression D9
def test_one_element_lists_from_netcdf_c_4_8_0_are_read_as_scalars(
    tmp_path: Path, way: str
) -> None:
    attrs = {"n": np.int16(5), "t": "text"}
    content = Group({"x": 4}, {"v": Var(("/x",), FOUR, attrs, -999, (3,))})
    store = write_vintage(tmp_path / "s", content, "4.8.0")
    (store / "v/1").unlink()
    assert json.loads((store / "v/.zarray").read_text())["fill_value"] == [-999]
    assert json.loads((store / "v/.zattrs").read_text())["n"] == [5]
    result = read(store, way).v
    assert_values(result.values, np.array([0, 1, 2, -999], "f4"), "v")
    assert (type(result.attrs["n"]), result.attrs["n"], result.attrs["t"]) == (np.int16, 5, "text")


# Regression D10
def test_dimensions_of_noxarray_stores_are_anonymous(tmp_path: Path, way: str) -> None:
    result = read(write_netcdf_c(tmp_path / "s", "nczarr,noxarray"), way, **RAW)
    anonymous = tuple(f"_Anonymous_Dimension_{size}" for size in (3, 4))
    assert result.padded_f4.dims == anonymous
    assert result.padded_f4.values.ravel().tolist() == [*range(12)]


# Regression D11
@pytest.mark.parametrize("release", ["4.8.0", "4.8.1", "4.9.2"])
def test_dimensions_are_found_without_array_dimensions_attribute(
    tmp_path: Path, way: str, release: str
) -> None:
    content = Group({"x": 4}, {"v": Var(("/x",), FOUR)})
    store = write_vintage(tmp_path / "s", content, release)
    attributes = store / "v/.zattrs"
    if attributes.exists():
        kept = json.loads(attributes.read_text())
        kept.pop("_ARRAY_DIMENSIONS", None)
        attributes.write_text(json.dumps(kept))
    assert read(store, way).v.dims == ("x",)


# Regression D12
@pytest.mark.parametrize("release", ["4.9.0", "4.9.2", "4.9.3"])
def test_variables_in_groups_can_use_inherited_dimensions(
    tmp_path: Path, way: str, release: str
) -> None:
    content = Group({"x": 4}, groups={"g": Group(variables={"v": Var(("/x",), FOUR)})})
    store = write_vintage(tmp_path / "s", content, release)
    assert b"_ARRAY_DIMENSIONS" not in (store / "g/v/.zattrs").read_bytes()
    assert read(store, way, group="g").v.dims == ("x",)


# Regression D13
@pytest.mark.parametrize("release", ["4.8.1", "4.9.2", "4.10"])
def test_dimension_shadows_inherited_dimension_with_same_name(
    tmp_path: Path, way: str, release: str
) -> None:
    inner = Group({"x": 2}, {"own": Var(("/g/x",), FOUR[:2]), "outer": Var(("/x",), FOUR)})
    content = Group({"x": 4}, {"v": Var(("/x",), FOUR)}, groups={"g": inner})
    result = read_groups(write_vintage(tmp_path / "s", content, release), way)
    assert result["/"].sizes == {"x": 4}
    assert result["/g"].own.sizes == {"x": 2}
    assert result["/g"].outer.shape == (4,)
    assert result["/g"].outer.dims != ("x",), "one dataset holds one size for a name"


NAMES = ["a b", "a.b", "é", "0", "100%", "%20", "0.0", "a+b", "#1", "x?y", "c"]


# Regression D28
def test_variables_and_groups_with_unusual_names_can_be_opened(tmp_path: Path, way: str) -> None:
    content = Group({"x": 4})
    for number, name in enumerate(NAMES):
        content.variables[name] = Var(("/x",), FOUR + number, fill=0)
        content.groups[f"g{name}"] = Group(variables={name: Var(("/x",), FOUR - number)})
    store = write_vintage(tmp_path / "s #1 100%", content, "4.10")
    result = read_groups(store, way)
    for number, name in enumerate(NAMES):
        assert_values(result["/"][name].values, FOUR + number, name)
        assert_values(result[f"/g{name}"][name].values, FOUR - number, name)


# Regression D30
def test_zero_length_unlimited_dimension_is_valid(tmp_path: Path, way: str) -> None:
    result = read(write_netcdf_c(tmp_path / "s"), way)
    assert result.none_yet.sizes == {"never": 0, "x": 4}
    assert_values(result.none_yet.values, np.zeros((0, 4)), "none_yet")
    assert "never" in result.encoding["unlimited_dims"]
