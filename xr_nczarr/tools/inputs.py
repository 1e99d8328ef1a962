"""What a copy reads: a store, a netCDF file, or what an engine of xarray opens."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any

import xarray as xr
from xarray.core.indexing import ExplicitlyIndexed, LazilyIndexedArray

from xr_nczarr.backend.encoding import run_lengths
from xr_nczarr.backend.entrypoint import AS_STORED
from xr_nczarr.backend.lazy import LazyArray, SelectedArray
from xr_nczarr.chunks import ChunkedArray
from xr_nczarr.codecs import check_codec
from xr_nczarr.dataset import OpenedStore, open_netcdf, readable_node
from xr_nczarr.errors import Place, UnsupportedError, quote
from xr_nczarr.model import child_path
from xr_nczarr.netcdf import Group, Variable
from xr_nczarr.netcdf.annotations import DEFAULT_WIDTH
from xr_nczarr.netcdf.attributes import undecoded
from xr_nczarr.options import OpenOptions
from xr_nczarr.storage import file_fingerprint
from xr_nczarr.tools.netcdf_c import NetcdfFile, open_file
from xr_nczarr.tools.relayout import relayout
from xr_nczarr.writing.blocks import in_blocks, in_chunks, lazy_array_in
from xr_nczarr.writing.builder import Tree
from xr_nczarr.writing.encoding_keys import CODEC_KEYS, ENCODING_KEYS, FLAGS
from xr_nczarr.writing.requests import growing_dimensions, unlimited_dimensions
from xr_nczarr.writing.variables import (
    Layout,
    check_dimension,
    encode_alone,
    stored_name,
    user_attributes,
)

_SIGNATURES = (b"CDF\x01", b"CDF\x02", b"CDF\x05", b"\x89HDF")
_SKIP = "Pass skip_unsupported=True (--skip-unsupported) to leave it out"
_MAX_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Recoding:
    """Chunks and codecs other than those of the source.

    Attributes
    ----------
    chunks
        Chunk lengths by dimension, in elements.
    codecs
        Configurations of numcodecs in the order of encoding; None for the source's own.
    """

    chunks: Mapping[str, int]
    codecs: Sequence[Mapping[str, Any]] | None


@dataclass(kw_only=True)
class Input(ABC):
    """What is to be copied, as it is stored: nothing is decoded.

    Attributes
    ----------
    names
        Of all dimensions.
    state
        Returns a text that changes with the source; None if that cannot be found out.
    close
        Closes what was opened.
    skipped
        What the target cannot hold, and was left out: a sentence each.
    arrays
        Those in the tree whose stored chunks may be copied as bytes, by their path there.
    """

    names: set[str]
    state: Callable[[], str | None]
    close: Callable[[], None]
    skipped: list[str] = field(default_factory=list)
    arrays: dict[str, ChunkedArray] = field(default_factory=dict)

    def tree(self, layout: Layout, recoding: Recoding, *, skip_unsupported: bool) -> Tree:
        """Return the netCDF tree that is to be stored.

        Raises
        ------
        UnsupportedError
            For what the layout cannot hold, unless that is skipped.
        """
        self._check(layout, skip_unsupported=skip_unsupported)
        tree = Tree(layout)
        for group, names in self._groups():
            tree.check_single(group.path, len(names), group.attributes)
            for name in names:
                stored_name(name)
            for name in group.dimensions:
                check_dimension(name, layout)
            copied = tree.group(group.path)
            copied.dimensions.update(group.dimensions)
            copied.attributes.update(group.attributes)
            tree.note_types(group.path, group.attributes)
            for name in names:
                path = child_path(group.path, name)
                try:
                    with Place(variable=path):
                        self._add(tree, copied, name, recoding)
                except UnsupportedError as error:
                    if not skip_unsupported:
                        error.remedy = ". ".join(filter(None, (error.remedy.rstrip("."), _SKIP)))
                        raise
                    self.skipped.append(f"the variable {quote(path)}: {error.problem}")
        if not layout.unlimited:
            dimensions = [each for group in tree.root.walk() for each in group.dimensions.values()]
            self.skipped += [
                f"that {quote(x.path)} is unlimited" for x in dimensions if x.unlimited
            ]
            self._check(layout, skip_unsupported=skip_unsupported)
        return tree

    def _check(self, layout: Layout, *, skip_unsupported: bool) -> None:
        if self.skipped and not skip_unsupported:
            more = len(self.skipped) - _MAX_NAMED
            named = [*self.skipped[:_MAX_NAMED], *([f"{more} more"] if more > 0 else [])]
            problem = f"the dialect {layout.dialect} cannot hold {'; '.join(named)}"
            raise UnsupportedError(problem, remedy=_SKIP)

    @abstractmethod
    def _groups(self) -> Iterator[tuple[Group, Sequence[str]]]:
        """Yield the groups, parents first, and the names of their variables."""

    @abstractmethod
    def _add(self, tree: Tree, group: Group, name: str, recoding: Recoding) -> None:
        """Add a variable to a group of the tree."""


@dataclass(kw_only=True)
class ModelInput(Input):
    """A tree of netCDF's model, whose copy is exact.

    Attributes
    ----------
    values_of
        Returns the stored values of a variable.
    attributes_of
        Returns attributes as they are to be written.
    complete
        Whether all values are there, so that nothing reads as the fill value of an array.
    """

    groups: dict[str, Group]
    values_of: Callable[[Variable], ExplicitlyIndexed]
    attributes_of: Callable[[Group | Variable], dict[str, Any]]
    complete: bool

    def _groups(self) -> Iterator[tuple[Group, Sequence[str]]]:
        for group in self.groups.values():
            yield replace(group, attributes=self.attributes_of(group)), [*group.variables]

    def _add(self, tree: Tree, group: Group, name: str, recoding: Recoding) -> None:
        variable = self.groups[group.path].variables[name]
        values = self.values_of(variable)
        encoding, explicit = _encoding(variable, tree.layout, recoding)
        encoded = relayout(
            replace(variable, attributes=self.attributes_of(variable)),
            in_chunks(values, _stored_chunks(variable), name),
            tree.layout,
            encoding,
            complete=self.complete,
            explicit=explicit,
            default_width=self.groups["/"].attributes.get(DEFAULT_WIDTH),
        )
        names = [dimension.name for dimension in variable.dimensions]
        # Chunks that are longer than a dimension stay so.
        path = tree.add_variable(group, name, encoded, variable.dimensions, (), names)
        for lazy in lazy_array_in(values):
            self.arrays[path] = lazy.stored


@dataclass(kw_only=True)
class DatasetInput(Input):
    """What an engine of xarray opens, which is as exact as the engine."""

    datasets: dict[str, xr.Dataset]
    unlimited: dict[str, set[str]]

    def _groups(self) -> Iterator[tuple[Group, Sequence[str]]]:
        for path, dataset in self.datasets.items():
            attributes = user_attributes(dataset.attrs)
            yield Group(path=path, attributes=attributes), [*map(str, dataset.variables)]

    def _add(self, tree: Tree, group: Group, name: str, recoding: Recoding) -> None:
        variable = self.datasets[group.path].variables[name]
        encoding = _requested(variable, recoding)
        if encoding is not None:
            variable = variable.copy(deep=False)
            variable.encoding = encoding
        encoded = encode_alone(variable, name, tree.layout, encoding is not None)
        unlimited = self.unlimited[group.path]
        growing = growing_dimensions(self.datasets[group.path], unlimited)
        tree.add_variable(group, name, encoded, (), unlimited, growing)


def open_input(source: Any, engine: str | None, options: Mapping[str, Any] | None) -> Input:
    """Open a source without decoding anything.

    Raises
    ------
    UnsupportedError
        If there is no such engine, and if the source names a group of a store.
    """
    if isinstance(source, str | os.PathLike):
        source = os.path.expanduser(source)
    if engine == "nczarr" or (engine is None and not _is_netcdf_file(source)):
        return _of_store(open_netcdf(source, OpenOptions(storage_options=options)))
    path = os.fspath(source)
    if engine is None and find_spec("netCDF4") is not None:
        return _of_file(open_file(path))
    engine = engine or str(xr.backends.plugins.guess_engine(path))
    engines = xr.backends.list_engines()
    if engine not in engines:
        raise UnsupportedError(
            f"there is no engine {quote(engine)}; there are {', '.join(engines)}"
        )
    given: dict[str, Any] = {"storage_options": options} if options else {}
    if engines[engine].supports_groups:  # decode_cf=False alone is not heard there
        datasets = dict(xr.open_groups(path, engine=engine, **AS_STORED, **given))
    else:
        datasets = {"/": xr.open_dataset(path, engine=engine, decode_cf=False, **given)}
    return _of_datasets(path, datasets)


def _of_store(opened: OpenedStore) -> ModelInput:
    def values_of(variable: Variable) -> ExplicitlyIndexed:
        if variable.error is not None:
            raise variable.error.located(store=opened.store.name)
        node = readable_node(variable, None)
        check_codec(node)
        store = opened.store.narrowed(node.chunk_keys)  # a worker of dask gets no more
        stored = ChunkedArray(node, store, opened.options.reading)
        return SelectedArray(LazyArray(stored, node.dtype, variable.shape))

    if opened.target_group:
        raise UnsupportedError(
            f"the source names its group {quote(opened.target_group)!r}; a copy takes all groups",
            remedy="Open that group with xarray, and write it with to_nczarr",
            store=opened.store.name,
        )
    nodes, groups = opened.hierarchy.nodes, {group.path: group for group in opened.root.walk()}
    for group in groups.values():
        if group.error is not None:
            raise group.error.located(store=opened.store.name)
    return ModelInput(
        names={name for group in groups.values() for name in group.dimensions},
        state=lambda: opened.store.fingerprint(),
        close=lambda: None,
        groups=groups,
        values_of=values_of,
        attributes_of=lambda source: undecoded(source.attributes, nodes.get(source.path)),
        complete=False,
    )


def _of_file(file: NetcdfFile) -> ModelInput:
    groups = {group.path: group for group in file.root.walk()}
    return ModelInput(
        names={name for group in groups.values() for name in group.dimensions},
        state=lambda: file_fingerprint(file.handle.path),
        close=file.handle.close,
        skipped=[*file.unsupported],
        groups=groups,
        values_of=lambda variable: LazilyIndexedArray(file.values[variable.path]),
        attributes_of=lambda source: source.attributes,
        complete=True,
    )


def _of_datasets(path: str, datasets: Mapping[str, xr.Dataset]) -> DatasetInput:
    def close() -> None:
        for dataset in datasets.values():
            dataset.close()

    return DatasetInput(
        names={str(name) for dataset in datasets.values() for name in dataset.dims},
        state=lambda: file_fingerprint(path) if os.path.isfile(path) else None,
        close=close,
        # Also what is small: nothing is held longer than it takes to write it.
        datasets={name: in_blocks(dataset, whole_below=0) for name, dataset in datasets.items()},
        unlimited={
            name: unlimited_dimensions(dataset, None, required=False)
            for name, dataset in datasets.items()
        },
    )


def _is_netcdf_file(source: Any) -> bool:
    if not isinstance(source, str | os.PathLike) or not os.path.isfile(source):
        return False
    if not os.access(source, os.R_OK):  # opening it as a store says so
        return False
    with open(source, "rb") as file:
        return file.read(4) in _SIGNATURES


def _stored_chunks(variable: Variable) -> list[Any]:
    """Return what is stored together: lengths along each dimension, or all in order."""
    node = variable.node
    assert node is not None
    if node.chunk_runs:
        runs = zip(node.chunk_runs, node.shape, strict=True)
        return [run_lengths(lengths, size) for lengths, size in runs]
    return [*node.object_shape] if variable.dimensions else []


def _encoding(
    variable: Variable, layout: Layout, recoding: Recoding
) -> tuple[dict[str, Any], bool]:
    """Return chunks and codecs of a copy, and whether the caller asked for any of them."""
    node, names = variable.node, [dimension.name for dimension in variable.dimensions]
    assert node is not None
    chunks = node.chunk_shape if names else ()
    codecs: list[Mapping[str, Any]] = [
        {"id": spec.name, **spec.configuration}
        for spec in node.codecs
        if spec.name not in ("bytes", "transpose")
    ]
    encoding: dict[str, Any] = {"chunks": chunks, "codecs": codecs}
    if layout.zarr.has_shards and len(node.shards) == 1 and not node.chunk_runs:
        # Elsewhere each chunk becomes an object of its own.
        location = "start" if node.shards[0].index_at_start else "end"
        encoding["shards"] = {"shape": node.object_shape, "index_location": location}
    if recoding.codecs is not None:
        encoding["codecs"] = [*recoding.codecs] if names else []  # netCDF's scalars have none
    if recoding.chunks.keys() & set(names):
        lengths = zip(names, chunks, strict=True)
        encoding["chunks"] = tuple([recoding.chunks.get(name, size) for name, size in lengths])
        encoding.pop("shards", None)
    return encoding, recoding.codecs is not None or encoding["chunks"] != chunks


def _requested(variable: xr.Variable, recoding: Recoding) -> dict[str, Any] | None:
    """Return the encoding of a variable of xarray if something else is asked for than it has."""
    encoding = {key: value for key, value in variable.encoding.items() if key in ENCODING_KEYS}
    if recoding.codecs is not None:
        drop = {*FLAGS, *CODEC_KEYS, "complevel", "compression"}
        encoding = {key: value for key, value in encoding.items() if key not in drop}
        encoding["codecs"] = [dict(codec) for codec in recoding.codecs] if variable.ndim else []
    if recoding.chunks.keys() & set(map(str, variable.dims)):
        old = encoding.get("chunksizes") or variable.shape
        lengths = zip(variable.dims, old, strict=True)
        encoding["chunks"] = tuple([recoding.chunks.get(str(dim), size) for dim, size in lengths])
    elif recoding.codecs is None:
        return None
    encoding.setdefault("_FillValue", None)
    if "_FillValue" in variable.attrs:
        del encoding["_FillValue"]
    return encoding
