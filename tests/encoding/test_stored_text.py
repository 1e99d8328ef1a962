"""Text is stored completely or rejected. Appends can make arrays of strings wider."""

import os

import netCDF4
import numcodecs
import numpy as np
import pytest
import xarray as xr
import zarr

import xr_nczarr
from tests.reading import read
from tests.writes import assert_rejected
from xr_nczarr import ConflictError, to_nczarr

TEXTS = ["ab", "c", "", "é€€", "x", "y" * 300]


# Regression D58
@pytest.mark.filterwarnings("ignore:variable s has data in the form of a dask array")
@pytest.mark.parametrize("dask", [False, True])
@pytest.mark.parametrize("target", ["{}/store", "{}/store.zip", "memory:/{}"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dialect": "universal"},
        {"dialect": "nczarr-4.8.1"},
        {"encoding": {"s": {"chunks": 2, "zlib": True, "fletcher32": True, "_FillValue": "-"}}},
        {"zarr_format": 3, "encoding": {"s": {"_nczarr_maxstrlen": 2}}},
        {"zarr_format": "3-draft", "encoding": {"s": {"_nczarr_maxstrlen": 2}}},
    ],
    ids=str,
)
def test_strings_longer_than_stored_width_can_be_appended(tmp_path, options, target, dask):
    path = target.format(tmp_path)
    for number, text in enumerate(TEXTS):
        first = xr.Dataset({"s": ("t", np.array([text], object)), "n": ("t", [number])})
        first = first.chunk(t=1) if dask else first
        to_nczarr(first, path, **({"append_dim": "t"} if number else options))
    opened = read(path, consolidated=False)
    assert opened.s.values.tolist() == TEXTS
    assert opened.n.values.tolist() == [*range(len(TEXTS))]
    assert xr_nczarr.verify(path).whole


# Regression D58
@pytest.mark.parametrize("dialect", ["nczarr", "universal", "nczarr-4.9.1", "nczarr-4.8.1"])
def test_netcdf_c_reads_all_strings_after_longer_strings_are_appended(path, dialect):
    url = f"file://{path}#mode=nczarr,file"
    if dialect == "nczarr":
        with netCDF4.Dataset(url, "w") as file:
            file.createDimension("t", None)
            variable = file.createVariable("s", str, ("t",), chunksizes=(2,))
            variable[:] = np.array(TEXTS[:3], object)
    else:
        first = xr.Dataset({"s": ("t", np.array(TEXTS[:3], object))})
        to_nczarr(first, path, dialect=dialect, unlimited_dims="t")
    for text in TEXTS[3:]:
        to_nczarr(xr.Dataset({"s": ("t", np.array([text], object))}), path, append_dim="t")
    assert read(path).s.values.tolist() == TEXTS
    with netCDF4.Dataset(url) as file:
        assert file["s"][:].tolist() == TEXTS


# Regression D58
def test_longer_strings_can_replace_variable_but_not_region(path):
    to_nczarr(xr.Dataset({"s": ("t", np.array(["ab", "c"], object))}), path)
    longer = xr.Dataset({"s": ("t", np.array(["é€€", "d"], object))})
    assert_rejected(path, "8 bytes", longer, region={"t": slice(0, 2)})
    assert_rejected(path, "8 bytes", longer, mode="r+")
    to_nczarr(longer, path, mode="a")
    assert read(path).s.values.tolist() == ["é€€", "d"]


# Regression D58
def test_invalid_append_with_longer_strings_is_rejected_before_any_change(path):
    dataset = xr.Dataset({"s": ("t", np.array(["ab"], object)), "n": ("t", [1])})
    to_nczarr(dataset, path)
    longer = xr.Dataset({"s": ("t", np.array(["abcdef"], object)), "n": ("t", [1.5])})
    assert_rejected(path, "does not fit", longer, append_dim="t")
    assert_rejected(path, "not in the dataset", longer.drop_vars("n"), append_dim="t")


