"""Values that xarray cannot decode are opened undecoded, or raise errors that state the reason."""

import pytest
import xarray as xr

from tests.small_stores import plain_objects
from xr_nczarr import MetadataError, StorageError
from xr_nczarr.backend.lazy import decoder_errors_as_metadata


@pytest.mark.parametrize(
    "attributes",
    [
        {"units": "days since 2000-13-41"},
        {"units": "days since 2000-01-01", "calendar": "x"},
        {"add_offset": [1, 2, 3]},
    ],
    ids=str,
)
def test_warning_about_undecodable_attribute_includes_its_name(attributes):
    message = r"^/a was not decoded: mapping, attribute .*variable /a\)"
    with pytest.warns(xr.SerializationWarning, match=message):
        dataset = xr.open_dataset(plain_objects(**attributes), engine="nczarr")
    assert dataset["a"].values.tolist() == [1, 2]


def test_bounds_attribute_that_is_not_text_causes_warning_if_time_variable_is_empty():
    objects = plain_objects(
        shape=[0], units="days since 2000-01-01", calendar="noleap", bounds=[0, 1]
    )
    with pytest.warns(xr.SerializationWarning, match="attribute bounds"):
        dataset = xr.open_dataset(objects, engine="nczarr")
    assert dataset["a"].attrs["bounds"] == [0, 1]


@pytest.mark.parametrize("attributes", [{"scale_factor": "text"}, {"add_offset": "0.5"}], ids=str)
def test_load_error_for_undecodable_attribute_includes_variable_name(attributes):
    with (
        xr.open_dataset(plain_objects(**attributes), engine="nczarr") as dataset,
        pytest.raises(MetadataError, match=r"mapping.*cannot decode.*\ba\b.*decode_cf") as caught,
    ):
        dataset.load()
    assert caught.value.__cause__ is not None
    with xr.open_dataset(plain_objects(**attributes), engine="nczarr", decode_cf=False) as dataset:
        assert dataset["a"].values.tolist() == [1, 2]


@pytest.mark.parametrize(
    "failure",
    [NotImplementedError(), KeyError("units"), AssertionError()],
    ids=lambda failure: type(failure).__name__,
)
def test_error_from_xarray_decoding_always_states_reason(failure):
    with (
        pytest.raises(MetadataError, match=type(failure).__name__) as caught,
        decoder_errors_as_metadata("store", "/a"),
    ):
        raise failure
    assert "()" not in str(caught.value)
    assert caught.value.__cause__ is failure
    assert "decode_cf=False" in caught.value.remedy


def test_memory_error_during_decoding_is_not_reported_as_metadata_error():
    with pytest.raises(MemoryError), decoder_errors_as_metadata("store", "/a"):
        raise MemoryError


def test_storage_errors_during_xarray_decoding_keep_their_class():
    objects = plain_objects(units="days since 2000-01-01")
    objects["a/0"] = 3
    with pytest.warns(
        xr.SerializationWarning,
        match=r"^/a was not decoded: .*a/0: the mapping contains a value of type int",
    ):
        dataset = xr.open_dataset(objects, engine="nczarr")
    with pytest.raises(StorageError, match="the mapping contains a value of type int"):
        dataset["a"].load()
