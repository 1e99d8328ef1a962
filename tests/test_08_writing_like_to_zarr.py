"""Arguments that mean what they mean in `to_zarr`, and what is refused that is none."""

from enum import Enum

import numpy as np
import pytest
import xarray as xr

from xr_nczarr import ConflictError, ExistsError, to_nczarr


def read(target, **options):
    """Give all of what was written."""
    return xr.open_dataset(target, engine="nczarr", **options).load()


@pytest.mark.parametrize("mode", ["a", "w", "r+"])
@pytest.mark.parametrize("group", ["g//h", "/g/h/", "//g///h"])
def test_a_group_is_the_same_however_many_slashes_its_path_has(group, mode):
    old = xr.Dataset({"v": ("x", np.arange(8))})
    store = {}
    to_nczarr(old, store, group="g/h", encoding={"v": {"chunks": 8}})
    with pytest.raises(ExistsError):
        to_nczarr(old, store, group=group)
    to_nczarr(old.chunk(x=2) + 100, store, group=group, mode=mode)
    for spelled in ("g/h", group):
        assert read(store, group=spelled).identical(old + 100)


def test_a_group_that_is_no_text_is_refused():
    with pytest.raises(ValueError, match="group must be a string or None; found 3"):
        to_nczarr(xr.Dataset(), {}, group=3)


@pytest.mark.parametrize("layout", [{}, {"zarr_format": 3}, {"dialect": "zarr"}])
@pytest.mark.parametrize("encoding", [{"_FillValue": -9999}, {"missing_value": 0, "dtype": "bool"}])
def test_truth_values_without_one_to_spare_are_not_made_missing(encoding, layout):
    dataset = xr.Dataset({"v": ("x", [True, False])})
    with pytest.raises(ConflictError, match=r"truth values have none to spare.*variable v"):
        to_nczarr(dataset, {}, encoding={"v": encoding}, **layout)
    store = {}
    to_nczarr(dataset, store, encoding={"v": {"_FillValue": -1, "dtype": "i1"}}, **layout)
    assert read(store).v.values.tolist() == [1, 0]
    to_nczarr(dataset, store, encoding={"v": {"_FillValue": None}}, mode="w", **layout)
    assert read(store).identical(dataset)


def test_text_of_an_enum_is_its_text():
    class Axis(str, Enum):  # noqa: UP042 (that one tells its text)
        LATITUDE = "Y"

    store = {}
    to_nczarr(xr.Dataset(attrs={"one": Axis.LATITUDE, "two": ["X", Axis.LATITUDE]}), store)
    assert read(store).attrs == {"one": "Y", "two": ["X", "Y"]}


def test_without_a_mode_it_is_the_one_that_the_other_arguments_need():
    dataset, store = xr.Dataset({"v": ("x", [1, 2])}), {}
    to_nczarr(dataset, store, mode=None)
    with pytest.raises(ExistsError):
        to_nczarr(dataset, store, mode=None)
    to_nczarr(dataset, store, mode=None, append_dim="x")
    to_nczarr(dataset * 10, store, mode=None, region={"x": slice(1, 3)})
    assert read(store).v.values.tolist() == [1, 10, 20, 2]
    for asked in ({"append_dim": "x"}, {"region": {"x": slice(0, 2)}}):
        for mode in ("w", "w-"):
            with pytest.raises(ValueError, match=r"cannot set .* unless mode='a'"):
                to_nczarr(dataset, store, mode=mode, **asked)
    assert read(store).v.values.tolist() == [1, 10, 20, 2]


@pytest.mark.parametrize("mode", ["w", "a", "r+"])
def test_encoding_of_a_variable_that_is_not_written_is_refused(mode):
    dataset, store = xr.Dataset({"v": ("x", [1, 2])}), {}
    to_nczarr(dataset, store)
    before = dict(store)
    with pytest.raises(KeyError, match="encoding is given for 'V'"):
        to_nczarr(dataset, store, mode=mode, encoding={"V": {"dtype": "i2"}})
    assert store == before


def test_the_first_append_is_along_a_dimension_that_is_there():
    dataset, store = xr.Dataset({"v": ("x", [1, 2])}), {}
    with pytest.raises(ConflictError, match="append_dim='X' does not match any dimension"):
        to_nczarr(dataset, store, append_dim="X")
    assert not store
    to_nczarr(dataset, store, append_dim="x")
    assert read(store).identical(dataset)


@pytest.mark.parametrize(("asked", "chunks"), [((-1, 2), (6, 2)), (-1, (6, 4)), ([2, -1], (2, 4))])
def test_chunks_of_minus_one_are_all_along_a_dimension(asked, chunks):
    dataset, store = xr.Dataset({"v": (("y", "x"), np.ones((6, 4)))}), {}
    to_nczarr(dataset.chunk(y=4), store, encoding={"v": {"chunks": asked}})
    assert read(store).v.encoding["chunks"] == chunks
    assert read(store).identical(dataset)
    with pytest.raises(ConflictError, match="found chunks of"):
        to_nczarr(dataset, {}, encoding={"v": {"chunks": (-2, 2)}})


@pytest.mark.parametrize(
    ("dtype", "missing"),
    [
        (object, None),
        (np.dtypes.StringDType(na_object=None), None),
        (np.dtypes.StringDType(na_object=np.nan), np.nan),
    ],
)
@pytest.mark.parametrize("chunks", [None, 3])
@pytest.mark.parametrize("layout", [{}, {"zarr_format": 3}, {"dialect": "zarr"}])
@pytest.mark.filterwarnings("ignore:variable .* has data in the form of a dask array")
def test_missing_text_is_empty_of_numpys_own_kind_too(layout, chunks, dtype, missing):
    text = np.array(["ä", missing, "nan"], dtype)
    dataset = xr.Dataset({"v": ("x", text), "same": ("y", text)})
    dataset = dataset.chunk(chunks) if chunks else dataset
    store = {}
    to_nczarr(dataset, store, **layout)
    assert read(store).v.values.tolist() == ["ä", "", "nan"]
    to_nczarr(dataset, store, append_dim="x")
    found = read(store)
    assert found.v.values.tolist() == 2 * ["ä", "", "nan"]
    assert found.same.values.tolist() == ["ä", "", "nan"]
    with pytest.raises(ConflictError, match="'same' does not lie along the append dimension"):
        to_nczarr(dataset.assign(same=dataset.same[::-1]), store, append_dim="x")
