"""Numbers that are stored in an encoding, compared with exact arithmetic."""

from fractions import Fraction

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

import xr_nczarr
from xr_nczarr.errors import ConflictError

pytestmark = [
    pytest.mark.filterwarnings("ignore:saving variable v with floating point data"),
    pytest.mark.filterwarnings("ignore:variable 'v' "),
]

INTEGERS = ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"]
SCALES = [None, 0.1, 0.5, -0.25, 3.0, 1e-3]
OFFSETS = [None, 5, -7, 0.5, 273.15]


def nearby(dtype):
    """Return a strategy for integers in and around the range of a type."""
    range_ = np.iinfo(dtype)
    edges = st.sampled_from([range_.min, range_.max, 0])
    around = st.builds(int.__add__, edges, st.integers(-2, 2))
    return around | st.integers(range_.min, range_.max)


@st.composite
def cases(draw):
    """Return values, an encoding, and the integer type that its bits are meant as."""
    stored, source = draw(st.sampled_from(INTEGERS)), draw(st.sampled_from([*INTEGERS, "f4", "f8"]))
    unsigned = draw(st.sampled_from([None, None, "true", "false"]))
    meant = stored if unsigned is None else {"true": "u", "false": "i"}[unsigned] + stored[1]
    scale, offset = draw(st.sampled_from(SCALES)), draw(st.sampled_from(OFFSETS))
    encoding = {"dtype": stored}
    encoding |= {} if scale is None else {"scale_factor": scale}
    encoding |= {} if offset is None else {"add_offset": offset}
    encoding |= {} if unsigned is None else {"_Unsigned": unsigned}
    if unsigned is not None or draw(st.booleans()):  # xarray keeps `_Unsigned` beside it only
        encoding["_FillValue"] = draw(st.sampled_from([np.iinfo(stored).min, np.iinfo(stored).max]))
    packed = draw(st.lists(nearby(meant), min_size=1, max_size=4))
    exact = [number * Fraction(scale or 1) + Fraction(offset or 0) for number in packed]
    values = []
    for number in exact:
        if source[0] == "f":
            values.append(float(number) + draw(st.sampled_from([0.0, 0.0, 0.3])))
        elif abs(number) < 2**62 and number == int(number):
            values.append(int(number))
    if source[0] == "f" and draw(st.booleans()):
        values.append(float("nan"))
    range_ = None if source[0] == "f" else np.iinfo(source)
    values = [v for v in values if range_ is None or range_.min <= v <= range_.max]
    return np.array(values, source), encoding, np.dtype(meant)


def stored_numbers(store, meant):
    """Return the stored integers as they are meant."""
    with xr.open_dataset(store, engine="nczarr", mask_and_scale=False) as dataset:
        return dataset["v"].values.view(meant).tolist()


def held(number, encoding):
    """Return what a stored integer stands for."""
    scale, offset = encoding.get("scale_factor", 1), encoding.get("add_offset", 0)
    return number * Fraction(scale) + Fraction(offset)


def margin(values, encoding):
    """Return how far the floats in which numbers are packed may be from exact ones."""
    eps = np.finfo(values.dtype).eps if values.dtype.kind == "f" else np.finfo("f8").eps
    largest = max((abs(value) for value in values.tolist() if value == value), default=0)
    return (
        4
        * Fraction(float(eps))
        * (Fraction(largest) + abs(Fraction(encoding.get("add_offset", 0))))
    )


def check_held(values, numbers, encoding, meant, room):
    """Check that stored integers stand for the values, within half a step and `room`."""
    fill = encoding.get("_FillValue")
    mark = None if fill is None else np.array(fill, encoding["dtype"]).view(meant).item()
    for value, number in zip(values.tolist(), numbers, strict=True):
        if value != value:
            assert number == mark
        else:
            assert abs(held(number, encoding) - Fraction(value)) <= room


@settings(max_examples=60, deadline=None)
@given(cases())
def test_a_new_variable_holds_its_numbers_within_half_a_step_or_is_refused(case):
    values, encoding, meant = case
    step = abs(Fraction(encoding.get("scale_factor", 1)))
    room = margin(values, encoding)
    missing = "_FillValue" not in encoding and bool(np.isnan(values).any())
    range_ = np.iinfo(meant)
    lowest, highest = sorted([held(range_.min, encoding), held(range_.max, encoding)])
    numbers = [Fraction(value) for value in values.tolist() if value == value]
    store = {}
    try:
        xr_nczarr.to_nczarr(xr.Dataset({"v": ("x", values)}), store, encoding={"v": encoding})
    except ConflictError:
        wraps = values.dtype.kind in "iu" and isinstance(encoding.get("add_offset"), int)
        within = all(lowest + room <= number <= highest - room for number in numbers)
        unfilled = missing or (np.isnan(values).any() and "_FillValue" in encoding)
        assert unfilled or wraps or not within
    else:
        assert not missing
        assert all(
            lowest - step / 2 - room <= number <= highest + step / 2 + room for number in numbers
        )
        check_held(values, stored_numbers(store, meant), encoding, meant, step / 2 + room)


@settings(max_examples=60, deadline=None)
@given(cases())
def test_appended_numbers_are_exact_but_for_packing_or_refused(case):
    values, encoding, meant = case
    store = {}
    empty = xr.Dataset({"v": ("x", values[:0])})
    xr_nczarr.to_nczarr(empty, store, encoding={"v": encoding}, unlimited_dims=["x"])
    step = abs(Fraction(encoding["scale_factor"])) if "scale_factor" in encoding else 0
    room = margin(values, encoding)
    fill = encoding.get("_FillValue")
    mark = None if fill is None else np.array(fill, encoding["dtype"]).view(meant).item()
    range_ = np.iinfo(meant)
    try:
        xr_nczarr.to_nczarr(xr.Dataset({"v": ("x", values)}), store, append_dim="x")
    except ConflictError:
        if "scale_factor" in encoding or "add_offset" in encoding:
            return
        fits = [v == v and v == int(v) and range_.min <= v <= range_.max for v in values.tolist()]
        missing = [v != v and fill is not None for v in values.tolist()]
        hits = [v == mark for v in values.tolist()]
        assert any(hits) or not all(map(any, zip(fits, missing, strict=True)))
    else:
        numbers = stored_numbers(store, meant)
        check_held(values, numbers, encoding, meant, step / 2 * Fraction(1.000002) + room)
        if "scale_factor" not in encoding and "add_offset" not in encoding:
            check_held(values, numbers, encoding, meant, 0)
        assert mark not in [n for n, v in zip(numbers, values.tolist(), strict=True) if v == v]
