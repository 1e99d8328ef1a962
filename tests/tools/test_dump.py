"""``nczarr dump`` prints the same text as ncdump, and ncgen restores the dataset from it."""

import json
import subprocess

import numpy as np
import pytest
import xarray as xr

import xr_nczarr
from tests.small_stores import plain_objects
from tests.stores import FIXTURES, array_document, file_url, has_ncgen, write_with_ncgen
from xr_nczarr.chunks import ChunkedArray
from xr_nczarr.cli.main import main
from xr_nczarr.tools import cdl
from xr_nczarr.tools.slabs import slabs

EVERY_CHARACTER = bytes([*range(1, 64), *range(91, 128)]).decode() + "é\N{SNOWMAN}"
needs_ncgen = pytest.mark.skipif(not has_ncgen, reason="Debian's netcdf-bin is not installed")


def run(*command):
    done = subprocess.run(command, capture_output=True, check=True, timeout=60)
    return done.stdout.decode("utf-8", "surrogateescape")


@pytest.fixture(scope="module")
def types(tmp_path_factory):
    """Return a netCDF file with everything that CDL can express, and an equal store of netcdf-c."""
    folder = tmp_path_factory.mktemp("types")
    path = folder / "types.nc"
    run("ncgen", "-4", "-o", str(path), str(FIXTURES / "cdl" / "types.cdl"))
    return path, file_url(copy_with_netcdf_c(path, folder / "types.file"), "nczarr")


def copy_with_netcdf_c(source, path):
    import netCDF4

    def copy(old, new):
        for name, dimension in old.dimensions.items():
            new.createDimension(name, None if dimension.isunlimited() else len(dimension))
        for name, variable in old.variables.items():
            fill = getattr(variable, "_FillValue", None)
            made = new.createVariable(name, variable.dtype, variable.dimensions, fill_value=fill)
            attributes(variable, made)
            for item in (variable, made):
                item.set_auto_maskandscale(False)
                item.set_auto_chartostring(False)
            if 0 not in variable.shape:
                made[...] = variable[...]
        attributes(old, new)
        for name, group in old.groups.items():
            copy(group, new.createGroup(name))

    def attributes(old, new):
        for name in old.ncattrs():
            if name != "_FillValue":
                value = old.getncattr(name)
                put = new.setncattr_string if isinstance(value, list) else new.setncattr
                put(name, value)

    with (
        netCDF4.Dataset(source) as old,
        netCDF4.Dataset(file_url(path, "nczarr"), "w") as new,
    ):
        copy(old, new)
    return path


@pytest.mark.parametrize("header", [False, True])
def test_dump_of_group_contains_only_that_group_and_inherited_dimensions(tmp_path, header):
    tree = {
        "/": xr.Dataset({"a": (("t", "x"), [[1, 2]])}, attrs={"title": "all"}),
        "/g": xr.Dataset({"b": (("x", "y"), [[1.5], [2.5]])}),
        "/g/h": xr.Dataset({"c": ("x", [3, 4])}),
        "/other": xr.Dataset({"d": 1}),
    }
    xr_nczarr.to_nczarr(xr.DataTree.from_dict(tree), tmp_path / "s", unlimited_dims={"/": ["t"]})
    text = str(xr_nczarr.dump(tmp_path / "s", group="g", header=header)).expandtabs(4)
    assert text.startswith(
        "netcdf s {\ndimensions:\n    t = UNLIMITED ; // (1 currently)\n    x = 2 ;"
    )
    assert "\ngroup: g {" in text
    assert "double b(x, y) ;" in text
    assert "group: h {" in text
    assert ("b =" in text) is not header
    for other in ("a(t, x)", "title", "other", "a ="):
        assert other not in text
    inner = str(xr_nczarr.dump(tmp_path / "s", group="/g/h"))
    assert "c(x) ;" in inner
    assert "b(x, y)" not in inner
    if has_ncgen:
        (tmp_path / "g.cdl").write_text(inner)
        run("ncgen", "-4", "-o", str(tmp_path / "g.nc"), str(tmp_path / "g.cdl"))
        with xr.open_dataset(tmp_path / "g.nc", group="g/h", engine="netcdf4") as result:
            assert result.c.values.tolist() == [3, 4]


