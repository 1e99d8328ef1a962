"""Format names, values and times as CDL, and build ncdump's special attributes."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from xr_nczarr.netcdf import Group, Variable
from xr_nczarr.netcdf.annotations import PROVENANCE, WIDTH
from xr_nczarr.netcdf.data_model import Kind
from xr_nczarr.netcdf.types import DTYPE_NAMES, decode_strings, default_fill
from xr_nczarr.tools.hdf5_filters import DEFLATE, FLETCHER32, SHUFFLE, filter_of

Array = npt.NDArray[Any]

# The CDL type for each dtype, and the suffix that marks numbers of this type in attributes.
_TYPES = {
    "int8": ("byte", "b"),
    "uint8": ("ubyte", "UB"),
    "int16": ("short", "s"),
    "uint16": ("ushort", "US"),
    "int32": ("int", ""),
    "uint32": ("uint", "U"),
    "int64": ("int64", "LL"),
    "uint64": ("uint64", "ULL"),
    "float32": ("float", "f"),
    "float64": ("double", ""),
}
# For each type that netCDF lacks, a netCDF type that represents its values exactly.
_STAND_INS = {"?": "uint8", "e": "float32", "m": "int64", "M": "int64"}
Digits = Mapping[str, tuple[int, ...]]
"""Mapping from each floating-point type to the numbers of significant digits to try.

The first number that is enough to reproduce a value is used, or the last one if none is enough.
"""
EXACT: Digits = {"float32": (7, 8, 9), "float64": (15, 16, 17)}
"""The numbers of digits that ncdump shows, then larger ones for values that do not round-trip."""

_FILTER_ATTRIBUTES = {FLETCHER32: "_Fletcher32", SHUFFLE: "_Shuffle", DEFLATE: "_DeflateLevel"}
"""Mapping from HDF5 filters to the special attributes that describe them, in ncdump's order."""

_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}

# The minutes, seconds and microseconds that ncdump leaves out of a time.
_ZEROS = re.compile(r"(:00)*(\.000000)?$")
_NAMED = {8: "b", 9: "t", 10: "n", 11: "v", 12: "f", 13: "r", 34: '"', 39: "'", 92: "\\"}
_IN_TEXT = {code: f"\\{code:03o}" for code in (*range(32), 127)} | {
    code: f"\\{letter}" for code, letter in _NAMED.items()
}
_IN_CHARACTERS = {code: f"\\{code:03o}" for code in range(128, 256)} | _IN_TEXT
_IN_NAME = {code: f"\\%{code:02x}" for code in (*range(32), 127)} | {
    ord(character): f"\\{character}" for character in " !\"#$%&'()*,:;<=>?[]\\^`{|}~"
}
# Words that ncgen never accepts as names, even if they are escaped.
_RESERVED = (
    "float double real char byte ubyte short ushort int integer long uint int64 uint64 string "
    "compound enum opaque unlimited UNLIMITED netcdf NETCDF nan nanf NaN NaNf Infinity Infinityf "
    "Inff nil Nil NIL _ _FillValue _Format _Storage _ChunkSizes _Fletcher32 _DeflateLevel _Shuffle "
    "_Endianness _NoFill _Filter _Codecs _NCProperties _IsNetcdf4 _SuperblockVersion"
)
_LEGAL = re.compile(r"[A-Za-z0-9_\x80-\U0010ffff][^\x00-\x1f\x7f/?]*(?<! )")


def is_cdl_name(name: str) -> bool:
    """Return whether ncgen accepts a name if its special characters are escaped.

    ncgen rejects some escaped names, such as its own keywords and names that contain ``?``.
    """
    return name not in _RESERVED.split() and _LEGAL.fullmatch(name) is not None


def name_text(name: str) -> str:
    """Escape the characters in a name that have a special meaning in CDL."""
    return ("\\" if "0" <= name[:1] <= "9" else "") + name.translate(_IN_NAME)


def type_name(dtype: np.dtype[Any], kind: Kind) -> str | None:
    """Return the name of the CDL type for values of a dtype and kind.

    If netCDF has no type for the dtype, return the name of another type that represents the values
    exactly, such as ``float`` for half-precision floats. Return None if there is no such type.
    """
    if kind in ("char", "string"):
        return kind
    name = DTYPE_NAMES.get(dtype) or _STAND_INS.get(dtype.char)
    return None if name is None else _TYPES[name][0]