# Regression D58
def test_appending_longer_character_arrays_is_rejected(path):
    to_nczarr(xr.Dataset({"s": ("t", [b"abc", b"d"])}), path)
    assert_rejected(path, "4 bytes", xr.Dataset({"s": ("t", [b"wxyz"])}), append_dim="t")
    to_nczarr(xr.Dataset({"s": ("t", [b"w"])}), path, append_dim="t")
    assert read(path).s.values.tolist() == [b"abc", b"d", b"w"]


# Regression D65
@pytest.mark.parametrize("text", ["x" * 300, "é" * 64 + "x", "x" * 127 + "é", "日本語" * 50])
def test_strings_are_never_truncated(path, text):
    to_nczarr(xr.Dataset({"s": ("t", np.array([text, "a"], object))}), path)
    assert read(path).s.values.tolist() == [text, "a"]


# Regression D65
@pytest.mark.parametrize("width", [127, 5])
def test_requested_string_width_below_actual_width_is_rejected(path, width):
    dataset = xr.Dataset({"s": ("t", np.array(["x" * 127 + "é"], object))})
    with pytest.raises(ConflictError, match="129 bytes"):
        to_nczarr(dataset, path, encoding={"s": {"_nczarr_maxstrlen": width}})
    assert not os.path.exists(path)


def test_requested_shards_can_omit_character_dimension(path):
    stored = xr.Dataset({"s": ("x", np.array([b"one", b"three", b"two"]))})
    encoding = {"s": {"chunks": (1,), "shards": (2,)}}
    to_nczarr(stored, path, encoding=encoding, zarr_format=3, dialect="nczarr")
    assert read(path).s.values.tolist() == stored.s.values.tolist()
    assert read(path).s.encoding["shards"] == (2, 5)


@pytest.mark.parametrize(
    ("values", "dialects"), [([b"ab\0", b"c"], ["nczarr", "zarr"]), (["ab\0", "c"], ["nczarr"])]
)
def test_strings_with_trailing_nul_are_rejected(values, dialects):
    dataset = xr.Dataset({"v": ("x", np.array(values, object))})
    for dialect in dialects:
        store = {}
        with pytest.raises(ConflictError, match="NUL"):
            to_nczarr(dataset, store, dialect=dialect)
        assert store == {}


# In Zarr v3, each byte of a bytes object was once stored as a character, and the write failed.
@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("dtype", [object, "S3"])
def test_bytes_are_stored_as_text_if_encoding_requests_str(zarr_format, dtype):
    def write(items):
        dataset, store = xr.Dataset({"v": ("x", np.array(items, dtype))}), {}
        to_nczarr(dataset, store, zarr_format=zarr_format, encoding={"v": {"dtype": str}})
        return read(store).v.values.tolist()

    assert write([b"", b"abc", "é".encode()]) == ["", "abc", "é"]
    with pytest.raises(ConflictError, match="the bytes are not valid UTF-8"):
        write([b"a", b"\xff"])


# zarr-python could not read such chunks if they were shuffled.
@pytest.mark.parametrize("dialect", ["nczarr", "zarr"])
@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize(
    "encoding", [{"zlib": True}, {"compression": "zstd", "shuffle": True}], ids=["zlib", "zstd"]
)
def test_compressed_strings_are_not_shuffled(tmp_path, dialect, zarr_format, encoding):
    dataset = xr.Dataset({"v": ("x", np.array(["a", "bcd"], object))})
    options = {"zarr_format": zarr_format, "dialect": dialect, "encoding": {"v": encoding}}
    to_nczarr(dataset, tmp_path / "s", **options)
    with xr.open_dataset(tmp_path / "s", engine="zarr", consolidated=False) as opened:
        assert opened.v.values.astype("U3").tolist() == ["a", "bcd"]