@needs_ncgen
@pytest.mark.parametrize("options", [[], ["-h"], ["-v", "f,v,/g/sub/q"], ["-g", "g,/", "-v", "v"]])
def test_dump_output_equals_ncdump_output(types, options, capsys):
    path, url = types
    assert main(["dump", *options, url]) == 0
    printed = capsys.readouterr().out.splitlines()
    expected = run("ncdump", *options, str(path)).splitlines()
    differ = [line for line in printed if line not in expected]
    # xr_nczarr prints more digits, and characters with a line break in one row.
    assert set(differ) <= {
        "  16777216, 1e+07, 123456.7, NaNf ;",
        '  "ab\\nc",',
        " large = 1e+300, 1.7976931348623157e+308, 4.94065645841247e-324, ",
        "    1.2345678901234568e+17 ;",
        " largef = 3.4028235e+38, 1.401298e-45, 100000, 1234567 ;",
        "   widef = 1.123456789012345, 2, 3, 4, 5, 6, 7, 1.123456789012345, ",
        "      1.123456789012345, 1.123456789012345, 1.123456789012345, ",
        "      1.123456789012345, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _ ;",
    }
    assert len(printed) - len(expected) in (0, -1)


@needs_ncgen
def test_ncgen_restores_negative_zeros_and_empty_lists(tmp_path):
    document = {
        "names": [],
        "_nczarr_group": {"dimensions": {"x": 3}, "arrays": [], "groups": []},
        "_nczarr_superblock": {"version": "2.0.0"},
        "_nczarr_attr": {"types": {"names": "|S128"}},
    }
    store = {".zgroup": b'{"zarr_format": 2}', ".zattrs": json.dumps(document).encode()}
    for dtype in ("f4", "f8"):
        values = np.array([-0.0, 0.0, -0.5], dtype)
        xr_nczarr.to_nczarr(xr.Dataset({dtype: ("x", values)}), store, mode="a")
    text = str(xr_nczarr.dump(store, name="zeros"))
    assert 'string :names = "" ;' in text
    (tmp_path / "zeros.cdl").write_text(text)
    run("ncgen", "-4", "-o", str(tmp_path / "zeros.nc"), str(tmp_path / "zeros.cdl"))
    with xr.open_dataset(tmp_path / "zeros.nc", engine="netcdf4") as result:
        for dtype in ("f4", "f8"):
            assert result[dtype].values.tobytes() == np.array([-0.0, 0.0, -0.5], dtype).tobytes()


@needs_ncgen
@pytest.mark.parametrize("digits", ["3", "4,13", "9,17"])
def test_dump_precision_option_has_same_effect_as_in_ncdump(types, digits, capsys):
    path, url = types
    options = ["-p", digits, "-v", "f,d,large,largef,widef"]
    assert main(["dump", *options, url]) == 0
    printed = capsys.readouterr().out.splitlines()
    expected = run("ncdump", *options, str(path)).splitlines()
    if "," in digits:
        assert [line for line in printed if line not in expected] == []
        assert len(printed) == len(expected)
    else:  # ncdump then prints doubles with 15 digits, too few for some values
        assert "  1.5, 2, 3, 4," in printed
        assert "  1.68e+07, 1e+07, 1.23e+05, NaNf ;" in printed


@pytest.mark.parametrize("digits", ["0", "18", "7,", "7,8,9", "x"])
def test_dump_prints_one_line_error_for_invalid_precision(digits, capsys):
    assert main(["dump", "-p", digits, "anything"]) == 2
    assert "expected numbers from 1 to 17" in capsys.readouterr().err


@pytest.mark.parametrize("precision", [(0, 18), (7,), (7, 8, 9)])
def test_dump_rejects_invalid_precision(precision):
    with pytest.raises(ValueError, match="precision must be two numbers from 1 to 17"):
        xr_nczarr.dump({".zgroup": b'{"zarr_format": 2}'}, precision=precision)


STORED = """netcdf special {
dimensions:
  t = UNLIMITED ; x = 8 ;
variables:
  int a(t, x) ; a:_ChunkSizes = 2, 3 ; a:_DeflateLevel = 4 ; a:_Shuffle = "true" ;
  double c(x) ; c:_ChunkSizes = 4 ; c:_Fletcher32 = "true" ; c:_Endianness = "big" ; c:units = "m" ;
  byte b(x) ; b:_NoFill = "true" ; b:_ChunkSizes = 8 ;
  string s(x) ; s:_ChunkSizes = 8 ; s:_nczarr_maxstrlen = 10 ;
  :title = "t" ;
}
"""


