"""Bugs of other readers of NCZarr and Zarr v2: D1 to D34 in regressions.md."""

from __future__ import annotations

import functools
import json
import shutil
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import Any

import netCDF4
import numcodecs
import numpy as np
import obstore.store
import pytest
import xarray as xr

import xr_nczarr
from tests.reading import RAW, WAYS, assert_values, read, read_groups
from tests.servers import HttpServer
from tests.stores import (
    Group,
    Size,
    Var,
    array_document,
    file_url,
    put,
    sample,
    shuffled,
    spell,
    write_netcdf_c,
    write_vintage,
)
from xr_nczarr.codecs import ShardIndex

FOUR = np.arange(4, dtype="f4")
F8_FILL = netCDF4.default_fillvals["f8"]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    """Return a way of reading: eagerly or by threaded dask."""
    return str(request.param)


def one_array(
    path: Path,
    zarray: dict[str, Any],
    chunks: dict[str, bytes],
    attrs: Any = None,
    *,
    nczarr: bool = True,
) -> Path:
    """Write a store with the variable ``v``, annotated as by netcdf-c 4.10 if `nczarr` is set."""
    names = [f"d{axis}" for axis in range(len(zarray["shape"]))]
    sizes = dict(zip(names, zarray["shape"], strict=True))
    own: dict[str, Any] = {"_ARRAY_DIMENSIONS": names}
    root: dict[str, Any] = {}
    if nczarr:
        own["_nczarr_array"] = {"dimension_references": [f"/{n}" for n in names]}
        root["_nczarr_group"] = {"dimensions": sizes, "arrays": ["v"], "groups": []}
        root["_nczarr_superblock"] = {"version": "2.0.0"}
    attributes = attrs if isinstance(attrs, str) else (attrs or {}) | own
    documents = {".zgroup": {"zarr_format": 2}, ".zattrs": root}
    documents |= {"v/.zarray": zarray, "v/.zattrs": attributes}
    return put(path, documents | {f"v/{key}": chunk for key, chunk in chunks.items()})


def store_with_good_array(path: Path, **broken: dict[str, Any]) -> Path:
    """Write a plain Zarr group with the array ``good`` and other arrays."""
    documents: dict[str, Any] = {".zgroup": {"zarr_format": 2}}
    for name, document in {"good": array_document((2,)), **broken}.items():
        documents[f"{name}/.zarray"] = document
        documents[f"{name}/.zattrs"] = {"_ARRAY_DIMENSIONS": ["x"] * len(document["shape"])}
        documents[f"{name}/0"] = np.array([5, 6], "i4").tobytes()
    return put(path, documents)


# Regression D1
@pytest.mark.parametrize("elementsize", [0, 4, 7])
def test_shuffle_uses_dtype_item_size(tmp_path: Path, way: str, elementsize: int) -> None:
    codecs = {"filters": [{"id": "shuffle", "elementsize": elementsize}]}
    codecs |= {"compressor": {"id": "zlib", "level": 4}}
    chunk = zlib.compress(shuffled(FOUR.tobytes(), 4))
    store = one_array(tmp_path / "s", array_document((4,), "<f4", **codecs), {"0": chunk})
    assert_values(read(store, way).v.values, FOUR, "v")


# Regression D2
def test_compression_levels_and_element_sizes_can_be_strings(tmp_path: Path, way: str) -> None:
    codecs = {"filters": [{"id": "shuffle", "elementsize": "0"}]}
    codecs |= {"compressor": {"id": "zlib", "level": "4"}}
    chunk = zlib.compress(shuffled(FOUR.tobytes(), 4))
    store = one_array(tmp_path / "s", array_document((4,), "<f4", **codecs), {"0": chunk})
    assert_values(read(store, way).v.values, FOUR, "v")


# Regression D3
@pytest.mark.parametrize("width", [5, 11, 128])
def test_strings_are_unshuffled_as_eight_byte_elements(
    tmp_path: Path, way: str, width: int
) -> None:
    words = np.array(["a", "", "bcde", "é"], object)
    data = np.array([word.encode() for word in words], f"S{width}").tobytes()
    codecs = {"filters": [{"id": "shuffle", "elementsize": 0}], "fill_value": ""}
    document = array_document((4,), f"|S{width}", **codecs)
    store = one_array(tmp_path / "s", document, {"0": shuffled(data, 8)})
    assert_values(read(store, way).v.values, words, "v")