# Without any strings, Zarr v2 strings with a fill value were once converted to floats.
@pytest.mark.parametrize("chunks", [None, {}], ids=["eager", "dask"])
@pytest.mark.parametrize("dialect", ["nczarr", "zarr"])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_empty_selection_of_string_variable_is_stored_as_strings(
    path, dialect, zarr_format, chunks
):
    source = {}
    dataset = xr.Dataset({"v": ("x", np.array(["a", "bcd"], object), {}, {"_FillValue": ""})})
    to_nczarr(dataset, source, zarr_format=zarr_format, dialect="zarr")
    opened = xr.open_dataset(source, engine="nczarr", chunks=chunks)
    options = {"zarr_format": zarr_format, "dialect": dialect, "unlimited_dims": "x"}
    to_nczarr(opened.isel(x=slice(0)), path, **options)
    to_nczarr(dataset, path, append_dim="x")
    assert read(path).v.values.tolist() == ["a", "bcd"]


@pytest.mark.parametrize("dialect", ["nczarr", "zarr"])
@pytest.mark.parametrize("values", [[b"z", b"bcd"], ["z", "bcd"]], ids=["bytes", "text"])
def test_empty_selection_of_masked_fixed_width_strings_keeps_type(tmp_path, path, dialect, values):
    dataset = xr.Dataset({"v": ("x", np.array(values))})
    source = str(tmp_path / "source.zarr")
    encoding = {"v": {"_FillValue": values[0]}}
    dataset.to_zarr(source, zarr_format=2, encoding=encoding, consolidated=False)
    opened = xr.open_dataset(source, engine="nczarr")
    to_nczarr(opened.isel(x=slice(0)), path, dialect=dialect, unlimited_dims="x")
    to_nczarr(opened.isel(x=slice(1, 2)), path, append_dim="x")
    assert read(path).v.values.tolist() == values[1:]


# The fill value was once stored as text, which readers decoded as Base64.
@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("key", ["fill_value", "_FillValue"])
def test_fill_value_of_variable_length_bytes_is_stored_as_base64(path, key, zarr_format):
    dataset = xr.Dataset({"v": ("x", np.array([b"a", b"abcd"], object))})
    encoding = {"v": {"filters": [numcodecs.VLenBytes()], "chunks": 1, key: b"abcd"}}
    to_nczarr(dataset, path, zarr_format=zarr_format, dialect="zarr", encoding=encoding)
    assert zarr.open_array(path + "/v").fill_value == b"abcd"
    assert read(path, mask_and_scale=False).v.values.tolist() == [b"a", b"abcd"]


@pytest.mark.parametrize(("dialect", "dtype"), [("nczarr", "S1"), ("zarr", object)])
def test_copy_of_empty_bytes_array_keeps_bytes_dtype(dialect, dtype):
    source, target = {}, {}
    dataset = xr.Dataset({"v": ("x", np.array([b"a"], object))})
    encoding = {"v": {"filters": [numcodecs.VLenBytes()]}}
    to_nczarr(dataset, source, zarr_format=3, dialect="zarr", encoding=encoding)
    empty = xr.open_dataset(source, engine="nczarr").isel(x=slice(0))
    store = {}
    to_nczarr(empty, store, zarr_format=3, dialect="zarr")
    xr_nczarr.copy(store, target, dialect=dialect)
    assert read(target).v.dtype == dtype


# Each string was once written as if it were one of the stored characters.
@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_strings_can_be_written_to_character_arrays(path, zarr_format):
    def texts(*items):
        return xr.Dataset({"v": ("x", np.array(items))})

    characters = xr.Dataset({"v": (("x", "length"), np.array([[b"a", b"b"], [b"c", b""]]))})
    characters.to_zarr(path, zarr_format=zarr_format, consolidated=False)
    to_nczarr(texts(b"d", b"ef"), path, append_dim="x")
    to_nczarr(texts(b"g"), path, region={"x": slice(1, 2)})
    assert_rejected(path, "'hij' does not fit", texts(b"hij"), append_dim="x")
    for engine in ("zarr", "nczarr"):
        with xr.open_dataset(path, engine=engine, consolidated=False) as opened:
            assert opened.v.values.tolist() == [b"ab", b"g", b"d", b"ef"]


