"""Parse and render the configurations of the v3 codecs ``scale_offset`` and ``cast_value``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from xr_nczarr.errors import MetadataError, UnsupportedError, unexpected
from xr_nczarr.formats.documents import read_list, read_object, render_float, required
from xr_nczarr.formats.fill_values import parse_fill_value
from xr_nczarr.formats.v3_data_types import DType, check_members, parse_data_type
from xr_nczarr.model import Json


def _parse_scale_offset(configuration: Json, dtype: DType, place: str) -> dict[str, Json]:
    check_members(configuration, ("offset", "scale"), place)
    _check_real(dtype, place)
    return {name: _parse_number(value, dtype, place) for name, value in configuration.items()}


def _parse_cast_value(configuration: Json, dtype: DType, place: str) -> dict[str, Json]:
    check_members(configuration, ("data_type", "rounding", "out_of_range", "scalar_map"), place)
    stored, _ = parse_data_type(required(configuration, "data_type", place), f"{place}.data_type")
    _check_real(dtype, place)
    _check_real(stored, place)
    parsed = {**configuration, "data_type": stored.name}
    if "scalar_map" in parsed:
        maps = read_object(parsed["scalar_map"], place)
        check_members(maps, ("encode", "decode"), place)
        types = {"encode": (dtype, stored), "decode": (stored, dtype)}
        parsed["scalar_map"] = {
            direction: [
                _parse_pair(pair, types[direction], place) for pair in read_list(pairs, place)
            ]
            for direction, pairs in maps.items()
        }
    return parsed


def _parse_pair(value: Json, types: tuple[DType, DType], place: str) -> list[Json]:
    pair = read_list(value, place)
    if len(pair) != 2:
        raise unexpected(value, "a pair of values", place)
    return [_parse_number(item, dtype, place) for item, dtype in zip(pair, types, strict=True)]


def _parse_number(value: Json, dtype: DType, place: str) -> Json:
    """Return a JSON number after checking that it fits `dtype`.

    A bit pattern, such as ``"0x7fc00000"``, is converted to the number that it represents.
    """
    try:
        number = parse_fill_value(value, dtype)
    except MetadataError as error:
        error.place = place  # replaces the place that `parse_fill_value` set
        raise
    if number is None:
        raise unexpected(value, "a number", place)
    is_pattern = isinstance(value, str) and value.startswith("0")
    return render_parameter(number) if is_pattern else value


def _check_real(dtype: DType, place: str) -> None:
    if dtype.kind not in "iuf":
        raise UnsupportedError(
            f"codecs cast_value and scale_offset require integers or floats, not {dtype}",
            place=place,
        )


NUMERIC_CODECS = {"scale_offset": _parse_scale_offset, "cast_value": _parse_cast_value}
"""Parsers for the configurations of numeric codecs, keyed by codec name.

Each parser is called with a configuration, the dtype of the codec's input, and the location of the
codec in its document.
"""


def render_parameter(value: Any) -> Json:
    """Render a parameter of a numeric codec: a scalar, or a nested list or mapping of scalars."""
    if isinstance(value, Mapping):
        return {name: render_parameter(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [render_parameter(item) for item in value]
    number = value.item() if isinstance(value, np.generic) else value
    return render_float(number) if isinstance(number, float) else number
