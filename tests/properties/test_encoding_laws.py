"""Encoded values are compared with the results of exact arithmetic."""

from fractions import Fraction

import numpy as np
import pytest
import xarray as xr
from hypothesis import example, given, settings
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
    """Return a strategy for integers that are within the range of a type or just outside it."""
    range_ = np.iinfo(dtype)
    edges = st.sampled_from([range_.min, range_.max, 0])
    around = st.builds(int.__add__, edges, st.integers(-2, 2))
    return around | st.integers(range_.min, range_.max)


@st.composite
def cases(draw):
    """Draw values, an encoding that packs them, and an integer type.

    xarray interprets the bits of the stored integers in this type, according to `_Unsigned`.
    """
    stored, source = draw(st.sampled_from(INTEGERS)), draw(st.sampled_from([*INTEGERS, "f4", "f8"]))
    unsigned = draw(st.sampled_from([None, None, "true", "false"]))
    meant = stored if unsigned is None else {"true": "u", "false": "i"}[unsigned] + stored[1]
    scale, offset = draw(st.sampled_from(SCALES)), draw(st.sampled_from(OFFSETS))
    encoding = {"dtype": stored}
    encoding |= {} if scale is None else {"scale_factor": scale}
    encoding |= {} if offset is None else {"add_offset": offset}
    encoding |= {} if unsigned is None else {"_Unsigned": unsigned}
    if unsigned is not None or draw(
        st.booleans()
    ):  # xarray keeps `_Unsigned` only with a fill value
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
    """Return the stored integers in the type that `_Unsigned` declares."""
    with xr.open_dataset(store, engine="nczarr", mask_and_scale=False) as dataset:
        return dataset["v"].values.view(meant).tolist()


def represented_number(number, encoding):
    """Return the exact number that a stored integer represents."""
    scale, offset = encoding.get("scale_factor", 1), encoding.get("add_offset", 0)
    return number * Fraction(scale) + Fraction(offset)


def margin(values, encoding):
    """Return an upper bound on the rounding errors of the floats that are used to pack values."""
    eps = np.finfo(values.dtype).eps if values.dtype.kind == "f" else np.finfo("f8").eps
    largest = max((abs(value) for value in values.tolist() if value == value), default=0)
    return (
        4
        * Fraction(float(eps))
        * (Fraction(largest) + abs(Fraction(encoding.get("add_offset", 0))))
    )


def missing_marker(encoding, meant):
    """Return the stored integer that marks missing values, or None if no integer does."""
    fill = encoding.get("_FillValue")
    return None if fill is None else np.array(fill, encoding["dtype"]).view(meant).item()


def check_represented(values, numbers, encoding, meant, room):
    """Check that stored integers represent the values within the tolerance `room`."""
    mark = missing_marker(encoding, meant)
    for value, number in zip(values.tolist(), numbers, strict=True):
        if value != value:
            assert number == mark
        else:
            assert abs(represented_number(number, encoding) - Fraction(value)) <= room


@settings(max_examples=60, deadline=None)
@given(cases())
def test_packed_numbers_are_accurate_or_rejected(case):
    values, encoding, meant = case
    step = abs(Fraction(encoding.get("scale_factor", 1)))
    room = margin(values, encoding)
    missing = "_FillValue" not in encoding and bool(np.isnan(values).any())
    range_ = np.iinfo(meant)
    lowest, highest = sorted(
        [represented_number(range_.min, encoding), represented_number(range_.max, encoding)]
    )
    numbers = [Fraction(value) for value in values.tolist() if value == value]
    mark, store = missing_marker(encoding, meant), {}
    try:
        xr_nczarr.to_nczarr(xr.Dataset({"v": ("x", values)}), store, encoding={"v": encoding})
    except ConflictError:
        wraps = values.dtype.kind in "iu" and isinstance(encoding.get("add_offset"), int)
        within = all(lowest + room <= number <= highest - room for number in numbers)
        unfilled = missing or (np.isnan(values).any() and "_FillValue" in encoding)
        hidden = mark is not None and any(
            abs(represented_number(mark, encoding) - number) <= step / 2 + room
            for number in numbers
        )
        assert unfilled or wraps or hidden or not within
    else:
        assert not missing
        stored = stored_numbers(store, meant)
        pairs = zip(values.tolist(), stored, strict=True)
        assert all(value == mark or value != value for value, number in pairs if number == mark)
        assert all(
            lowest - step / 2 - room <= number <= highest + step / 2 + room for number in numbers
        )
        check_represented(values, stored, encoding, meant, step / 2 + room)