@pytest.mark.filterwarnings("ignore:.*dask array with dtype=object")
@pytest.mark.parametrize("dtype", ["S1", object])
@pytest.mark.parametrize("in_dask", [False, True], ids=["numpy", "dask"])
@pytest.mark.parametrize("version", [1, 2, 3])
def test_arrays_of_single_bytes_in_plain_zarr_are_not_joined_into_strings(
    path, version, in_dask, dtype
):
    data = xr.Dataset({"data": ("x", np.array([b"a", b"", b"c"], dtype))})
    source = data.chunk(x=2) if in_dask else data
    to_nczarr(source, path, dialect="zarr", zarr_format=version, consolidated=False)
    for engine in ["nczarr"] if version == 1 else ["nczarr", "zarr"]:
        options = {} if version == 1 else {"consolidated": False}
        with xr.open_dataset(path, engine=engine, **options) as opened:
            assert opened.data.values.tolist() == [b"a", b"", b"c"]


def test_characters_not_joined_into_strings_are_copied_unchanged(tmp_path):
    characters = xr.Dataset({"t": (("x", "length"), np.array([[b"a", b"b"], [b"c", b"d"]]))})
    characters.to_zarr(tmp_path / "s", zarr_format=2, consolidated=False)
    opened = xr.open_dataset(tmp_path / "s", engine="nczarr", concat_characters=False)
    to_nczarr(opened, tmp_path / "copy", dialect="zarr")
    copied = xr.open_dataset(tmp_path / "copy", engine="nczarr", concat_characters=False)
    assert copied.t.dtype == "S1"
    xr.testing.assert_identical(copied, opened)


@pytest.mark.parametrize("lazy", [False, True], ids=["NumPy", "dask"])
@pytest.mark.parametrize("dialect", ["nczarr", "zarr"])
def test_missing_strings_are_stored_as_requested_fill_value(path, dialect, lazy):
    text = xr.Variable("x", np.array(["a", np.nan, None], object))
    text = xr.Dataset({"s": text.chunk(x=1) if lazy else text})
    encoding = {"s": {"dtype": "U7", "_FillValue": "missing"}}
    to_nczarr(text, path, dialect=dialect, encoding=encoding)
    assert read(path).s.isnull().values.tolist() == [False, True, True]
    encoding = {"s": {"dtype": "U3", "_FillValue": "missing"}}
    with pytest.raises(ConflictError, match="the string 'missing' does not fit"):
        to_nczarr(text.load(), {}, dialect=dialect, encoding=encoding)


# These strings were once rejected only during the write, by a ChunkError.
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize(
    ("values", "problem"),
    [
        (np.array(["é", "\ud800x"]), r"the string '\\ud800' is not valid Unicode"),
        (np.array(["é", b"\xff"], object), "the bytes are not valid UTF-8"),
    ],
    ids=["surrogate", "bytes"],
)
def test_invalid_unicode_in_plain_zarr_is_rejected_before_writing(values, problem, version):
    dataset = xr.Dataset({"s": ("x", values)})
    options = {"dialect": "zarr", "zarr_format": version}
    with pytest.raises(ConflictError, match=rf"{problem}.*\(variable s\)"):
        to_nczarr(dataset, store := {}, **options)
    assert store == {}
    to_nczarr(xr.Dataset({"s": ("x", ["a"])}), store, **options)
    before = dict(store)
    with pytest.raises(ConflictError, match=rf"{problem}.*\(variable /s\)"):
        to_nczarr(dataset, store, append_dim="x")
    assert store == before


@pytest.mark.filterwarnings("ignore:variable s has data in the form of a dask array")
@pytest.mark.parametrize("in_blocks", [False, True])
@pytest.mark.parametrize("dialect", ["nczarr", "zarr"])
def test_mixed_values_are_stored_as_text_if_text_comes_first(dialect, in_blocks):
    dataset = xr.Dataset({"s": ("x", np.array(["é", b"b"], object))})
    dataset = dataset.chunk() if in_blocks else dataset
    to_nczarr(dataset, store := {}, dialect=dialect)
    to_nczarr(dataset, store, append_dim="x")
    assert read(store).s.values.tolist() == ["é", "b", "é", "b"]