def attribute_text(value: Any, digits: Digits = EXACT) -> str:
    """Format the value of an attribute as CDL.

    The value is text, a list of strings, or one or more numbers.
    """
    if isinstance(value, list):
        return ", ".join([_quoted(_as_text(item)) for item in value]) or '""'
    if isinstance(value, str | bytes):
        return _quoted(_as_text(value).rstrip("\0"))
    values = _as_netcdf(np.atleast_1d(np.asarray(value)))
    if not values.size:
        return '""'
    name = DTYPE_NAMES.get(values.dtype)
    if name is None:
        return _quoted(str(value))
    if name not in digits:
        return ", ".join(f"{number}{_TYPES[name][1]}" for number in values.tolist())
    texts = _float_texts(values, "#", digits)
    return ", ".join(map(_with_suffix, texts, [name] * values.size))


def _as_text(value: str | bytes) -> str:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value


def row_text(row: Array, fill_value: Any) -> str:
    """Format a row of characters as a quoted CDL string.

    Trailing NULs are left out if the fill value is None or NUL, because ncgen pads short text with
    the fill value.
    """
    data = row.tobytes()
    if fill_value is None or not fill_value:
        data = data.rstrip(b"\0")
    return f'"{data.decode("latin-1").translate(_IN_CHARACTERS)}"'


def value_texts(values: Array, kind: Kind, fill_value: Any, digits: Digits = EXACT) -> list[str]:
    """Format each value of a one-dimensional array as CDL. Fill values become ``_``.

    If `fill_value` is None, netCDF's default fill value is used for strings and for numeric types
    of more than one byte. All other types have no default fill value.
    """
    if kind == "string":
        strings = decode_strings(values) if values.dtype.kind == "S" else values
        fill = _as_text(fill_value or "")
        return ["_" if text == fill else _quoted(text) for text in strings.tolist()]
    values = _as_netcdf(values)
    if values.dtype.kind == "f":
        texts = _float_texts(values, "", digits)
    else:
        texts = list(map(str, values.tolist()))
    if fill_value is not None:
        number = _as_netcdf(np.asarray(fill_value))
    elif values.dtype.itemsize > 1 and kind == "number":
        number = np.asarray(default_fill(values.dtype))
    else:
        return texts
    filled = values == number if number == number else np.isnan(values)
    for position in np.flatnonzero(filled).tolist():
        texts[position] = "_"
    return texts


def _as_netcdf(values: Array) -> Array:
    """Convert values to a netCDF type if there is one that represents them exactly."""
    stand_in = _STAND_INS.get(values.dtype.char)
    return values if stand_in is None else values.astype(stand_in)


def _quoted(text: str) -> str:
    return f'"{text.translate(_IN_TEXT)}"'


def _float_texts(values: Array, flag: str, digits: Digits) -> list[str]:
    """Format each number with the fewest digits that reproduce it.

    `digits` lists the precisions to try, in ascending order. If no precision reproduces a number,
    the last precision is used. `flag` is a flag for ``%``-formatting, such as ``#``.
    """
    name = DTYPE_NAMES[values.dtype]
    numbers = values.astype("f8").tolist()
    fewest, *larger = digits[name]
    texts = [f"%{flag}.{fewest}g" % number for number in numbers]
    pending = _inexact_positions(texts, values.astype(name)) if larger else np.array([], int)
    for count in larger:
        longer = [f"%{flag}.{count}g" % numbers[position] for position in pending.tolist()]
        for position, text in zip(pending.tolist(), longer, strict=True):
            texts[position] = text
        pending = pending[_inexact_positions(longer, values[pending].astype(name))]
    if larger:  # ncgen reads "-0", which ncdump prints, as an integer without a sign
        texts = ["-0." if text == "-0" else text for text in texts]
    for position in np.flatnonzero(~np.isfinite(values)).tolist():
        texts[position] = _NOT_FINITE[str(numbers[position])] + _TYPES[name][1]
    return texts


def _inexact_positions(texts: list[str], numbers: Array) -> npt.NDArray[np.intp]:
    with np.errstate(over="ignore"):
        again = np.array(list(map(float, texts))).astype(numbers.dtype)
    return np.flatnonzero((again != numbers) & np.isfinite(numbers))


def _with_suffix(text: str, name: str) -> str:
    if text[-1] not in "0123456789.":
        return text
    digits, mark, exponent = text.partition("e")
    return digits.rstrip("0") + mark + exponent + _TYPES[name][1]