@settings(max_examples=60, deadline=None)
@given(cases())
def test_appended_numbers_are_packed_exactly_or_are_rejected(case):
    values, encoding, meant = case
    store = {}
    empty = xr.Dataset({"v": ("x", values[:0])})
    xr_nczarr.to_nczarr(empty, store, encoding={"v": encoding}, unlimited_dims=["x"])
    step = abs(Fraction(encoding["scale_factor"])) if "scale_factor" in encoding else 0
    room = margin(values, encoding)
    fill, mark = encoding.get("_FillValue"), missing_marker(encoding, meant)
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
        check_represented(values, numbers, encoding, meant, step / 2 * Fraction(1.000002) + room)
        if "scale_factor" not in encoding and "add_offset" not in encoding:
            check_represented(values, numbers, encoding, meant, 0)
        assert mark not in [n for n, v in zip(numbers, values.tolist(), strict=True) if v == v]


FLOATS = ["f4", "f8"]


def spacing(number, dtype):
    """Return an upper bound on the distance between a number and the next float of a type."""
    info = np.finfo(dtype)
    return max(Fraction(float(info.eps)) * abs(number), Fraction(float(info.smallest_subnormal)))


@st.composite
def floats(draw):
    """Draw values of any type, and an encoding that stores them as floats."""
    stored, source = draw(st.sampled_from(FLOATS)), draw(st.sampled_from([*INTEGERS, *FLOATS, "?"]))
    scale, offset = draw(st.sampled_from(SCALES)), draw(st.sampled_from(OFFSETS))
    encoding = {"dtype": stored, "_FillValue": draw(st.sampled_from([None, np.nan, -999.0, 1e20]))}
    encoding |= {} if scale is None else {"scale_factor": scale}
    encoding |= {} if offset is None else {"add_offset": offset}
    if source == "?":
        strategy = st.booleans()
    elif source in INTEGERS:
        strategy = nearby(source)
    else:
        strategy = st.floats(width=int(source[1]) * 8)
    values = draw(st.lists(strategy, min_size=1, max_size=4))
    range_ = None if source not in INTEGERS else np.iinfo(source)
    values = [v for v in values if range_ is None or range_.min <= v <= range_.max]
    return np.array(values, source), encoding


def check_floats(values, stored, encoding, source):
    """Check that stored floats represent the values as precisely as both types allow."""
    scale, offset = (
        Fraction(encoding.get("scale_factor", 1)),
        Fraction(encoding.get("add_offset", 0)),
    )
    fill = encoding["_FillValue"]
    for value, number in zip(values.tolist(), stored.tolist(), strict=True):
        if value != value:
            mark = np.nan if fill is None else np.dtype(encoding["dtype"]).type(fill).item()
            assert number == mark or (number != number and mark != mark)
        elif np.isinf(value):
            assert number == value * (1 if scale > 0 else -1)
        else:
            types = [encoding["dtype"], source if source in FLOATS else "f8"]
            room = 4 * max(spacing(abs(Fraction(value)) + abs(offset), dtype) for dtype in types)
            assert abs(Fraction(number) * scale + offset - Fraction(value)) <= room * max(
                1, abs(scale)
            )


def decodes_to_infinity(number, encoding):
    """Return whether decoding a packed float overflows, because packing rounded it."""
    with np.errstate(over="ignore"):
        decoded = np.float64(number) * encoding.get("scale_factor", 1)
        return np.isinf(decoded + encoding.get("add_offset", 0))


