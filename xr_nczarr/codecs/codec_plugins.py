"""Use the codecs that other packages register with zarr-python.

These packages declare entry points in the ``zarr.codecs`` group. zarr-python is imported only if
the metadata names a codec from such a package. Codecs that are built into xr_nczarr or
registered with numcodecs take precedence. `load_class` imports those of both registries.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xr_nczarr.codecs.pipeline import UINT8, Buffer, Flow, Step, StepRequest, bytes_of
from xr_nczarr.errors import ChunkError, MetadataError, UnsupportedError, quote, reason_of
from xr_nczarr.model import CodecSpec

_GROUP = "zarr.codecs"


def find_entry_point(spec: CodecSpec) -> EntryPoint | None:
    """Return the entry point for a codec, or None if no installed package provides the codec.

    Also return None if the metadata lists the codec as a filter or compressor, as in Zarr v2. Such
    a codec must have the interface of numcodecs (buffer in, buffer out), which zarr-python's codec
    classes do not have.
    """
    document = spec.document
    name = document.get("name") if isinstance(document, dict) else document
    if spec.is_buffer_filter or not isinstance(name, str):
        return None
    return _find_entry_point(name, tuple(sys.path))


@lru_cache(64)
def _find_entry_point(name: str, _path: tuple[str, ...]) -> EntryPoint | None:
    return next(iter(entry_points(group=_GROUP, name=name)), None)


def kind_of(name: str) -> str | None:
    """Return the kind of a codec that another package registers with zarr-python.

    The kind states the input and output of the codec: ``"array-array"``, ``"array-bytes"`` or
    ``"bytes-bytes"``. Return None if no installed package provides the codec.
    """
    entry_point = _find_entry_point(name, tuple(sys.path))
    if entry_point is None:
        return None
    codec_class = load_class(entry_point)
    from zarr.abc.codec import ArrayArrayCodec, BytesBytesCodec

    if issubclass(codec_class, ArrayArrayCodec):
        return "array-array"
    return "bytes-bytes" if issubclass(codec_class, BytesBytesCodec) else "array-bytes"


def load_class(entry_point: EntryPoint) -> Any:
    """Import the class of a codec that another package registers with zarr-python or numcodecs.

    Raises
    ------
    UnsupportedError
        If the class cannot be imported.
    """
    remedy = "Reinstall the codec's package and all its dependencies"
    try:
        if entry_point.group == _GROUP:
            remedy = "Install zarr 3.1 or later, and all dependencies of the codec's package"
            import zarr.core.dtype  # noqa: F401  (exists since 3.1)

        return entry_point.load()
    except Exception as error:
        raise UnsupportedError(
            f"the package that provides codec {quote(entry_point.name)} cannot be imported: "
            f"{reason_of(error)}",
            remedy=remedy,
        ) from error


def build_registered(request: StepRequest, entry_point: EntryPoint) -> Step:
    """Build the `Step` for a codec class that implements zarr-python's interface.

    When decoding, the step checks the size of the decoded data. If the codec produces bytes, the
    encoded size is limited, but not known in advance; see `Flow.of_unknown_size`.
    """
    spec, flow = request.spec, request.flow
    if flow.dtype.hasobject:
        raise UnsupportedError(f"codec {spec.name} does not support variable-length items")
    codec_class = load_class(entry_point)
    try:
        adapter = _Adapter(codec_class, request)
    except Exception as error:
        problem = (
            f"codec {spec.name} rejects its configuration or dtype {flow.dtype}: {reason_of(error)}"
        )
        raise MetadataError(problem) from error
    return Step(adapter.decode, adapter.encode, adapter.encoded)


class _Adapter:
    """An adapter that allows a `Step` to call a codec that implements zarr-python's interface."""

    def __init__(self, codec_class: Any, request: StepRequest) -> None:
        from zarr.abc.codec import ArrayArrayCodec, BytesBytesCodec
        from zarr.core.array_spec import ArrayConfig, ArraySpec
        from zarr.core.buffer.cpu import buffer_prototype
        from zarr.core.dtype import get_data_type_from_native_dtype

        document, flow = request.spec.document, request.flow
        data_type = get_data_type_from_native_dtype(flow.dtype)
        self.flow = flow
        self.spec = ArraySpec(
            shape=flow.shape or (),
            dtype=data_type,
            fill_value=data_type.default_scalar(),
            config=ArrayConfig.from_dict({}),
            prototype=buffer_prototype,
        )
        members = {"name": document} if isinstance(document, str) else document
        self.name = quote(members["name"])
        self.codec = codec_class.from_dict(members).evolve_from_array_spec(self.spec)
        self.from_elements = not isinstance(self.codec, BytesBytesCodec)
        self.to_elements = isinstance(self.codec, ArrayArrayCodec)
        self.encoded = flow.of_unknown_size(request.limits)
        if self.to_elements:
            resolved = self.codec.resolve_metadata(self.spec)
            self.encoded = flow.retyped(resolved.dtype.to_native_dtype(), tuple(resolved.shape))
        if self.encoded.dtype.hasobject:
            raise ValueError(
                f"codec {self.name} produces variable-length items, which are not supported"
            )
        if self.from_elements and flow.shape is None:
            raise ValueError(
                f"codec {self.name} requires an array as input, but an earlier codec produces bytes"
            )

    def decode(self, data: Buffer) -> Any:
        decoded = self._run(self.codec.decode, self._wrapped(data, self.encoded, self.to_elements))
        if self.from_elements:
            return self._checked(decoded, self.flow)
        self.flow.check_size(len(decoded))
        return decoded

    def encode(self, data: Any) -> Any:
        encoded = self._run(self.codec.encode, self._wrapped(data, self.flow, self.from_elements))
        return self._checked(encoded, self.encoded) if self.to_elements else encoded

    def _wrapped(self, data: Any, flow: Flow, elements: bool) -> Any:
        prototype = self.spec.prototype
        if elements:
            return prototype.nd_buffer.from_numpy_array(flow.elements(data))
        return prototype.buffer.from_array_like(np.frombuffer(data, UINT8))

    def _checked(self, elements: NDArray[Any], flow: Flow) -> NDArray[np.uint8]:
        dtype = elements.dtype.newbyteorder("=")
        if elements.shape != flow.shape or dtype != flow.dtype.newbyteorder("="):
            raise ChunkError(
                f"codec {self.name} returned dtype {elements.dtype} and shape {elements.shape}; "
                f"expected dtype {flow.dtype} and shape {flow.shape} ({flow.chunk})"
            )
        return bytes_of(np.ascontiguousarray(elements, flow.dtype))

    def _run(self, call: Callable[..., Any], data: Any) -> NDArray[Any]:
        """Run an asynchronous method of the codec, and return its result as a NumPy array."""
        from zarr.core.sync import sync

        (result,) = sync(call([(data, self.spec)]))
        if result is None:
            raise ChunkError(f"codec {self.name} returned None instead of data ({self.flow.chunk})")
        return np.ascontiguousarray(result.as_numpy_array())