class TimeUnits(NamedTuple):
    """The units and the calendar of a time variable.

    The units include the reference date. The calendar is None if the variable does not declare one.
    """

    units: str
    calendar: str | None

    def format_dates(self, values: Array, numbers: Sequence[str]) -> list[str]:
        """Format times as dates in quotation marks.

        `numbers` contains each value formatted as a plain number, or ``_`` for a missing value.
        A value that is missing or not finite remains as it is in `numbers`. If xarray cannot decode
        the values, the result is equal to `numbers`.
        """
        from xarray import SerializationWarning
        from xarray.coding.times import decode_cf_datetime

        texts = list(numbers)
        finite = np.isfinite(values)
        present = [place for place, text in enumerate(numbers) if text != "_" and finite[place]]
        try:
            with warnings.catch_warnings():
                # xarray warns about dates that need cftime.
                warnings.simplefilter("ignore", SerializationWarning)
                dates = decode_cf_datetime(values[present], self.units, self.calendar)
        except (ValueError, OverflowError, ImportError):
            return texts
        for place, text in zip(present, _iso_texts(dates), strict=True):
            shortest = _ZEROS.sub("", text).removesuffix("T00").replace("T", " ")
            texts[place] = f'"{shortest}"'
        return texts


def time_units(group: Group) -> dict[str, TimeUnits]:
    """Return the units of all time variables in a group, keyed by name.

    The bounds of a time variable are included. Bounds without units of their own get the units of
    the time variable.
    """
    times = {}
    for variable in group.variables.values():
        units = _text(variable, "units")
        if " since " in units and variable.kind == "number":
            times[variable.name] = TimeUnits(units, _text(variable, "calendar") or None)
    for name in [*times]:
        bounds = group.variables.get(_text(group.variables[name], "bounds"))
        if bounds is not None and not _text(bounds, "units") and bounds.kind == "number":
            times[bounds.name] = times[name]
    return times


def _text(variable: Variable, name: str) -> str:
    value = variable.attributes.get(name)
    return value if isinstance(value, str) else ""


def _iso_texts(dates: Array) -> list[str]:
    if dates.dtype.kind == "M":
        # Dates are rounded to microseconds, because a fraction of an hour or day is rarely a whole
        # number of nanoseconds.
        rounded: Any = dates.astype("M8[ns]") + np.timedelta64(500, "ns")
        return [str(date) for date in rounded.astype("M8[us]")]
    return [date.isoformat(timespec="microseconds") for date in dates]


def special_group_attributes(root: Group) -> dict[str, Any]:
    """Return the special attributes of the whole dataset, which ncdump shows in the root group."""
    provenance = None if root.node is None else root.node.attributes.get(PROVENANCE)
    special = {PROVENANCE: provenance} if isinstance(provenance, str) else {}
    return special | {"_Format": "netCDF-4"}


def special_attributes(variable: Variable) -> dict[str, Any]:
    """Return the special attributes that describe how the values of a variable are stored.

    The attribute for the width of fixed-width strings is omitted if the variable already has it.
    """
    node = variable.array_node
    special: dict[str, Any] = {}
    if variable.kind == "string" and node.dtype.kind == "S" and WIDTH not in variable.attributes:
        special[WIDTH] = _integers([node.dtype.itemsize])
    special["_Storage"] = "chunked" if variable.dimensions else "contiguous"
    if variable.dimensions:
        special["_ChunkSizes"] = _integers(node.chunk_shape)
    filters = [entry for spec in node.codecs if (entry := filter_of(spec, node)) is not None]
    settings = {number: parameters for number, *parameters in filters}
    for number, name in _FILTER_ATTRIBUTES.items():
        if number in settings:
            special[name] = _integers(settings[number]) if settings[number] else "true"
    unnamed = [",".join(map(str, entry)) for entry in filters if entry[0] not in _FILTER_ATTRIBUTES]
    if unnamed:
        special["_Filter"] = "|".join(unnamed)
    if variable.kind == "number" and node.dtype.itemsize > 1:
        special["_Endianness"] = "big" if node.dtype.byteorder == ">" else "little"
    if node.fill_value is None and variable.kind != "string":  # netCDF-C always fills strings
        special["_NoFill"] = "true"
    return special


def _integers(values: Sequence[int]) -> Any:
    """Convert integers to int32, as ncdump does, or to int64 if a value does not fit."""
    return np.array(values, "i4" if max(values) <= np.iinfo("i4").max else "i8")