@settings(max_examples=60, deadline=None)
@given(floats())
@example((np.array([3.402824e35], "f4"), {"dtype": "f8", "_FillValue": None, "scale_factor": 1e-3}))
@example((np.array([np.finfo("f8").max]), {"dtype": "f8", "_FillValue": None, "scale_factor": 3.0}))
def test_floats_keep_stored_precision_or_are_rejected(case):
    values, encoding = case
    source = values.dtype.str[1:]
    # xarray packs floats in their own type, before it converts them to the stored type.
    types = [encoding["dtype"], source if source in FLOATS else "f8"]
    highest = Fraction(min(float(np.finfo(dtype).max) for dtype in types))
    store = {}
    try:
        xr_nczarr.to_nczarr(xr.Dataset({"v": ("x", values)}), store, encoding={"v": encoding})
    except ConflictError:
        scale, offset = Fraction(encoding.get("scale_factor", 1)), encoding.get("add_offset", 0)
        packed = [
            (Fraction(v) - Fraction(offset)) / scale for v in values.tolist() if np.isfinite(v)
        ]
        wraps = source in INTEGERS and isinstance(offset, int) and "add_offset" in encoding
        assert (
            wraps
            or any(abs(number) >= highest for number in packed)
            or any(decodes_to_infinity(float(number), encoding) for number in packed)
        )
    else:
        with xr.open_dataset(store, engine="nczarr", mask_and_scale=False) as dataset:
            check_floats(values, dataset["v"].values, encoding, source)


@settings(max_examples=60, deadline=None)
@given(floats())
def test_appended_floats_keep_stored_precision_or_are_rejected(case):
    values, encoding = case
    empty, store = xr.Dataset({"v": ("x", values[:0])}), {}
    xr_nczarr.to_nczarr(empty, store, encoding={"v": encoding}, unlimited_dims=["x"])
    try:
        xr_nczarr.to_nczarr(xr.Dataset({"v": ("x", values)}), store, append_dim="x")
    except ConflictError:
        if "scale_factor" in encoding or "add_offset" in encoding:
            return
        dtype = np.dtype(encoding["dtype"])
        with np.errstate(over="ignore", under="ignore"):
            rounded = values.astype(dtype)
        marks = [] if encoding["_FillValue"] is None else [dtype.type(encoding["_FillValue"])]
        hidden = [v in marks for v in rounded.tolist()] or [False]
        tiny = np.abs(rounded) <= np.finfo(dtype).tiny * 4
        whole = values.dtype.kind in "iu"
        assert (
            any(hidden)
            or (whole and any(map(int.__ne__, map(int, rounded), values.tolist())))
            or (tiny & (values != 0)).any()
            or np.isinf(rounded).any()
            or (np.isnan(values.astype("f8")).any() and encoding["_FillValue"] is None)
        )
    else:
        with xr.open_dataset(store, engine="nczarr", mask_and_scale=False) as dataset:
            stored = dataset["v"].values
        check_floats(values, stored, encoding, values.dtype.str[1:])
        if values.dtype.kind in "iu" and encoding.keys() == {"dtype", "_FillValue"}:
            assert [*map(int, stored)] == values.tolist()


UNITS = {"days": 86_400, "hours": 3600, "minutes": 60, "seconds": 1}


@st.composite
def times(draw):
    """Draw times in seconds, some of which are missing, and an encoding."""
    unit = draw(st.sampled_from([*UNITS]))
    encoding = {"dtype": draw(st.sampled_from([*INTEGERS, *FLOATS]))}
    encoding |= {"units": f"{unit} since 2000-01-01"}
    if draw(st.booleans()):
        encoding["_FillValue"] = np.dtype(encoding["dtype"]).type(99).item()
    step = draw(st.sampled_from([1, UNITS[unit]]))
    whole = draw(st.lists(st.integers(-400, 80_000), min_size=1, max_size=4))
    values = np.datetime64("2000-01-01", "s") + np.array([number * step for number in whole])
    if draw(st.booleans()):
        values[-1] = np.datetime64("NaT", "s")
    return values, encoding


