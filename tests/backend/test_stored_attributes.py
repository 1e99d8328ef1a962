"""Text and numbers in attributes are read exactly as stored, in every notation of JSON."""

from __future__ import annotations

from pathlib import Path

import netCDF4
import numpy as np
import pytest
import xarray as xr

from tests.reading import assert_values
from tests.small_stores import store_with_good_array
from tests.stores import file_url, put, spell

TEXTS = ("001", "1.10", "-5", "TRUE", "nan", "+5", "0x10", "1.", "Infinity", "1e5", "-0", "true")


# Regression D14
def test_text_attributes_resembling_json_are_read_unchanged(tmp_path: Path) -> None:
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
def test_unquoted_nan_and_infinity_attributes_are_read_as_numbers(tmp_path: Path) -> None:
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
def test_json_in_attribute_declared_as_text_is_read_as_text(tmp_path: Path, literal: str) -> None:
    store = store_with_good_array(tmp_path / "s")
    types = '"_nczarr_attr": {"types": {"t": ">S1"}}'
    put(store, {".zattrs": f'{{"t": {literal}, {types}}}'})
    assert xr.open_dataset(store, engine="nczarr").attrs == {"t": literal}


# Regression D17
def test_escaped_characters_in_attributes_are_decoded(tmp_path: Path) -> None:
    store = store_with_good_array(tmp_path / "s")
    put(store, {".zattrs": '{"t": "\\u00e9\\ud83d\\ude00", "r": "é"}'})
    assert xr.open_dataset(store, engine="nczarr").attrs == {"t": "é😀", "r": "é"}