@needs_ncgen
def test_dump_shows_same_special_attributes_as_ncdump(tmp_path, capsys):
    """`dump` omits the attributes that describe a netCDF file itself."""
    (tmp_path / "special.cdl").write_text(STORED)
    source, target = str(tmp_path / "special.nc"), str(tmp_path / "special")
    run("ncgen", "-4", "-o", source, str(tmp_path / "special.cdl"))
    xr_nczarr.copy(source, target)
    assert main(["dump", "-s", "-h", target]) == 0
    printed = capsys.readouterr().out
    expected = run("ncdump", "-s", "-h", source)
    of_the_file = ("_NCProperties", "_SuperblockVersion", "_IsNetcdf4")
    kept = [line for line in expected.splitlines() if not any(item in line for item in of_the_file)]
    assert printed.splitlines() == kept
    assert xr_nczarr.dump(target, header=True).left_out == []


def test_dump_shows_zstd_blosc_and_bzip2_in_filter_attribute():
    store = {}
    dataset = xr.Dataset({name: ("x", np.arange(9.0)) for name in ("z", "b", "bz", "d")})
    codecs = {
        "z": [{"id": "zstd", "level": 3}],
        "b": [{"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1}],
        "bz": [{"id": "bz2", "level": 9}],
        "d": [{"id": "delta", "dtype": "<f8"}],
    }
    encoding = {name: {"codecs": codecs[name], "_FillValue": None} for name in codecs}
    xr_nczarr.to_nczarr(dataset, store, encoding=encoding)
    lines = str(xr_nczarr.dump(store, header=True, special=True)).splitlines()
    assert [line.strip() for line in lines if "_Filter" in line] == [
        'z:_Filter = "32015,3" ;',
        'b:_Filter = "32001,0,0,8,72,5,1,1" ;',
        'bz:_Filter = "307,9" ;',
    ]


def test_dump_shows_only_filters_supported_by_hdf5():
    """HDF5's Blosc filter does not support all compressors. Old stores contain levels as text."""
    store = {}
    dataset = xr.Dataset({"z": ("x", np.arange(9.0)), "b": ("x", np.arange(9.0))})
    xr_nczarr.to_nczarr(dataset, store, consolidated=False)
    compressors = {
        "z": {"id": "zlib", "level": "3"},
        "b": {"id": "blosc", "cname": "new", "clevel": 5, "shuffle": 1},
    }
    for name, compressor in compressors.items():
        document = json.loads(store[f"{name}/.zarray"])
        store[f"{name}/.zarray"] = json.dumps(document | {"compressor": compressor}).encode()
    text = str(xr_nczarr.dump(store, header=True, special=True))
    assert "z:_DeflateLevel = 3 ;" in text
    assert "_Filter" not in text


@needs_ncgen
def test_ncgen_accepts_special_attributes_of_strings_without_fill_value(tmp_path):
    """netcdf-c rejects `_NoFill` for strings."""
    xr_nczarr.to_nczarr(xr.Dataset({"s": ("x", ["a", "bc"])}), tmp_path / "s.zarr", dialect="zarr")
    document = json.loads((tmp_path / "s.zarr" / "s" / ".zarray").read_text())
    (tmp_path / "s.zarr" / "s" / ".zarray").write_text(json.dumps(document | {"fill_value": None}))
    (tmp_path / "s.cdl").write_text(str(xr_nczarr.dump(tmp_path / "s.zarr", special=True)))
    run("ncgen", "-4", "-o", str(tmp_path / "s.nc"), str(tmp_path / "s.cdl"))
    assert xr_nczarr.diff(tmp_path / "s.zarr", tmp_path / "s.nc", special=True).whole


@needs_ncgen
def test_requested_string_widths_are_preserved_by_dump_and_ncgen(tmp_path):
    """As in netcdf-c, only requested widths are attributes. netcdf-c's default width is 128."""
    first, text, again = tmp_path / "first", tmp_path / "s.cdl", tmp_path / "again.nc"
    dataset = xr.Dataset({"s": ("x", ["a", "bc"]), "t": ("x", ["d", "e"])})
    xr_nczarr.to_nczarr(dataset, first, encoding={"s": {"_nczarr_maxstrlen": 30}})
    text.write_text(str(xr_nczarr.dump(first, special=True)))
    run("ncgen", "-4", "-o", str(again), str(text))
    xr_nczarr.copy(again, tmp_path / "second")
    for name, dtype in {"s": "|S30", "t": "|S1"}.items():
        assert json.loads((tmp_path / "second" / name / ".zarray").read_text())["dtype"] == dtype


def test_dump_shows_netcdf_c_maxstrlen_attributes(tmp_path):
    import netCDF4

    url = file_url(tmp_path / "store", "nczarr")
    with netCDF4.Dataset(url, "w") as file:
        file.setncattr("_nczarr_default_maxstrlen", np.int32(40))
        file.createDimension("x", 1)
        file.createVariable("s", str, "x").setncattr("_nczarr_maxstrlen", np.int32(10))
    text = str(xr_nczarr.dump(url))
    assert "\t\ts:_nczarr_maxstrlen = 10 ;" in text
    assert "\t\t:_nczarr_default_maxstrlen = 40 ;" in text
    assert xr.open_dataset(url, engine="nczarr").s.attrs == {}
    xr_nczarr.copy(url, tmp_path / "copy")
    assert str(xr_nczarr.dump(tmp_path / "copy", name="store")) == text


@needs_ncgen
@pytest.mark.parametrize("options", [[], ["-h"]])
def test_dump_of_old_netcdf_c_store_equals_ncdump_output(options, tmp_path):
    store = write_with_ncgen(tmp_path / "plain.file", "plain.cdl")
    expected = run("ncdump", *options, file_url(store, "nczarr"))
    assert "".join(xr_nczarr.dump(store, header=bool(options))) == expected


@needs_ncgen
def test_ncgen_restores_dataset_from_dump(types, tmp_path):
    path, url = types
    text, again = tmp_path / "types.cdl", tmp_path / "types.nc"
    text.write_text("".join(xr_nczarr.dump(url)), errors="surrogateescape")
    run("ncgen", "-4", "-o", str(again), str(text))
    exactly = ("ncdump", "-p", "9,17")
    assert run(*exactly, str(again)) == run(*exactly, str(path))
    assert characters(again) == characters(path)


def characters(path):
    import netCDF4

    with netCDF4.Dataset(path) as file:
        file.set_auto_mask(False)
        file.set_auto_chartostring(False)
        result = {n: v[...].tobytes() for n, v in file.variables.items() if v.dtype == "S1"}
    assert result
    return result


def test_dump_shows_enough_digits_to_restore_powers_of_two(tmp_path):
    values = {"f4": [2.0**87, 2.0**-149], "f8": [2.0**-44, 2.0**89]}
    variables = {name: ("x", np.array(numbers, name)) for name, numbers in values.items()}
    xr_nczarr.to_nczarr(xr.Dataset(variables), tmp_path / "powers.zarr")
    text = "".join(xr_nczarr.dump(tmp_path / "powers.zarr"))
    assert "f4 = 1.54742505e+26, 1.401298e-45 ;" in text
    assert "f8 = 5.6843418860808015e-14, 6.1897001964269014e+26 ;" in text


@needs_ncgen
def test_ncgen_restores_every_number_and_string_from_dump(tmp_path):
    import netCDF4

    rng = np.random.default_rng(7)
    values = {"f4": rng.integers(0, 2**32, 300, "u4").view("f4")}
    values["f8"] = rng.integers(0, 2**64, 300, "u8").view("f8")
    values |= {
        kind: rng.integers(np.iinfo(kind).min, np.iinfo(kind).max, 300, kind, endpoint=True)
        for kind in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8")
    }
    for kind in ("i1", "i2", "i4", "i8", "u8"):
        values[kind][:2] = np.iinfo(kind).min, np.iinfo(kind).max
    with netCDF4.Dataset(file_url(tmp_path / "x.file", "nczarr"), "w") as file:
        file.createDimension("x", 300)
        for kind, numbers in values.items():
            file.createVariable(kind, kind, "x")[:] = numbers
        strings = file.createVariable("strings", str, "x")
        strings[:2] = np.array([EVERY_CHARACTER, "NIL"], object)
        file.every = EVERY_CHARACTER
        text = file.createVariable("text", "S1", "x", fill_value=b"x")
        text.set_auto_chartostring(False)
        text[:] = np.arange(300).astype("u1").view("S1")
    (tmp_path / "x.cdl").write_text("".join(xr_nczarr.dump(tmp_path / "x.file")))
    run("ncgen", "-4", "-o", str(tmp_path / "x.nc"), str(tmp_path / "x.cdl"))
    with netCDF4.Dataset(tmp_path / "x.nc") as file:
        file.set_auto_mask(False)
        file.set_auto_chartostring(False)
        for kind, numbers in values.items():
            np.testing.assert_array_equal(file[kind][:], numbers, kind)
        assert file["strings"][:3].tolist() == [EVERY_CHARACTER, "NIL", ""]
        assert file.every == EVERY_CHARACTER
        assert file["text"][:].tobytes() == np.arange(300).astype("u1").tobytes()


# Keywords that ncgen accepts as names, and every permitted character.
NAMES = "data dimensions variables types group groups variable dimension vlen inf f Float 9lives"
SPECIAL = r"""%!"#$&'()*,:;<=>[]^`{|}~.@-+ """
NAMES = [*NAMES.split(), "1e5", "12", "日本", *(f"a{character}b" for character in SPECIAL)]


@needs_ncgen
def test_ncgen_accepts_every_name_representable_in_cdl(tmp_path):
    store = {}
    inner = xr.Dataset({name: (name, [1, 2], {name: 1}) for name in NAMES}, attrs={"a%b": 2})
    groups = {name: inner[["data", "a b"]] for name in ("9 lives", "g%b", "the data")}
    xr_nczarr.to_nczarr(xr.DataTree.from_dict({"/": inner, **groups}), store)
    text = xr_nczarr.dump(store, name="data")
    assert text.left_out == []
    (tmp_path / "x.cdl").write_text(str(text))
    run("ncgen", "-4", "-o", str(tmp_path / "data.nc"), str(tmp_path / "x.cdl"))
    with xr.open_datatree(tmp_path / "data.nc") as again:
        xr.testing.assert_identical(again, xr.open_datatree(store, engine="nczarr"))


@needs_ncgen
@pytest.mark.parametrize("name", ["float", "unlimited", "NIL", "_", "_DeflateLevel", "a?b", "+x"])
@pytest.mark.parametrize("role", ["variable", "dimension", "attribute", "group"])
def test_dump_reports_names_rejected_by_ncgen(role, name, tmp_path, capsys):
    place = dict.fromkeys(("variable", "dimension", "attribute"), "x") | {role: name}
    inner = xr.Dataset(
        {place["variable"]: (place["dimension"], [1])}, attrs={place["attribute"]: 2}
    )
    group = name if role == "group" else "/"
    xr_nczarr.to_nczarr(inner, tmp_path / "n", group=group)
    assert main(["dump", str(tmp_path / "n")]) == 1
    printed = capsys.readouterr().out
    assert printed.count(name.replace("?", r"\?")) > 1 - ("?" in name)
    assert f"// ncgen does not accept the name '{name}'" in printed
    (tmp_path / "x.cdl").write_text(printed)
    command = ["ncgen", "-4", "-o", str(tmp_path / "x.nc"), str(tmp_path / "x.cdl")]
    refused = subprocess.run(command, capture_output=True, check=False, timeout=60).returncode
    assert refused or (role, name) == ("attribute", "_DeflateLevel")  # ncgen drops this attribute


def array(dtype, fill="null", shape="[2]"):
    return (
        f'{{"zarr_format": 2, "shape": {shape}, "chunks": {shape}, "dtype": "{dtype}", '
        f'"fill_value": {fill}, "order": "C", "compressor": null, "filters": null}}'
    ).encode()


def test_variables_without_netcdf_type_are_converted_or_reported():
    store = {
        ".zgroup": b'{"zarr_format": 2}',
        "flag/.zarray": array("|b1"),
        "flag/0": b"\0\1",
        "half/.zarray": array("<f2"),
        "half/0": np.array([0.1, np.nan], "f2").tobytes(),
        "when/.zarray": array("<M8[s]"),
        "when/0": np.array([5, -6], "i8").tobytes(),
        "complex/.zarray": array("<c8"),
        "broken/.zarray": array("|what"),
    }
    text = xr_nczarr.dump(store)
    assert "\tubyte flag(" in str(text)
    assert "// stored as bool" in str(text)
    assert " flag = 0, 1 ;" in str(text)
    assert f" half = {float(np.float16(0.1)):.9g}"[:13] in str(text)
    assert " when = 5, -6 ;" in str(text)
    assert "// complex is left out: netCDF has no type for complex64" in str(text)
    assert "// broken is left out: " in str(text)
    assert len(text.left_out) == 2


def test_dump_exits_with_code_1_if_output_is_incomplete(tmp_path, capsys):
    (tmp_path / ".zgroup").write_text('{"zarr_format": 2}')
    (tmp_path / "x\x1b[31m").mkdir()
    (tmp_path / "x\x1b[31m" / ".zarray").write_bytes(array("<c8"))
    assert main(["dump", str(tmp_path)]) == 1
    assert "\x1b" not in capsys.readouterr().out


def test_dump_omits_url_query_from_dataset_name(http_server, capsys):
    xr.Dataset({"n": 1}).nczarr.to_nczarr(f"{http_server.root}/some")
    assert main(["dump", f"{http_server.url}/some?key=secret"]) == 0
    assert capsys.readouterr().out.startswith("netcdf some {")


def test_dump_prints_one_line_error_for_unknown_variable(tmp_path, capsys):
    (tmp_path / ".zgroup").write_text('{"zarr_format": 2}')
    assert main(["dump", "-v", "nothing", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("shape", "chunks", "limit"),
    [
        ((), (), 8),
        ((7,), (2,), 3),
        ((7,), (2,), 100),
        ((5, 4, 6), (2, 4, 3), 50),
        ((3, 0), (1, 1), 9),
    ],
)
def test_slabs_cover_all_elements_in_order(shape, chunks, limit):
    whole = np.arange(int(np.prod(shape))).reshape(shape)
    parts = [whole[part].ravel() for part in slabs(shape, chunks, 1, limit=limit)]
    assert all(part.size <= limit for part in parts)
    assert np.concatenate(parts).tolist() == whole.ravel().tolist()


def test_dump_reads_each_chunk_of_large_variable_once(monkeypatch):
    store = {".zgroup": b'{"zarr_format": 2}'}
    document = array("<i4", shape="[100, 10]").replace(b'"chunks": [100, 10]', b'"chunks": [10, 5]')
    store["x/.zarray"] = document
    for row in range(10):
        for column in range(2):
            values = np.full((10, 5), row * 2 + column, "i4")
            store[f"x/{row}.{column}"] = values.tobytes()
    requested = []
    read = ChunkedArray.read
    monkeypatch.setattr(cdl, "slabs", lambda *a, **o: slabs(*a, **o, limit=1200))
    monkeypatch.setattr(
        ChunkedArray, "read", lambda self, part: requested.append(part) or read(self, part)
    )
    assert "  18, 18, 18, 18, 18, 19, 19, 19, 19, 19 ;" in str(xr_nczarr.dump(store))
    assert [part[0] for part in requested] == [slice(n, n + 30) for n in (0, 30, 60)] + [
        slice(90, 100)
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([1.5, 2], "1.5, 2."),
        ({"a": 1}, '"{\\"a\\": 1}"'),
        (None, '"null"'),
        (["a"], '"a"'),
        (3, "3"),
    ],
)
def test_dump_prints_attributes_of_group_with_unsupported_metadata(value, text):
    store = {}
    xr_nczarr.to_nczarr(xr.Dataset({"t": ("x", [1.0])}), store, zarr_format=3, consolidated=True)
    root = json.loads(store["zarr.json"])
    root = root | {"attributes": {"v": value}, "unknown": 1}
    store["zarr.json"] = json.dumps(root).encode()
    assert f"\t\t:v = {text} ;" in str(xr_nczarr.dump(store)).replace("string :v", ":v")


@pytest.mark.parametrize(
    ("fill_value", "text"),
    [([1, 2], "1, 2"), ([1.5, "a"], '"[1.5, \\"a\\"]"'), ("a", '"a"'), ({}, '"{}"')],
)
def test_dump_prints_invalid_fill_value_attribute(fill_value, text):
    output = str(xr_nczarr.dump(plain_objects(_FillValue=fill_value)))
    assert f"\t\ta:_FillValue = {text} ;" in output
    assert " a = 1, 2 ;" in output


@pytest.mark.parametrize(
    ("fill_value", "text"), [(1, "a:_FillValue = 1"), (["x", "y"], '"x", "y"')]
)
def test_dump_prints_invalid_fill_value_attribute_of_string_variable(fill_value, text):
    objects = plain_objects(_FillValue=fill_value)
    document = array_document((2,), "<U1", fill_value="")
    objects |= {"a/.zarray": json.dumps(document).encode(), "a/0": "pq".encode("utf-32-le")}
    output = str(xr_nczarr.dump(objects))
    assert text in output
    assert ' a = "p", "q" ;' in output