def are_stored_times(store, values):
    """Return whether the store decodes to exactly these times, including missing times."""
    with xr.open_dataset(store, engine="nczarr") as dataset:
        return np.array_equal(dataset["v"].values, values, equal_nan=True)


@pytest.mark.filterwarnings("ignore:Times can't be serialized faithfully")
@settings(max_examples=60, deadline=None)
@given(times())
def test_times_stored_as_integers_round_trip_or_are_rejected(case):
    values, encoding = case
    dtype, fill = np.dtype(encoding["dtype"]), encoding.get("_FillValue")
    if dtype.kind == "f":
        return
    unit = UNITS[encoding["units"].split()[0]]
    seconds = (values - np.datetime64("2000-01-01", "s")).astype("i8")[~np.isnat(values)].tolist()
    store = {}
    try:
        xr_nczarr.to_nczarr(xr.Dataset({"v": ("x", values)}), store, encoding={"v": encoding})
    except ConflictError:
        range_ = np.iinfo(dtype)
        exact = [Fraction(number, unit) for number in seconds]
        fits = [n.denominator == 1 and range_.min <= n <= range_.max and n != fill for n in exact]
        assert not all(fits) or (np.isnat(values).any() and fill is None)
    else:
        assert are_stored_times(store, values)


@pytest.mark.filterwarnings("ignore:Times can't be serialized faithfully")
@settings(max_examples=60, deadline=None)
@given(times())
def test_appended_times_round_trip_or_are_rejected(case):
    values, encoding = case
    first, store = np.array(["2000-01-01"], "M8[s]"), {}
    xr_nczarr.to_nczarr(
        xr.Dataset({"v": ("x", first)}), store, encoding={"v": encoding}, unlimited_dims=["x"]
    )
    try:
        xr_nczarr.to_nczarr(xr.Dataset({"v": ("x", values)}), store, append_dim="x")
    except ConflictError:
        return
    assert are_stored_times(store, np.concatenate([first, values]))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.text(max_size=4), min_size=1, max_size=3),
    st.sampled_from(["S", "U"]),
    st.integers(2, 9),
)
def test_fixed_width_strings_round_trip_or_are_rejected(texts, kind, width):
    texts = [text.replace("\0", "") for text in texts]
    values, store = np.array(texts, object), {}
    encoding = {"v": {"dtype": f"{kind}{width}"}}
    longest = max(
        len(text.encode("utf-8", "surrogateescape") if kind == "S" else text) for text in texts
    )
    try:
        xr_nczarr.to_nczarr(xr.Dataset({"v": ("x", values)}), store, encoding=encoding)
    except ConflictError:
        assert longest > width
    else:
        with xr.open_dataset(store, engine="nczarr") as dataset:
            items = [
                i.decode() if isinstance(i, bytes) else i for i in dataset["v"].values.tolist()
            ]
        assert items == texts


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([0, 1, 2, -1, 0.5, float("nan")]), min_size=1, max_size=3),
    st.sampled_from(["i1", "u2", "f4", "f8", "c16", "?"]),
)
def test_only_zero_and_one_can_be_stored_as_booleans(numbers, source):
    numbers = [n for n in numbers if source[0] in "fc" or (n == n and n == int(n))]
    numbers = [n for n in numbers if source[0] not in "u?" or n >= 0]
    values, store = np.array(numbers, source), {}
    truth = values.tolist()
    try:
        xr_nczarr.to_nczarr(xr.Dataset({"v": ("x", values)}), store, encoding={"v": {"dtype": "?"}})
    except ConflictError:
        assert any(number not in (0, 1) for number in truth)
    else:
        with xr.open_dataset(store, engine="nczarr") as dataset:
            assert dataset["v"].dtype == bool
            assert dataset["v"].values.tolist() == [number == 1 for number in truth]
