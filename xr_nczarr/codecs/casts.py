"""Define the Zarr v3 codecs ``scale_offset`` and ``cast_value``.

Both codecs are registered extensions of Zarr v3. They return exactly the results that their
specifications define, and raise ChunkError where the specifications require an error.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from xr_nczarr.codecs.pipeline import Buffer, Flow, Step, StepRequest, bytes_of, unlimited_tolerance
from xr_nczarr.errors import ChunkError, UnsupportedError
from xr_nczarr.model import Json

Array = npt.NDArray[Any]

_EXACT_IN_DOUBLES = 1 << 53
_MAP_VALUE = 'Map the value with the codec parameter "scalar_map"'
_SET_RULE = 'Set the codec parameter "out_of_range", or map the value with "scalar_map"'
_SPECIAL = ("NaN", "Infinity", "+Infinity", "-Infinity")


def _round_half_away(values: Array) -> Array:
    """Round to the nearest integer, rounding halves away from zero."""
    whole = np.trunc(values)
    return np.where(np.abs(values - whole) >= 0.5, whole + np.copysign(1, values), whole)


_ROUNDINGS: Mapping[str, Callable[[Array], Array]] = {
    "nearest-even": np.rint,
    "towards-zero": np.trunc,
    "towards-positive": np.ceil,
    "towards-negative": np.floor,
    "nearest-away": _round_half_away,
}


def build_scale_offset(request: StepRequest) -> Step:
    """Build the `Step` that stores ``(value - offset) * scale`` without changing the dtype."""
    flow = request.flow
    dtype = _number_type(flow)
    request.settings(offset=None, scale=None)  # raises an error for unknown parameters
    offset = _scalar(request, "offset", request.spec.configuration.get("offset", 0), dtype)
    scale = _scalar(request, "scale", request.spec.configuration.get("scale", 1), dtype)
    if not scale:
        raise request.invalid("scale", 0, "a nonzero number")
    whole = dtype.kind in "iu"

    def decode(data: Buffer, target: Array | None = None) -> Buffer:
        stored = flow.elements(data)
        values = np.empty(flow.shape or (), dtype) if target is None else _as_elements(target, flow)
        if whole:
            _check_integers(stored, dtype, int(offset), int(scale), decoding=True)
        with np.errstate(all="ignore"):
            (np.floor_divide if whole else np.divide)(stored, scale, out=values, casting="unsafe")
            np.add(values, offset, out=values, casting="unsafe")
        return bytes_of(values)

    def encode(data: Buffer) -> Buffer:
        values = flow.elements(data)
        if whole:
            _check_integers(values, dtype, int(offset), int(scale), decoding=False)
        with np.errstate(all="ignore"):
            stored = (values - offset) * scale
        return bytes_of(stored.astype(dtype, copy=False))

    step = Step(decode, encode, flow, fills=True)
    if whole:
        return step
    rounding = 8 * float(np.finfo(dtype).eps)
    return replace(step, tolerance=lambda values: rounding * (np.abs(values) + abs(offset)))


def _check_integers(
    values: Array, dtype: np.dtype[Any], offset: int, scale: int, *, decoding: bool
) -> None:
    """Raise ChunkError if encoding or decoding `values` would overflow the integer type `dtype`.

    When decoding, also raise ChunkError if a value is not a multiple of the scale.
    """
    if not values.size:
        return
    # Scaling and shifting are monotonic, so only the smallest and largest values can overflow.
    extremes = [int(values.min()), int(values.max())]
    if decoding:
        remainders = np.remainder(values, dtype.type(scale)) if abs(scale) != 1 else np.zeros(())
        if remainders.any():
            value = values.reshape(-1)[np.flatnonzero(remainders)[0]]
            raise ChunkError(f"stored value {value} is not a multiple of the scale {scale}")
        results = [value // scale + offset for value in extremes]
    else:
        results = [value - offset for value in extremes]
        results += [value * scale for value in results]
    range_ = np.iinfo(dtype)
    for result in results:
        if not range_.min <= result <= range_.max:
            raise ChunkError(
                f"a value would be {'decoded' if decoding else 'encoded'} as {result:,}, which "
                f"dtype {dtype.name} cannot represent"
            )


def build_cast_value(request: StepRequest) -> Step:
    """Build the `Step` that casts numbers to another dtype, as the codec's parameters specify."""
    flow = request.flow
    dtype = _number_type(flow)
    settings = request.settings(
        data_type="", rounding="nearest-even", out_of_range=None, scalar_map=None
    )
    try:
        stored = np.dtype(settings["data_type"])
    except TypeError as error:
        name = settings["data_type"]
        raise request.invalid("data_type", name, "the name of a data type") from error
    encoded = flow.retyped(stored, flow.shape or ())
    _number_type(encoded)
    rounding, out_of_range = settings["rounding"], settings["out_of_range"]
    if rounding not in _ROUNDINGS:
        raise request.invalid("rounding", rounding, f"one of {', '.join(_ROUNDINGS)}")
    if out_of_range not in (None, "clamp", *(["wrap"] if stored.kind in "iu" else [])):
        expected = '"clamp" or, for an integer data type, "wrap"'
        raise request.invalid("out_of_range", out_of_range, expected)
    encoding_pairs = _pairs(request, "encode", dtype, stored)
    decoding_pairs = _pairs(request, "decode", stored, dtype)
    to_stored = Cast(dtype, stored, rounding, out_of_range, encoding_pairs)
    to_values = Cast(stored, dtype, rounding, out_of_range, decoding_pairs)

    def decode(data: Buffer, target: Array | None = None) -> Buffer:
        values = np.empty(flow.shape or (), dtype) if target is None else _as_elements(target, flow)
        to_values(encoded.elements(data), values)
        return bytes_of(values)

    def encode(data: Buffer) -> Buffer:
        values = np.empty(encoded.shape or (), stored)
        to_stored(flow.elements(data), values)
        return bytes_of(values)

    return Step(decode, encode, encoded, fills=True, tolerance=unlimited_tolerance)