# Regression D4
def test_shuffle_does_not_move_incomplete_elements(tmp_path: Path, way: str) -> None:
    # The length of zlib's output need not be a multiple of the element size, 4 bytes.
    inner = zlib.compress(FOUR.tobytes() * 4, 1)
    assert len(inner) % 4, "the test needs a tail"
    codecs = {"filters": [{"id": "zlib", "level": 1}, {"id": "shuffle", "elementsize": 4}]}
    document = array_document((16,), "<f4", **codecs)
    store = one_array(tmp_path / "s", document, {"0": shuffled(inner, 4)})
    assert_values(read(store, way).v.values, np.tile(FOUR, 4), "v")


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
def test_characters_from_netcdf_c_4_9_0_are_one_byte_each(tmp_path: Path, way: str) -> None:
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
def test_netcdf_c_4_8_0_store_opens_with_typed_attributes(tmp_path: Path, way: str) -> None:
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
def test_stores_written_with_noxarray_have_anonymous_dimensions(tmp_path: Path, way: str) -> None:
    result = read(write_netcdf_c(tmp_path / "s", "nczarr,noxarray"), way, **RAW)
    anonymous = tuple(f"_Anonymous_Dimension_{size}" for size in (3, 4))
    assert result.padded_f4.dims == anonymous
    assert result.padded_f4.values.ravel().tolist() == [*range(12)]


