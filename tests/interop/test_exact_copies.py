"""Copies are exact: netCDF files from ncgen are copied to every layout and compared.

Each file of ``fixtures/cdl/copies`` shows one feature of netCDF's data model. If netcdf-c supports
the layout, it must read the same names, order, types and values from the source and the copy.
Otherwise, `dump` must print for the copy what ncdump prints for the source. Plain Zarr must contain
everything that it can represent.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import h5py
import netCDF4
import numpy as np
import pytest
import xarray as xr
import zarr

import xr_nczarr
from tests.reading import RAW
from tests.stores import FIXTURES, file_url, has_ncgen
from xr_nczarr.cli.main import main
from xr_nczarr.copying import netcdf_input
from xr_nczarr.copying.netcdf_c import STRING

pytestmark = pytest.mark.skipif(not has_ncgen, reason="Debian's netcdf-bin is not installed")

SOURCES = sorted((FIXTURES / "cdl" / "copies").glob("*.cdl"))
READ_BY_NETCDF_C = [("2", "nczarr"), ("2", "universal")]
ANNOTATED = [*READ_BY_NETCDF_C, ("3", "nczarr"), ("3-draft", "nczarr")]
OLD = [("2", "nczarr-4.8.1"), ("2", "nczarr-4.9.1")]  # without unlimited dimensions
PLAIN = [("2", "zarr"), ("3", "zarr")]
GLOBAL = -1


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, check=True, timeout=60)
    return done.stdout.decode("utf-8", "surrogateescape")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sources")


@pytest.fixture(params=SOURCES, ids=lambda path: path.stem)
def source(request: pytest.FixtureRequest, folder: Path) -> Path:
    path = folder / f"{request.param.stem}.nc"
    if not path.exists():
        make(request.param.read_text(), path)
    return path


def make(cdl: str, path: Path) -> Path:
    """Write a netCDF-4 file from CDL, or another kind of file if the CDL contains ``_Format``."""
    text = path.with_suffix(".cdl")
    text.write_text(cdl)
    kind = [] if "_Format" in cdl else ["-4"]
    run("ncgen", *kind, "-o", str(path), str(text))
    return path


# ---- content as read by netcdf-c ---------------------------------------------------------------


@cache
def netcdf_c() -> ctypes.CDLL:
    return ctypes.CDLL(netCDF4._netCDF4.__file__)


def described(group: Any, path: str = "", left_out: Collection[str] = ()) -> Iterator[Any]:
    """Yield everything that netCDF4-python reads from a group, with undecoded values."""
    for dimension in group.dimensions.values():
        yield path, "dimension", dimension.name, len(dimension), dimension.isunlimited()
    yield from described_attributes(path, group, GLOBAL)
    for name, variable in group.variables.items():
        variable.set_auto_maskandscale(False)
        variable.set_auto_chartostring(False)
        dims = [f"{dim.group().path}:{dim.name}" for dim in variable.get_dims()]
        yield path, "variable", name, dims
        if f"{path}/{name}" in left_out:
            continue
        yield from described_attributes(f"{path}/{name}", variable, variable._varid)
        values = np.asarray(variable[...])
        shown = values.tolist() if values.dtype == object else values.tobytes()
        is_big_endian = variable.endian() == "big"
        yield path, name, variable.dtype, is_big_endian, values.dtype, values.shape, shown
    for name, child in group.groups.items():
        yield path, "group", name
        yield from described(child, f"{path}/{name}", left_out)


def described_attributes(path: str, holder: Any, varid: int) -> Iterator[Any]:
    for name in holder.ncattrs():
        kind = ctypes.c_int()
        place = (holder._grpid, varid, name.encode())
        assert not netcdf_c().nc_inq_atttype(*place, ctypes.byref(kind))
        value = holder.getncattr(name)
        shown = value if isinstance(value, str | bytes | list) else np.asarray(value).tobytes()
        yield path, "attribute", name, kind.value, type(value), shown


def characters_in(group: Any, path: str = "") -> Iterator[str]:
    yield from (f"{path}/{name}" for name, item in group.variables.items() if item.dtype == "S1")
    for name, child in group.groups.items():
        yield from characters_in(child, f"{path}/{name}")


@pytest.mark.parametrize("layout", READ_BY_NETCDF_C, ids=" ".join)
def test_netcdf_c_reads_same_content_from_copy(
    source: Path, layout: tuple[str, str], tmp_path: Path
) -> None:
    zarr_format, dialect = layout
    xr_nczarr.copy(source, tmp_path / "copy", zarr_format=zarr_format, dialect=dialect)
    with (
        netCDF4.Dataset(source) as file,
        netCDF4.Dataset(file_url(tmp_path / "copy")) as copied,
    ):
        # In `universal`, characters have zarr-python's type, which netcdf-c reads as strings.
        left_out = [*characters_in(file)] if dialect == "universal" else []
        expected = [*map(repr, described(file, left_out=left_out))]
        assert [*map(repr, described(copied, left_out=left_out))] == expected


@pytest.mark.parametrize("through", [None, ("2", "nczarr"), ("3", "nczarr")], ids=str)
def test_content_of_netcdf_file_survives_copy_to_another_file(
    source: Path, through: tuple[str, str] | None, tmp_path: Path
) -> None:
    target = tmp_path / "copy.nc"
    if through is None:
        xr_nczarr.copy(source, target)
    else:
        xr_nczarr.copy(source, tmp_path / "store", zarr_format=through[0], dialect=through[1])
        xr_nczarr.copy(tmp_path / "store", target)
    with netCDF4.Dataset(source) as file, netCDF4.Dataset(target) as copied:
        assert [*map(repr, described(copied))] == [*map(repr, described(file))]


@pytest.mark.parametrize("layout", [*ANNOTATED, *OLD], ids=" ".join)
def test_dump_of_copy_matches_ncdump_of_source_file(source: Path, layout: tuple[str, str]) -> None:
    zarr_format, dialect = layout
    copied: dict[str, bytes] = {}
    digits = "9,17"  # both programs then print all digits
    expected = run("ncdump", "-p", digits, "-n", "copy", str(source))
    if layout in OLD and "UNLIMITED" in expected:
        with pytest.raises(xr_nczarr.UnsupportedError, match="is unlimited"):
            xr_nczarr.copy(source, copied, zarr_format=zarr_format, dialect=dialect)
        return
    xr_nczarr.copy(source, copied, zarr_format=zarr_format, dialect=dialect)
    text = xr_nczarr.dump(copied, name="copy", precision=(9, 17))
    assert f"{text}\n" == expected


@pytest.mark.parametrize("layout", ANNOTATED, ids=" ".join)
def test_copy_of_copy_equals_first_copy(source: Path, layout: tuple[str, str]) -> None:
    zarr_format, dialect = layout
    first: dict[str, bytes] = {}
    second: dict[str, bytes] = {}
    xr_nczarr.copy(source, first, zarr_format=zarr_format, dialect=dialect)
    xr_nczarr.copy(first, second, zarr_format=zarr_format, dialect=dialect)
    assert second == first


@pytest.mark.parametrize("zarr_format", ["3", "3-draft"])
def test_copying_via_v3_yields_same_store_as_copying_directly(
    source: Path, zarr_format: str
) -> None:
    direct: dict[str, bytes] = {}
    between: dict[str, bytes] = {}
    back: dict[str, bytes] = {}
    xr_nczarr.copy(source, direct)
    xr_nczarr.copy(source, between, zarr_format=zarr_format)
    xr_nczarr.copy(between, back)
    assert back == direct


@pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")  # about numcodecs in version 3
@pytest.mark.parametrize("layout", PLAIN, ids=" ".join)
def test_copy_to_plain_zarr_keeps_all_representable_content(
    source: Path, layout: tuple[str, str], tmp_path: Path
) -> None:
    zarr_format, dialect = layout
    target = tmp_path / "copy"
    xr_nczarr.copy(source, target, zarr_format=zarr_format, dialect=dialect)
    store = zarr.open_group(target, mode="r")
    with netCDF4.Dataset(source) as file:
        check_plain(file, store)


def check_plain(group: Any, store: zarr.Group) -> None:
    check_attributes(group, store)
    assert {*store} == {*group.variables, *group.groups}
    for name, variable in group.variables.items():
        variable.set_auto_maskandscale(False)
        variable.set_auto_chartostring(False)
        array = store[name]
        dims = getattr(array.metadata, "dimension_names", array.attrs.get("_ARRAY_DIMENSIONS"))
        # netCDF4-python itself returns the nearest dimension instead of a shadowed one.
        if not any(dim.startswith("/") for dim in dims or ()):
            assert tuple(dims or ()) == variable.dimensions
            expected, values = np.asarray(variable[...]), np.asarray(array[...])
            if variable.dtype is str:
                expected, values = expected.astype(object), values.astype(object)
            assert values.dtype.newbyteorder("=") == expected.dtype.newbyteorder("=")
            np.testing.assert_array_equal(values, expected)
        check_attributes(variable, array)
    for name, child in group.groups.items():
        check_plain(child, store[name])


@pytest.mark.parametrize("layout", PLAIN, ids=" ".join)
def test_shadowed_dimension_is_named_by_full_path_in_plain_zarr(
    folder: Path, layout: tuple[str, str], tmp_path: Path
) -> None:
    source = make((FIXTURES / "cdl/copies/hidden_dimensions.cdl").read_text(), folder / "h.nc")
    xr_nczarr.copy(source, tmp_path / "copy", zarr_format=layout[0], dialect=layout[1])
    for engine in ("nczarr", "zarr"):
        group = xr.open_dataset(tmp_path / "copy", engine=engine, group="g", consolidated=False)
        assert group["both"].dims == ("x", "/x")
        assert group["hidden"].values.tolist() == [1, 2, 3, 4, 5]
        assert group["own"].values.tolist() == [1, 2, 3]


def check_attributes(holder: Any, node: Any) -> None:
    """Check that the attributes of `holder` have equal names, order and values in `node`.

    The values of `_FillValue` are not compared.
    """
    stored = dict(node.attrs)
    stored.pop("_ARRAY_DIMENSIONS", None)
    assert [*stored] == holder.ncattrs()
    for name in set(stored) - {"_FillValue"}:  # xarray encodes `_FillValue` in its own way
        np.testing.assert_array_equal(stored[name], holder.getncattr(name))


def test_copy_pads_variables_shorter_than_unlimited_dimensions(tmp_path: Path) -> None:
    # If several rows of a shorter variable are read in one call, netCDF-C misplaces the values.
    with netCDF4.Dataset(tmp_path / "source.nc", "w") as file:
        file.createDimension("t", None)
        file.createDimension("x", None)
        for name, shape, dtype in (
            ("whole", (3, 4), "i2"),
            ("narrow", (3, 2), "i2"),
            ("short", (2, 4), "f4"),
            ("corner", (2, 2), "f8"),
            ("empty", (0, 0), "i4"),
            ("text", (2, 3), str),
        ):
            variable = file.createVariable(name, dtype, ("t", "x"))
            values = np.arange(1, 1 + shape[0] * shape[1]).reshape(shape).astype(dtype)
            variable[: shape[0], : shape[1]] = values.astype(object) if dtype is str else values
    xr_nczarr.copy(tmp_path / "source.nc", tmp_path / "copy")
    opened = xr.open_dataset(tmp_path / "copy", engine="nczarr", **RAW)
    low, f4, f8 = np.int16(-32767), np.float32(9.96921e36), 9.969209968386869e36
    assert opened["whole"].values.tolist() == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]]
    assert opened["narrow"].values.tolist() == [
        [1, 2, low, low],
        [3, 4, low, low],
        [5, 6, low, low],
    ]
    assert opened["short"].values.tolist() == [[1, 2, 3, 4], [5, 6, 7, 8], [f4] * 4]
    assert opened["corner"].values.tolist() == [[1, 2, f8, f8], [3, 4, f8, f8], [f8] * 4]
    assert opened["empty"].values.tolist() == [[-2147483647] * 4] * 3
    assert opened["text"].values.tolist() == [["1", "2", "3", ""], ["4", "5", "6", ""], [""] * 4]


def test_variables_with_trailing_fill_values_are_read_in_few_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with netCDF4.Dataset(tmp_path / "source.nc", "w") as file:
        file.createDimension("x", 300)
        file.createDimension("t", None)
        whole = np.arange(1200.0).reshape(300, 4)
        whole[-1] = np.nan
        file.createVariable("whole", "f8", ("x", "t"), fill_value=np.nan)[:] = whole
        file.createVariable("short", "f8", ("x", "t"), fill_value=np.nan)[:, :2] = whole[:, :2]
    read, parts = netcdf_input.NetcdfValues._part, []

    def counted(*arguments: Any) -> Any:
        parts.append(arguments)
        return read(*arguments)

    monkeypatch.setattr(netcdf_input.NetcdfValues, "_part", counted)
    xr_nczarr.copy(tmp_path / "source.nc", tmp_path / "copy")
    opened = xr.open_dataset(tmp_path / "copy", engine="nczarr")
    np.testing.assert_array_equal(opened.whole, whole)
    np.testing.assert_array_equal(opened.short[:, :2], whole[:, :2])
    assert opened.short[:, 2:].isnull().all()
    assert len(parts) < 20


@pytest.mark.parametrize("dialect", ["nczarr", "universal"])
def test_empty_lists_of_strings_in_attributes_keep_their_type(dialect: str, tmp_path: Path) -> None:
    source, store, file = (tmp_path / name for name in ("source.nc", "store", "file.nc"))
    with netCDF4.Dataset(source, "w") as created:
        created.createVariable("v", "i4")
    with h5py.File(source, "r+") as created:
        for holder in (created, created["v"]):
            holder.attrs.create("names", np.empty(0, object), dtype=h5py.string_dtype())
    xr_nczarr.copy(source, store)
    xr_nczarr.upgrade(store, dialect=dialect)
    xr_nczarr.copy(store, file)
    with netCDF4.Dataset(source) as expected:
        content = [*map(repr, described(expected))]
        assert str(content).count(f"'names', {STRING}, <class 'list'>, []") == 2
        for url in (file_url(store), file):
            with netCDF4.Dataset(url) as copied:
                assert [*map(repr, described(copied))] == content


# ---- through other engines


@pytest.mark.parametrize("engine", ["netcdf4", "h5netcdf"])
def test_copying_with_xarray_engine_keeps_bounds_attributes(folder: Path, engine: str) -> None:
    source = make((FIXTURES / "cdl/copies/bounds.cdl").read_text(), folder / "bounds.nc")
    copied: dict[str, bytes] = {}
    xr_nczarr.copy(source, copied, engine=engine)
    again = xr.open_dataset(copied, engine="nczarr", **RAW)
    assert again["time_bnds"].attrs == {"units": "days since 2000-01-01", "calendar": "noleap"}
    assert again["lat_bnds"].attrs == {"units": "degrees_north"}


# ---- values without an NCZarr type


UNSUPPORTED = {
    "compound": ("compound t { int a ; float b ; } ;", "t v(x) ;", "v = {1, 2}, {3, 4} ;"),
    "vlen": ("int(*) t ;", "t v(x) ;", "v = {1}, {2, 3} ;"),
    "enum": ("ubyte enum t {no = 0, yes = 1} ;", "t v(x) ;", "v = yes, no ;"),
    "opaque": ("opaque(2) t ;", "t v(x) ;", "v = 0X0102, 0X0304 ;"),
    "compound with a vlen": (
        "int(*) n ; compound t { int a ; n b ; } ;",
        "t v(x) ;",
        "v = {1, {2, 3}}, {4, {5}} ;",
    ),
}


@pytest.mark.parametrize("zarr_format", ["2", "3"])
@pytest.mark.parametrize("kind", UNSUPPORTED)
def test_copy_reports_unsupported_variables_before_writing(
    kind: str, zarr_format: str, tmp_path: Path, capsys: Any
) -> None:
    types, variable, data = UNSUPPORTED[kind]
    cdl = f"netcdf u {{ types: {types} dimensions: x = 2 ; variables: int before(x) ; "
    cdl += f"group: g {{ variables: {variable} int after(x) ; data: {data} after = 3, 4 ; }} "
    source = make(cdl.replace("group:", "data: before = 1, 2 ; group:") + "}", tmp_path / "u.nc")
    target = tmp_path / "copy"
    arguments = ["copy", str(source), str(target), "--zarr-format", zarr_format]
    assert main(arguments) == 2
    message = capsys.readouterr().err
    assert f"the variable /g/v of type t ({kind.partition(' ')[0]})" in message
    assert "--skip-unsupported" in message
    assert not target.exists()
    assert main([*arguments, "--skip-unsupported"]) == 0
    assert "left out: the variable /g/v of type t" in capsys.readouterr().out
    result = xr.open_groups(target, engine="nczarr")
    assert result["/"]["before"].values.tolist() == [1, 2]
    assert result["/g"]["after"].values.tolist() == [3, 4]
    assert "v" not in result["/g"]


def test_copy_reports_unsupported_attribute_names(tmp_path: Path) -> None:
    cdl = """netcdf u { types: compound t { int a ; } ; ubyte enum e {no = 0} ;
    variables: int v ; t v:point = {1} ; v:units = "m" ; e v:flag = no ;
    data: v = 1 ; }"""
    source = make(cdl, tmp_path / "u.nc")
    with h5py.File(source, "a") as file:
        file["v"].attrs["_nczarr_x"] = "y"
    copied: dict[str, bytes] = {}
    with pytest.raises(xr_nczarr.UnsupportedError) as info:
        xr_nczarr.copy(source, copied)
    for sentence in (
        "the attribute point of /v of type t (compound)",
        "the attribute _nczarr_x of /v (NCZarr reserves this attribute name)",
        "the attribute flag of /v of type e (enum)",
    ):
        assert sentence in str(info.value)
    assert not copied
    done = xr_nczarr.copy(source, copied, skip_unsupported=True)
    assert len(done.skipped) == 5  # including the two types
    assert xr.open_dataset(copied, engine="nczarr")["v"].attrs == {"units": "m"}


@pytest.mark.parametrize("text", [b"caf\xe9", b"a\0b", b"a\x1bb"], ids=["Latin-1", "NUL", "ESC"])
def test_copy_reports_text_attributes_that_cannot_be_stored(text: bytes, tmp_path: Path) -> None:
    source = tmp_path / "u.nc"
    with netCDF4.Dataset(source, "w") as file:
        file.setncattr("title", text)
    with pytest.raises(xr_nczarr.UnsupportedError, match="the attribute title of /"):
        xr_nczarr.copy(source, {})


@pytest.mark.parametrize("dtype", ["c8", "f2"])
def test_copy_reports_or_skips_variables_of_types_unsupported_by_netcdf(
    dtype: str, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    variables = {"v": ("x", np.ones(2, dtype)), "w": ("x", [1, 2])}
    xr.Dataset(variables).to_zarr(source, zarr_format=2, consolidated=False)
    copied: dict[str, bytes] = {}
    with pytest.raises(xr_nczarr.UnsupportedError, match=r"variable /v.*skip_unsupported=True"):
        xr_nczarr.copy(source, copied)
    assert not copied
    done = xr_nczarr.copy(source, copied, skip_unsupported=True)
    assert [sentence.partition(":")[0] for sentence in done.skipped] == ["the variable /v"]
    assert xr.open_dataset(copied, engine="nczarr")["w"].values.tolist() == [1, 2]


# ---- widths, and files that netcdf-c does not read


WIDTHS = {
    "_nczarr_maxstrlen": "string s(x) ; s:_nczarr_maxstrlen = 4 ;",
    "_nczarr_default_maxstrlen": "string s(x) ; :_nczarr_default_maxstrlen = 4 ;",
}


@pytest.mark.parametrize("attribute", WIDTHS)
def test_error_for_overlong_string_includes_attribute_name(attribute: str, tmp_path: Path) -> None:
    cdl = f"netcdf w {{ dimensions: x = 2 ; variables: {WIDTHS[attribute]} data: s = %s ; }}"
    copied: dict[str, bytes] = {}
    source = make(cdl % '"one", "ten letters"', tmp_path / "long.nc")
    with pytest.raises(
        xr_nczarr.ConflictError, match=rf"11 bytes.*{attribute}.*4.*\(variable /s\)"
    ):
        xr_nczarr.copy(source, copied)
    assert not copied
    xr_nczarr.copy(make(cdl % '"one", "four"', tmp_path / "short.nc"), copied)
    assert json.loads(copied["s/.zarray"])["dtype"] == "|S4"


def test_invalid_maxstrlen_is_copied_as_regular_attribute(tmp_path: Path) -> None:
    cdl = "netcdf w { dimensions: x = 1 ; variables: string s(x) ; s:_nczarr_maxstrlen = %s ; "
    for text in ('"4"', "2.5", "1, 2", "0", "-4"):
        copied: dict[str, bytes] = {}
        source = make(cdl % text + 'data: s = "longer" ; }', tmp_path / "w.nc")
        xr_nczarr.copy(source, copied)
        assert json.loads(copied["s/.zarray"])["dtype"] == "|S6"
        assert f"s:_nczarr_maxstrlen = {text} ;" in str(xr_nczarr.dump(copied))


@pytest.mark.filterwarnings("ignore:codecs inherited", "ignore:The 'phony_dims'")
def test_copy_suggests_h5netcdf_if_netcdf_c_cannot_read_variable(
    tmp_path: Path,
) -> None:
    source, target = tmp_path / "lzf.nc", tmp_path / "copy"
    with h5py.File(source, "w") as file:
        file.create_dataset("v", data=np.arange(1000), compression="lzf", chunks=(100,))
    with pytest.raises(xr_nczarr.StorageError, match=r"/v.*engine='h5netcdf'"):
        xr_nczarr.copy(source, target)
    with pytest.raises(xr_nczarr.NotFoundError):
        xr_nczarr.info(target)
    xr_nczarr.copy(source, tmp_path / "other", engine="h5netcdf")
    result = xr.open_dataset(tmp_path / "other", engine="nczarr")
    np.testing.assert_array_equal(result["v"], np.arange(1000))


def test_copy_prints_one_line_error_for_corrupt_netcdf_file(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "cut.nc").write_bytes(b"\x89HDF\r\n\x1a\n")
    assert main(["copy", str(tmp_path / "cut.nc"), str(tmp_path / "copy")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_strings_are_copied_correctly_by_dask_workers(
    folder: Path, tmp_path: Path, workers: Any
) -> None:
    source = make((FIXTURES / "cdl/copies/strings.cdl").read_text(), folder / "strings.nc")
    with workers.as_current():
        xr_nczarr.copy(source, tmp_path / "copy")
    text = xr_nczarr.dump(tmp_path / "copy", name="strings")
    assert f"{text}\n" == run("ncdump", str(source))