@dataclass(frozen=True, slots=True)
class Cast:
    """A function that converts numbers to another dtype, as ``cast_value`` specifies.

    Encoding and decoding use separate `Cast` objects.

    Attributes
    ----------
    source, target
        Dtypes of the values before and after the conversion.
    rounding, out_of_range
        Rules of ``cast_value``, named as in its specification. If `out_of_range` is None, values
        outside the range of the target dtype raise an error.
    pairs
        (value, result) pairs that take precedence over the rules. For repeated values, the first
        pair applies.
    """

    source: np.dtype[Any]
    target: np.dtype[Any]
    rounding: str
    out_of_range: str | None
    pairs: tuple[tuple[Any, Any], ...] = ()

    def __call__(self, values: Array, out: Array) -> None:
        """Convert `values`, and write the results to `out`.

        Raises
        ------
        ChunkError
            If the codec's parameters do not define a result for a value.
        """
        masks = [values != values if value != value else values == value for value, _ in self.pairs]
        if masks:
            values = np.where(np.logical_or.reduce(masks), self.source.type(0), values)
        native = values.astype(self.source.newbyteorder("="), copy=False)
        with np.errstate(all="ignore"):
            if self.target.kind in "iu":
                self._to_integers(native, out)
            else:
                self._to_floats(native, out)
        # The first pair is applied last, so that it takes precedence.
        for mask, (_, result) in zip(reversed(masks), reversed(self.pairs), strict=True):
            out[mask] = result

    def _to_integers(self, values: Array, out: Array) -> None:
        if self.source.kind == "f":
            values = values.astype("f8", copy=False)  # exact for all other float types
            self._check(values, ~np.isfinite(values), _MAP_VALUE)
            values = _ROUNDINGS[self.rounding](values)
        range_, native = np.iinfo(self.target), self.target.newbyteorder("=")
        # A double cannot always represent range_.max exactly, but it can represent range_.max + 1.
        below, above = values < range_.min, values >= range_.max + 1
        outside = below | above
        if not outside.any():
            out[...] = values.astype(native)
        elif self.out_of_range == "wrap":
            if self.source.kind == "f":
                size = np.fmod(np.abs(values), 2.0**64).astype("u8")
                values = np.where(values < 0, np.negative(size), size)
            # NumPy wraps integers modulo 2**bits.
            out[...] = values.astype(f"u{self.target.itemsize}").view(native)
        else:
            if self.out_of_range != "clamp":
                self._check(values, outside, _SET_RULE)
            clamped = np.where(outside, 0, values).astype(native)
            clamped[below], clamped[above] = range_.min, range_.max
            out[...] = clamped

    def _to_floats(self, values: Array, out: Array) -> None:
        result = values.astype(self.target.newbyteorder("="))
        if self.rounding != "nearest-even":
            result = _rerounded(values, result, self.rounding)
        overflown = np.isinf(result)
        if self.source.kind not in "iu":
            overflown &= np.isfinite(values)
        if self.out_of_range != "clamp":
            self._check(values, overflown, _SET_RULE)
        out[...] = result

    def _check(self, values: Array, invalid: Array, remedy: str) -> None:
        if invalid.any():
            value = values[invalid].reshape(-1)[0]
            problem = f"value {value} does not fit in dtype {self.target.name}"
            raise ChunkError(problem, remedy=remedy)