# Regression D11
@pytest.mark.parametrize("release", ["4.8.0", "4.8.1", "4.9.2"])
def test_dimensions_do_not_require_array_dimensions_attribute(
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
def test_variables_in_groups_find_inherited_dimensions(
    tmp_path: Path, way: str, release: str
) -> None:
    content = Group({"x": 4}, groups={"g": Group(variables={"v": Var(("/x",), FOUR)})})
    store = write_vintage(tmp_path / "s", content, release)
    assert b"_ARRAY_DIMENSIONS" not in (store / "g/v/.zattrs").read_bytes()
    assert read(store, way, group="g").v.dims == ("x",)


# Regression D13
@pytest.mark.parametrize("release", ["4.8.1", "4.9.2", "4.10"])
def test_dimension_shadows_inherited_dimension_of_same_name(
    tmp_path: Path, way: str, release: str
) -> None:
    inner = Group({"x": 2}, {"own": Var(("/g/x",), FOUR[:2]), "outer": Var(("/x",), FOUR)})
    content = Group({"x": 4}, {"v": Var(("/x",), FOUR)}, groups={"g": inner})
    result = read_groups(write_vintage(tmp_path / "s", content, release), way)
    assert result["/"].sizes == {"x": 4}
    assert result["/g"].own.sizes == {"x": 2}
    assert result["/g"].outer.shape == (4,)
    assert result["/g"].outer.dims != ("x",), "one dataset holds one size for a name"


TEXTS = ("001", "1.10", "-5", "TRUE", "nan", "+5", "0x10", "1.", "Infinity", "1e5", "-0", "true")


# Regression D14
def test_text_resembling_json_is_read_unchanged(tmp_path: Path) -> None:
    store = tmp_path / "s"
    with netCDF4.Dataset(file_url(store), "w") as dataset:
        for number, text in enumerate(TEXTS):
            dataset.setncattr(f"t{number}", text)
        dataset.createDimension("x", 2)
        dataset.createVariable("v", "i4", ("x",)).setncatts({"a": "001", "b": "1."})
    assert b'"t0": 001,' in (store / ".zattrs").read_bytes()
    result = xr.open_dataset(store, engine="nczarr")
    assert tuple(result.attrs.values()) == TEXTS
    assert result.v.attrs == {"a": "001", "b": "1."}


# Regression D15
def test_bare_nan_and_infinity_attributes_are_numbers(tmp_path: Path) -> None:
    for recorded in ({"a": "<f8", "b": "<f4"}, {}):
        own = {"a": float("nan"), "b": [float("inf"), float("-inf"), 1.5]}
        own |= {"_NCZARR_ATTR": {"types": recorded}}
        store = store_with_good_array(tmp_path / f"s{len(recorded)}")
        put(store, {".zattrs": spell(own, quoted_nan=False)})
        assert b'"a": NaN' in (store / ".zattrs").read_bytes()
        result = xr.open_dataset(store, engine="nczarr").attrs
        kind = "f4" if recorded else "f8"
        assert_values(np.asarray(result["a"]), np.array(np.nan, "f8"), "a")
        assert_values(np.asarray(result["b"]), np.array([np.inf, -np.inf, 1.5], kind), "b")


# Regression D16
@pytest.mark.parametrize("literal", ['{"a": 1}', "[0.,0.,1.]", '{"b":  [1,2 ]}', "null", "[]"])
def test_json_in_text_attribute_is_read_as_json_text(tmp_path: Path, literal: str) -> None:
    store = store_with_good_array(tmp_path / "s")
    types = '"_nczarr_attr": {"types": {"t": ">S1"}}'
    put(store, {".zattrs": f'{{"t": {literal}, {types}}}'})
    assert xr.open_dataset(store, engine="nczarr").attrs == {"t": literal}


# Regression D17
def test_escaped_characters_are_decoded(tmp_path: Path) -> None:
    store = store_with_good_array(tmp_path / "s")
    put(store, {".zattrs": '{"t": "\\u00e9\\ud83d\\ude00", "r": "é"}'})
    assert xr.open_dataset(store, engine="nczarr").attrs == {"t": "é😀", "r": "é"}


SPELLINGS = [
    ("|i4", 7, np.array([1, 2], "i4"), 7),
    ("|b1", True, np.array([True, False]), True),
    (">f8", "NaN", np.array([1, 2], ">f8"), np.nan),
    ("<f4", "Infinity", np.array([1, 2], "f4"), np.inf),
    ("<f4", "-Infinity", np.array([1, 2], "f4"), -np.inf),
    ("<f4", 9.96921e36, np.array([1, 2], "f4"), np.float32(9.96921e36)),
    ("<u8", 18446744073709551614, np.array([1, 2], "u8"), 18446744073709551614),
]


# Regression D18
@pytest.mark.parametrize(("kind", "fill", "values", "meant"), SPELLINGS)
@pytest.mark.parametrize("nczarr", [True, False])
def test_every_data_type_and_fill_value_notation_is_accepted(
    tmp_path: Path, kind: str, fill: Any, values: np.ndarray, meant: Any, nczarr: bool, way: str
) -> None:
    document = array_document((4,), kind, fill_value=fill, chunks=[2])
    store = one_array(tmp_path / "s", document, {"0": values.tobytes()}, nczarr=nczarr)
    expected = np.concatenate([values, np.full(2, meant, values.dtype)])
    assert_values(read(store, way, **RAW).v.values, expected, "v")


# Regression D18
@pytest.mark.parametrize(
    ("kind", "fill", "meant"),
    [
        *(("|S1", "X", "X"), ("|S1", 5, "5"), ("|S1", "WA==", "X"), ("<S5", "X", "X")),
        *(("<S5", 5, "5"), ("<S5", "WFk=", "XY"), ("<S5", "", "")),
        *((">S1", "X", b"X"), (">S1", 5, b"5")),
    ],
)
def test_every_string_fill_value_notation_is_accepted(
    tmp_path: Path, kind: str, fill: Any, meant: Any, way: str
) -> None:
    document = array_document((4,), kind, fill_value=fill, chunks=[2])
    chunk = np.array([b"a", b""], f"S{kind[2:]}").tobytes()
    result = read(one_array(tmp_path / "s", document, {"0": chunk}), way, **RAW).v.values
    first = "a" if isinstance(meant, str) else b"a"
    assert result.tolist() == [first, first[:0], meant, meant]


# Regression D19
def test_rounded_default_fill_value_is_read_as_exact_value(tmp_path: Path, way: str) -> None:
    store = tmp_path / "s"
    with netCDF4.Dataset(file_url(store), "w") as dataset:
        dataset.createDimension("x", 5)
        variable = dataset.createVariable("v", "f8", ("x",), chunksizes=(2,))
        variable[0:1] = 1.0
    assert b"9.96921e+36" in (store / "v/.zarray").read_bytes()
    result = read(store, way).v.values
    assert_values(result, np.array([1.0, *[F8_FILL] * 4]), "padding and missing chunks")
    attributes = json.loads((store / "v/.zattrs").read_text())
    attributes["_FillValue"] = 9.96921e36
    (store / "v/.zattrs").write_text(json.dumps(attributes))
    masked = read(store, way).v.values
    assert_values(masked, np.array([1.0, *[np.nan] * 4]), "masked")


# Regression D20
@pytest.mark.parametrize("nczarr", [True, False])
def test_missing_chunks_of_arrays_without_fill_value_are_read_as_zero(
    tmp_path: Path, nczarr: bool, way: str
) -> None:
    chunks = {"0": np.array([1, 2], "i4").tobytes()}
    store = one_array(tmp_path / "s", array_document((4,), chunks=[2]), chunks, nczarr=nczarr)
    assert read(store, way, **RAW).v.values.tolist() == [1, 2, 0, 0]
    with pytest.warns(UserWarning, match="v"):
        read(store, way, missing_chunks="warn")
    with pytest.raises(xr_nczarr.MissingChunkError) as caught:
        read(store, way, missing_chunks="raise")
    assert (caught.value.variable, caught.value.chunk, caught.value.key) == ("/v", (1,), "v/1")


# Regression D21
def test_arrays_shorter_or_longer_than_unlimited_dimension_can_be_opened(
    tmp_path: Path, way: str
) -> None:
    times = {"short": FOUR[:3], "long": np.arange(6, dtype="f4"), "right": FOUR}
    content = Group({"t": Size(4), "x": 2})
    content.variables = {name: Var(("/t",), v, fill=-1) for name, v in times.items()}
    content.variables |= {"odd": Var(("/x",), FOUR), "gone": Var(("/x",), FOUR[:2])}
    store = write_vintage(tmp_path / "s", content, "4.10")
    shutil.rmtree(store / "gone")
    result = read(store, way, drop_variables=["odd", "gone"])
    assert result.short.values.tolist() == [0, 1, 2, -1]
    assert result.long.values.tolist() == result.right.values.tolist() == [0, 1, 2, 3]
    picture = repr(xr_nczarr.info(store))
    assert all(f"/{name}" in picture for name in ("t", "x", "gone")), picture
    dataset = xr.open_dataset(store, engine="nczarr")
    with pytest.raises(xr_nczarr.MetadataError, match=r"4.*2"):
        dataset.odd.load()
    with pytest.raises(xr_nczarr.NotFoundError, match="gone"):
        dataset.gone.load()
    with pytest.raises(xr_nczarr.NczarrError):
        xr.open_dataset(store, engine="nczarr", on_unsupported="raise")


# Regression D22
def test_stale_consolidated_metadata_is_detected_on_request(tmp_path: Path, way: str) -> None:
    store = tmp_path / "s.zarr"
    first = xr.Dataset({"v": ("t", np.arange(2))})
    first.to_zarr(store, zarr_format=2, consolidated=True)
    assert read(store, way, consolidated="check").v.size == 2
    xr.Dataset({"v": ("t", np.arange(3))}).to_zarr(store, append_dim="t", consolidated=False)
    assert read(store, way, consolidated=None).v.size == 2
    assert read(store, way, consolidated=False).v.values.tolist() == [0, 1, 0, 1, 2]
    with pytest.raises(xr_nczarr.NczarrError, match=r"v/\.zarray"):
        xr.open_dataset(store, engine="nczarr", consolidated="check")


# Regression D22
def test_outdated_attributes_in_consolidated_metadata_are_detected_on_request(
    tmp_path: Path,
) -> None:
    store = write_netcdf_c(tmp_path / "s", "nczarr,consolidated")
    xr.open_dataset(store, engine="nczarr", consolidated="check")
    attributes = json.loads((store / "g/.zattrs").read_text()) | {"new": 1}
    (store / "g/.zattrs").write_text(json.dumps(attributes))
    with pytest.raises(xr_nczarr.NczarrError, match=r"g/\.zattrs"):
        xr.open_dataset(store, engine="nczarr", consolidated="check")


# Regression D23
def test_types_missing_from_netcdf_do_not_prevent_opening(tmp_path: Path, way: str) -> None:
    values = {
        "u": np.array(["é", "xy"], "<U2"),
        "c": np.array([1j, 2]),
        "m": np.array([1, 2], "M8[s]"),
    }
    broken = {name: array_document((2,), value.dtype.str) for name, value in values.items()}
    broken["o"] = array_document((2,), "|O", filters=[{"id": "vlen-utf8"}])
    broken["odd"] = array_document((2,), "<q9")
    store = store_with_good_array(tmp_path / "s", **broken)
    texts = numcodecs.VLenUTF8().encode(np.array(["a", "bc"], object))
    put(store, {"o/0": bytes(texts), **{f"{n}/0": v.tobytes() for n, v in values.items()}})
    result = read(store, way, drop_variables="odd", **RAW)
    assert result.good.values.tolist() == [5, 6]
    assert (result.u.values.tolist(), result.o.values.tolist()) == (["é", "xy"], ["a", "bc"])
    assert_values(result.c.values, values["c"], "c")
    assert result.m.values.astype("M8[s]").tolist() == values["m"].tolist()
    with pytest.raises(xr_nczarr.NczarrError, match="q9"):
        xr.open_dataset(store, engine="nczarr").odd.load()


D24 = np.array([0, 1, -2147483647], "i4")


# Regression D24
@pytest.mark.parametrize("fill", [0, -2147483647, None])
def test_integers_without_declared_fill_value_stay_integers(
    tmp_path: Path, fill: int | None, way: str
) -> None:
    document = array_document((3,), fill_value=fill)
    store = one_array(tmp_path / "s", document, {"0": D24.tobytes()})
    assert_values(read(store, way).v.values, D24, "v")


# Regression D24
def test_netcdf_c_default_fill_values_in_plain_zarr_are_not_masked(
    tmp_path: Path, way: str
) -> None:
    store = file_url(tmp_path / "s", "zarr")
    with netCDF4.Dataset(store, "w") as dataset:
        dataset.createDimension("x", 3)
        dataset.createVariable("v", "i4", ("x",))[:] = D24
        dataset.createVariable("declared", "i4", ("x",), fill_value=1)[:] = D24
    assert json.loads((tmp_path / "s/v/.zarray").read_text())["fill_value"] == -2147483647
    result = read(tmp_path / "s", way)
    assert_values(result.v.values, D24, "v")
    np.testing.assert_array_equal(result.declared.values, [0, np.nan, -2147483647])


# Regression D24
@pytest.mark.parametrize("fill", [0, -2147483647, None])
def test_nczarr_and_zarr_engines_mask_same_plain_zarr_v2_fill_values(
    tmp_path: Path, fill: int | None, way: str
) -> None:
    document = array_document((3,), fill_value=fill)
    store = one_array(tmp_path / "s", document, {"0": D24.tobytes()}, nczarr=False)
    expected = xr.open_dataset(store, engine="zarr", consolidated=False).v.values
    assert_values(read(store, way).v.values, expected, "v")
    result = read(store, way, use_zarr_fill_value_as_mask=False).v.values
    assert_values(result, D24, "v")


# Regression D25
def test_empty_strings_are_read_as_empty_strings(tmp_path: Path, way: str) -> None:
    store = write_netcdf_c(tmp_path / "s")
    assert read(store, way).words.values.tolist() == ["a", "", "émile", "zz"]
    texts = bytes(numcodecs.VLenUTF8().encode(np.array(["", "x"], object)))
    document = array_document((2,), "|O", filters=[{"id": "vlen-utf8"}])
    plain = one_array(tmp_path / "p", document, {"0": texts}, nczarr=False)
    assert read(plain, way).v.values.tolist() == ["", "x"]


# Regression D26
@pytest.mark.parametrize("nczarr", [True, False])
def test_chunks_in_fortran_order_are_read_correctly(tmp_path: Path, nczarr: bool, way: str) -> None:
    values = np.arange(12, dtype="i4").reshape(3, 4)
    document = array_document((3, 4), order="F", chunks=[3, 2])
    chunks = {f"0.{n}": values[:, 2 * n : 2 * n + 2].tobytes(order="F") for n in (0, 1)}
    store = one_array(tmp_path / "s", document, chunks, nczarr=nczarr)
    assert_values(read(store, way).v.values, values, "v")


# Regression D27
@pytest.mark.parametrize(
    ("members", "separator"),
    [
        ({"dimension_separator": "/"}, "/"),
        ({"dimension_separator": "."}, "."),
        ({}, "."),
        ({}, "/"),
    ],
)
def test_nested_chunk_keys_are_found_even_if_undeclared(
    tmp_path: Path, members: dict[str, Any], separator: str, way: str
) -> None:
    values = np.arange(4, dtype="i4").reshape(2, 2)
    document = array_document((2, 2), chunks=[1, 2], **members)
    chunks = {f"{n}{separator}0": values[n].tobytes() for n in (0, 1)}
    store = one_array(tmp_path / "s", document, chunks, nczarr=False)
    assert_values(read(store, way).v.values, values, "v")


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


def zipped(path: Path, entries: list[tuple[str, bytes]]) -> Path:
    """Write a zip file with these entries, stored in this order; names may occur twice."""
    with zipfile.ZipFile(path, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for name, data in entries:
            archive.writestr(name, data)
    return path


# Regression D29
@pytest.mark.parametrize("prefix", ["", "inner/"])
@pytest.mark.parametrize("directories", [True, False])
@pytest.mark.parametrize("twice", [True, False])
def test_zip_files_from_every_writer_can_be_opened(
    tmp_path: Path, prefix: str, directories: bool, twice: bool, way: str
) -> None:
    store = write_vintage(tmp_path / "s", Group({"x": 4}, {"v": Var(("/x",), FOUR)}), "4.10")
    files = {item.relative_to(store): item for item in sorted(store.rglob("*")) if item.is_file()}
    entries = [(prefix, b""), (f"{prefix}v/", b"")] if directories else []
    entries = [entry for entry in entries if entry[0]]
    if twice:
        entries.append((f"{prefix}v/0", (FOUR + 1).tobytes()))
    entries += [(f"{prefix}{name}", item.read_bytes()) for name, item in files.items()]
    assert_values(read(zipped(tmp_path / "s.zip", entries), way).v.values, FOUR, "v")
    url = f"file://{tmp_path / 's.zip'}#mode=nczarr,zip"
    assert_values(read(url, way).v.values, FOUR, "v")


# Regression D30
def test_zero_length_unlimited_dimension_is_valid(tmp_path: Path, way: str) -> None:
    result = read(write_netcdf_c(tmp_path / "s"), way)
    assert result.none_yet.sizes == {"never": 0, "x": 4}
    assert_values(result.none_yet.values, np.zeros((0, 4)), "none_yet")
    assert "never" in result.encoding["unlimited_dims"]


# Regression D31
def test_chunk_larger_than_array_is_valid(tmp_path: Path, way: str) -> None:
    store = tmp_path / "s"
    with netCDF4.Dataset(file_url(store), "w") as dataset:
        dataset.createDimension("t", None)
        dataset.createVariable("v", "f8", ("t",))[:] = [1.0, 2.0, 3.0]
    assert (store / "v/0").stat().st_size > 24
    assert_values(read(store, way).v.values, np.array([1.0, 2.0, 3.0]), "v")


# Regression D32
@pytest.mark.parametrize("name", ["checked", "checked_zlib"])
def test_wrong_checksum_raises_error_that_names_chunk(tmp_path: Path, way: str, name: str) -> None:
    store = write_netcdf_c(tmp_path / "s")
    chunk = store / name / "1"
    data = bytearray(chunk.read_bytes())
    data[20] ^= 1
    chunk.write_bytes(data)
    result = xr.open_dataset(store, engine="nczarr", chunks=None if way == "eager" else {})[name]
    assert result[:200].values[199] == 199 // 7
    with pytest.raises(xr_nczarr.ChunkError, match="fletcher32") as caught:
        result.load()
    error = caught.value
    assert (error.variable, error.chunk, error.key) == (f"/{name}", (1,), f"{name}/1")
    assert str(store) in str(error)


# Regression D33
@pytest.mark.parametrize("codec", ["szip", "nobody-knows-this"])
def test_unknown_codec_breaks_only_its_variable(tmp_path: Path, way: str, codec: str) -> None:
    odd = array_document((2,), compressor={"id": codec, "mask": 32, "pixels-per-block": 8})
    store = store_with_good_array(
        tmp_path / "s", odd=odd, filtered=odd | {"filters": [{"id": codec}]}
    )
    assert read(store, way, drop_variables=["odd", "filtered"]).good.values.tolist() == [5, 6]
    dataset = xr.open_dataset(store, engine="nczarr")
    assert dataset.odd.shape == (2,)
    with pytest.raises(xr_nczarr.UnsupportedError, match=codec) as caught:
        dataset.odd.load()
    assert caught.value.variable == "/odd"
    assert set(xr.open_dataset(store, engine="nczarr", on_unsupported="skip")) == {"good"}
    with pytest.raises(xr_nczarr.UnsupportedError, match=codec):
        xr.open_dataset(store, engine="nczarr", on_unsupported="raise")


@pytest.mark.parametrize("chunks", [None, {}])
def test_broken_variables_do_not_prevent_opening_with_dask(tmp_path: Path, chunks: Any) -> None:
    """With dask, xarray reads an item of every object array; a failure must affect only one."""
    vlen = {"filters": [{"id": "vlen-utf8"}, {"id": "nobody-knows-this"}]}
    odd = array_document((2,), "|O", fill_value="", **vlen)
    store = store_with_good_array(tmp_path / "s", odd=odd)
    listed = {"dims": {"x": 2}, "vars": ["good", "odd", "gone"], "groups": []}
    superblock = {"version": "2.0.0"}
    group = {"zarr_format": 2, "_NCZARR_SUPERBLOCK": superblock, "_NCZARR_GROUP": listed}
    put(store, {".zgroup": group})
    dataset = xr.open_dataset(store, engine="nczarr", chunks=chunks)
    assert dataset.good.values.tolist() == [5, 6]
    assert "odd" in repr(dataset)
    with pytest.raises(xr_nczarr.UnsupportedError, match="nobody-knows-this"):
        dataset.odd.load()
    with pytest.raises(xr_nczarr.NotFoundError, match="gone"):
        dataset.gone.load()


@pytest.mark.parametrize("damage", ["gone", "no JSON", "another shape"])
@pytest.mark.parametrize("chunks", [None, {}])
def test_broken_coordinate_does_not_affect_variables_along_its_dimension(
    tmp_path: Path, damage: str, chunks: Any
) -> None:
    values = xr.Dataset({"v": ("t", FOUR)}, {"t": np.arange(4)})
    inner = xr.Dataset({"w": ("t", FOUR)})
    xr_nczarr.to_nczarr(xr.DataTree.from_dict({"/": values, "/g": inner}), tmp_path / "s")
    for document in (tmp_path / "s/.zmetadata", tmp_path / "s/t/.zarray"):
        text = document.read_text()
        document.unlink()
        if document.name == ".zarray" and damage != "gone":
            document.write_text("{" if damage == "no JSON" else text.replace("[4]", "[5]"))
    with pytest.warns(xr.SerializationWarning, match="^/t is opened without an index"):
        opened = xr.open_datatree(tmp_path / "s", engine="nczarr", chunks=chunks)
    with opened as tree:
        assert tree["v"].values.tolist() == tree["g/w"].values.tolist() == FOUR.tolist()
        assert (tree["t"].dims, tree["t"].shape) == (("t",), (4,))
        with pytest.raises(xr_nczarr.NczarrError) as caught:
            tree["t"].load()
    assert caught.value.variable == "/t"
    assert "v(t)" in repr(xr_nczarr.explain(tmp_path / "s"))


COMPRESSORS = [
    {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0},
    {"id": "zlib", "level": 1},
    {"id": "zstd", "level": 1},
    None,
]


# Regression D34
@pytest.mark.parametrize("compressor", COMPRESSORS, ids=str)
@pytest.mark.parametrize("kept", [0, 10, -1])
def test_truncated_chunk_raises_error_that_names_chunk(
    tmp_path: Path, way: str, compressor: Any, kept: int
) -> None:
    values = np.arange(200, dtype="f8") // 9
    chunk = values.tobytes()
    chunk = bytes(numcodecs.get_codec(dict(compressor)).encode(chunk)) if compressor else chunk
    document = array_document((200,), "<f8", compressor=compressor, fill_value=0)
    store = one_array(tmp_path / "s", document, {"0": chunk[:kept]})
    with pytest.raises(xr_nczarr.ChunkError) as caught:
        read(store, way)
    assert (caught.value.variable, caught.value.chunk, caught.value.key) == ("/v", (0,), "v/0")


# Regression D34
def test_truncated_response_is_retried(http_server: HttpServer, way: str) -> None:
    values = np.arange(200, dtype="f8") // 9
    chunk = bytes(numcodecs.Blosc().encode(values.tobytes()))
    document = array_document((200,), "<f8", compressor=COMPRESSORS[0], fill_value=0)
    one_array(Path(http_server.root) / "s", document, {"0": chunk})
    http_server.fault("truncate", path="*/v/0", times=1)
    assert_values(read(f"{http_server.url}/s", way).v.values, values, "v")
    http_server.fault("status", path="*/v/0", status=503, times=2)
    assert_values(read(f"{http_server.url}/s", way).v.values, values, "v")
    http_server.fault("truncate", path="*/v/0", times=None)
    with pytest.raises((xr_nczarr.StorageError, xr_nczarr.ChunkError), match="v/0"):
        read(f"{http_server.url}/s", way)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("codecs", [{}, {"zlib": True}, {"shards": (4, 6)}], ids=str)
@pytest.mark.parametrize("length", [0, 1, 2, 3, 5])
def test_elements_beyond_array_shorter_than_its_dimension_are_fill_values(
    zarr_format, codecs, length
):
    if zarr_format == 2 and "shards" in codecs:
        pytest.skip("Zarr v2 has no shards")
    values = np.arange(1, 37, dtype="i4").reshape(6, 6)
    encoding = {"v": {"chunksizes": (2, 3), "_FillValue": np.int32(-1), **codecs}}
    options = {"zarr_format": zarr_format, "unlimited_dims": ["t"], "consolidated": False}
    store, copied = {}, {}
    dataset = xr.Dataset({"v": (("t", "x"), values.copy())})
    xr_nczarr.to_nczarr(dataset, store, encoding=encoding, **options)
    # Programs that shorten an array can leave its old values in the stored chunks.
    key = {2: "v/.zarray", 3: "v/zarr.json"}[zarr_format]
    store[key] = json.dumps({**json.loads(store[key]), "shape": [length, 6]}).encode()
    values[length:] = -1
    opened = xr.open_dataset(store, engine="nczarr", mask_and_scale=False).v
    rows, columns = [5, 0, 1, 4], [0, 5, 2, 2]
    np.testing.assert_array_equal(opened, values)
    np.testing.assert_array_equal(opened[::-2, 1], values[::-2, 1])
    np.testing.assert_array_equal(opened[rows, columns], values[rows][:, columns])
    points = {"t": xr.DataArray(rows, dims="p"), "x": xr.DataArray(columns, dims="p")}
    np.testing.assert_array_equal(opened.isel(points), values[rows, columns])
    xr_nczarr.copy(store, copied, zarr_format=zarr_format)
    np.testing.assert_array_equal(
        xr.open_dataset(copied, engine="nczarr", mask_and_scale=False).v, values
    )


@pytest.mark.parametrize("length", range(7))
def test_elements_beyond_shorter_rectilinear_array_are_fill_values(length):
    values = np.arange(1, 37, dtype="i4").reshape(6, 6)
    encoding = {"v": {"chunksizes": (2, 3), "_FillValue": np.int32(-1), "zlib": False}}
    dataset, store = xr.Dataset({"v": (("t", "x"), values.copy())}), {}
    to_nczarr = functools.partial(xr_nczarr.to_nczarr, zarr_format=3, unlimited_dims=["t"])
    to_nczarr(dataset, store, encoding=encoding, consolidated=False)
    configuration = {"kind": "inline", "chunk_shapes": [[1, 3, 2], [4, 2]]}
    grid = {"chunk_grid": {"name": "rectilinear", "configuration": configuration}}
    document = {**json.loads(store["v/zarr.json"]), **grid, "shape": [length, 6]}
    store["v/zarr.json"] = json.dumps(document).encode()
    for row, rows in enumerate([slice(0, 1), slice(1, 4), slice(4, 6)]):
        for column, columns in enumerate([slice(0, 4), slice(4, 6)]):
            store[f"v/c/{row}/{column}"] = values[rows, columns].tobytes()
    values[length:] = -1
    opened = xr.open_dataset(store, engine="nczarr", mask_and_scale=False).v
    np.testing.assert_array_equal(opened, values)
    np.testing.assert_array_equal(opened[::-2, [5, 0]], values[::-2, [5, 0]])


@pytest.mark.parametrize("kind", ["mapping", "local", "zip", "obstore", "references"])
@pytest.mark.parametrize("separator", [".", "/"])  # the second one is not declared
def test_parts_of_uncompressed_chunks_of_wrong_size_are_not_read(tmp_path, kind, separator):
    values = np.arange(24, dtype="i4").reshape(2, 12)
    folder = one_array(tmp_path / "s", array_document((2, 12), chunks=[1, 12]), {})
    chunk = folder / f"v/1{separator}0"
    chunk.parent.mkdir(exist_ok=True)
    chunk.write_bytes(values[0, 3:].tobytes())  # the beginning of the chunk was lost
    store: Any = folder
    if kind == "zip":
        store = shutil.make_archive(str(folder), "zip", folder)
    elif kind == "obstore":
        store = obstore.store.LocalStore(folder)
    elif kind != "local":
        paths = [path for path in folder.rglob("*") if path.is_file()]
        store = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
    if kind == "references":
        texts = {key: data.decode() for key, data in store.items() if key.startswith(".z")}
        texts |= {key: store[key].decode() for key in ("v/.zarray", "v/.zattrs") if key in store}
        store = {**texts, chunk.relative_to(folder).as_posix(): [str(chunk), 0, 36]}
    opened = xr.open_dataset(store, engine="nczarr", consolidated=False).v
    for selection in [(1, slice(2, 5)), (1, [0, 8]), (slice(None), slice(1, 2))]:
        with pytest.raises(xr_nczarr.ChunkError, match=r"v/1.0.*36 bytes; expected 48"):
            opened[selection].load()


@pytest.mark.parametrize("kind", ["mapping", "obstore"])
def test_replaced_shard_is_not_read_with_old_index(monkeypatch, kind):
    full = np.arange(1, 257, dtype="i4")
    half = np.where(full > 128, full, 0)  # chunks of zeros are not stored
    old, new = {}, {}
    encoding = {"v": {"chunksizes": (8,), "shards": (256,), "_FillValue": np.int32(0)}}
    for store, values in [(old, half), (new, full)]:
        dataset = xr.Dataset({"v": ("x", values)})
        xr_nczarr.to_nczarr(dataset, store, encoding=encoding, zarr_format=3, consolidated=False)
    store = obstore.store.MemoryStore()
    for key, data in old.items():
        store.put(key, data)
    opened = xr.open_dataset(
        old if kind == "mapping" else store, engine="nczarr", consolidated=False
    )
    parse = ShardIndex.parse

    def parse_and_replace(*arguments: Any) -> Any:
        old["v/c/0"] = new["v/c/0"]
        store.put("v/c/0", new["v/c/0"])
        return parse(*arguments)

    monkeypatch.setattr(ShardIndex, "parse", parse_and_replace)
    if kind == "mapping":
        assert opened.v[200:203].values.tolist() == [201, 202, 203]
    else:
        with pytest.raises(xr_nczarr.StorageError, match=r"v/c/0: .*replaced"):
            opened.v[200:203].load()