def _rerounded(values: Array, nearest: Array, rounding: str) -> Array:
    """Round `values` to floats with a rounding mode that NumPy does not support.

    `nearest` contains the values as NumPy rounds them.
    """
    large = values.dtype.kind in "iu" and values.itemsize == 8 and values.size
    large = large and max(-int(values.min()), int(values.max())) > _EXACT_IN_DOUBLES

    def exact(numbers: Array) -> Array:
        if not large:
            return numbers.astype("f8")
        items = [int(item) if np.isfinite(item) else item for item in numbers.reshape(-1).tolist()]
        return np.array(items, object).reshape(numbers.shape)

    # NumPy rounds numbers beyond the largest float to infinity. Other modes can round them to the
    # largest float, but only below the next power of two, such as 2**128 for float32.
    power = int(np.finfo(nearest.dtype).maxexp)
    limit = math.ldexp(1, power) if power < 1024 else math.inf
    original, near = exact(values), exact(nearest)
    up = np.where(original > near, math.inf, -math.inf).astype(nearest.dtype)
    neighbors = np.nextafter(nearest, up)
    if rounding == "nearest-away":
        beyond = exact(neighbors)
        use_neighbor = (original + original == near + beyond) & (np.abs(beyond) > np.abs(near))
    elif rounding == "towards-zero":
        use_neighbor = np.abs(near) > np.abs(original)
    else:
        use_neighbor = near < original if rounding == "towards-positive" else near > original
    inexact = (near != original) & (original == original) & (np.abs(original) < limit)
    return np.where((use_neighbor & inexact).astype(bool), neighbors, nearest)


def _number_type(flow: Flow) -> np.dtype[Any]:
    if flow.shape is None or flow.dtype.kind not in "iuf":
        raise UnsupportedError(
            f"codecs cast_value and scale_offset require integers or floats, not {flow.dtype} "
            f"({flow.chunk})"
        )
    return flow.dtype


def _scalar(request: StepRequest, name: str, value: Json, dtype: np.dtype[Any]) -> Any:
    """Convert the value of the codec parameter `name` to a scalar of `dtype`.

    Raises
    ------
    MetadataError
        If `value` is not a number that `dtype` can represent.
    """
    native = dtype.newbyteorder("=")
    try:
        if isinstance(value, str) and value.startswith("0x"):  # a bit pattern like "0x7fc00000"
            (bits,) = np.frombuffer(bytes.fromhex(value[2:]), dtype.newbyteorder(">"))
            return native.type(bits)
        number = float(value) if value in _SPECIAL else value
        if type(number) not in (int, float):
            raise ValueError
        if dtype.kind == "f":
            struct.pack(f"<{dtype.char}", number)  # fails for numbers that round to infinity
            return native.type(number)
        if not np.iinfo(dtype).min <= number <= np.iinfo(dtype).max or number != int(number):
            raise ValueError
        return native.type(int(number))
    except (OverflowError, ValueError, struct.error) as error:
        raise request.invalid(name, value, f"a number that {dtype} can represent") from error


def _pairs(
    request: StepRequest, member: str, source: np.dtype[Any], target: np.dtype[Any]
) -> tuple[tuple[Any, Any], ...]:
    """Return the (value, result) pairs that ``scalar_map`` lists under `member`."""
    maps = request.spec.configuration.get("scalar_map")
    maps = {} if maps is None else maps
    is_valid = isinstance(maps, dict) and maps.keys() <= {"encode", "decode"}
    listed = maps.get(member) if is_valid else False
    listed = [] if listed is None else listed
    if not isinstance(listed, list | tuple) or not all(map(_is_pair, listed)):
        expected = 'an object whose members "encode" and "decode" are lists of pairs'
        raise request.invalid("scalar_map", maps, expected)
    scalar = partial(_scalar, request, "scalar_map")
    return tuple([(scalar(value, source), scalar(result, target)) for value, result in listed])


def _is_pair(item: Json) -> bool:
    return isinstance(item, list | tuple) and len(item) == 2


def _as_elements(target: Array, flow: Flow) -> Array:
    return target.view(flow.dtype).reshape(flow.shape or ())
