"""Write a reference set that refers to the bytes of an existing store."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from html import escape
from itertools import islice
from typing import Any

from xr_nczarr.codecs import compressed
from xr_nczarr.errors import (
    AccessDeniedError,
    ConflictError,
    NczarrError,
    UnsupportedError,
    quote,
)
from xr_nczarr.hierarchy import HierarchyOptions, document_keys, existing_chunks, open_hierarchy
from xr_nczarr.model import DEFAULT_LIMITS, ArrayNode, Limits
from xr_nczarr.netcdf.annotations import SIDECARS, listed_children
from xr_nczarr.progress import Progress
from xr_nczarr.references.entries import Reference, is_metadata
from xr_nczarr.references.opening import open_record_set, open_references, record_document
from xr_nczarr.references.parquet import render_parquet_references
from xr_nczarr.references.parse import is_reference_document
from xr_nczarr.references.recognition import is_parquet, names_reference_set
from xr_nczarr.references.reference_store import ReferenceStore
from xr_nczarr.references.render import collect_references, portable, render_references
from xr_nczarr.storage import Access, LocalStore, RemoteStore, Store
from xr_nczarr.storage.location import Location, parse_target
from xr_nczarr.storage.open_store import merge_options, open_store, open_url
from xr_nczarr.storage.store import Address
from xr_nczarr.storage.url import mask, split_name

_BATCH_KEYS = 1024
_COMPRESSED_SUFFIXES = {".json.gz": "gzip", ".json.zst": "zstd", ".json.zstd": "zstd"}
_RECORD_FILE = re.compile(r"(?:.*/)?refs\.[0-9]+\.parq", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class WrittenReferences:
    """A summary of a reference set that `write` has written.

    Attributes
    ----------
    target
        Name of the document, or of the directory of parquet files.
    references
        Number of references to chunks, including inline chunks.
    arrays
        Number of arrays with at least one reference to a chunk.
    generators
        Number of generators in the document (elements of its ``gen`` array).
    """

    target: str
    references: int
    arrays: int
    generators: int

    def __repr__(self) -> str:
        references = f"{self.references:,} reference{'s' * (self.references != 1)}"
        arrays = f"{self.arrays:,} array{'s' * (self.arrays != 1)}"
        lines = [f"{references} for {arrays} → {self.target}"]
        if self.generators:
            lines.append(
                f"The set contains {self.generators:,} generator{'s' * (self.generators != 1)} "
                "(gen). VirtualiZarr ignores generators; fsspec and kerchunk read them only with "
                "simple_templates=False"
            )
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(repr(self))}</pre>"

    def as_dict(self) -> dict[str, Any]:
        """Return the result as a JSON-serializable dictionary, which has a published schema."""
        return {"schema_version": 1, **asdict(self)}


def write(
    source: Any,
    target: str | os.PathLike[str],
    *,
    generators: bool = False,
    inline_below: int = 0,
    record_size: int = 100_000,
    storage_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
    limits: Limits | Mapping[str, int] | None = None,
    progress: bool = False,
) -> WrittenReferences:
    """Write a reference set that refers to the chunks of an existing Zarr or NCZarr store.

    The set contains the store's metadata and refers to its chunks. If the store is a zip file, the
    set refers to byte ranges of that file. kerchunk, fsspec and VirtualiZarr can read sets for Zarr
    v2 stores. JSON sets for Zarr v3 stores can be read by fsspec, and by VirtualiZarr since 2.8.

    Parameters
    ----------
    source
        A path, URL or store, as for `xarray.open_dataset` with ``engine="nczarr"``.
    target
        Path or URL of the reference set. If it ends in ``.parq`` or ``.parquet``, a directory of
        parquet files is written. Otherwise, a JSON document (version 1) is written. If the target
        ends in ``.json.gz``, ``.json.zst`` or ``.json.zstd``, the document is compressed.

        An existing set is replaced. On a local disk, the replacement is atomic. In a remote
        directory of parquet files, the old metadata document is removed first. Old parquet files
        that the new set does not overwrite remain there.

        If a dataset that was opened from the old set reads a parquet file that has since been
        replaced, a `ReferenceSetError` is raised. This happens only if the old set was also written
        by this function.
    generators
        Whether to write generators (``gen``). A generator describes many regularly spaced chunks
        with one formula, which makes the document small. This package reads generators. fsspec and
        kerchunk read them only with ``simple_templates=False``, and VirtualiZarr does not read them
        at all. A program that does not read generators silently returns missing values for the
        chunks that they declare. Parquet files cannot contain generators.
    inline_below
        Size in bytes below which a chunk is stored inline in the set.
    record_size
        Maximum number of rows per parquet file. There is one row for each chunk, even if the chunk
        does not exist.
    storage_options, target_options
        Storage options for `source` and for `target`.
    limits
        Limits for reading `source`: a `Limits`, or a mapping from limit names to values.
    progress
        Whether to show how many references have been written.

    Raises
    ------
    UnsupportedError
        If `source` or `target` names a group inside a store or set. If a chunk is a compressed
        entry of a zip file and is not stored inline, because references cannot point to compressed
        entries. If the target is a directory of parquet files, but pyarrow is not installed. If
        parquet files cannot represent the set, for example because it has generators or refers to
        a Zarr v3 store.
    ConflictError
        If the target exists and is not a reference set.

    Examples
    --------
    >>> import xr_nczarr.references
    >>> xr_nczarr.references.write("forecast.zip", "forecast.json")  # doctest: +SKIP
    """
    location = parse_target(target)
    url = location.url.rstrip("/")
    if location.group:
        raise UnsupportedError(
            f"the target must be a whole reference set, not the group {quote(location.group)!r}",
            remedy="Leave out the group",
        )
    if generators and is_parquet(url):
        raise UnsupportedError(
            'parquet files cannot contain generators ("gen")',
            remedy="Write a JSON document instead",
        )
    options = merge_options(location.storage_options, target_options or {})
    access = Access(storage_options=storage_options, limits=Limits.of(limits))
    store = _open_source(parse_target(source), access)
    with Progress(progress, None, " references") as bar:
        pairs = bar.count(_references(store, inline_below, access.limits))
        references = portable(collect_references(pairs), access.limits)
    members = 0
    if is_parquet(url):
        items = render_parquet_references(references, record_size=record_size)
        _put_directory(open_url(url, options), items)
    else:
        folder, name = split_name(url)
        document = render_references(references, generators=generators)
        members = len(document.get("gen", ()))
        text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
        # In Python, surrogates represent the undecodable bytes of file names. In JSON, they must be
        # escape sequences.
        _put_document(open_url(folder, options), name, text.encode(errors="backslashreplace"))
    counts = references.chunk_counts()
    return WrittenReferences(
        target=mask(url), references=sum(counts.values()), arrays=len(counts), generators=members
    )


def _open_source(location: Location, access: Access) -> Store:
    """Open the store to which the new reference set will refer."""
    if location.group:
        raise UnsupportedError(
            f"the source must be a store, not the group {quote(location.group)!r}",
            remedy="Pass the store itself instead of one of its groups",
        )
    store: Store | None = None
    if names_reference_set(location, access.options):
        store = open_references(location, access)
    store = store or open_store(location, access)
    document = None if isinstance(store, ReferenceStore) else record_document(store)
    return store if document is None else open_record_set(location, store, document, access)


def _put_document(folder: LocalStore | RemoteStore, name: str, document: bytes) -> None:
    """Write a JSON document, compressed if `name` ends in a suffix such as ``.json.gz``.

    Raise ConflictError if `name` exists, and is neither a reference document nor empty.
    """
    if _is_other_document(folder, name):
        raise _another_kind(f"{folder.name}/{name}")
    for suffix, codec in _COMPRESSED_SUFFIXES.items():
        if name.endswith(suffix):
            document = compressed(document, codec)
    folder.put([(name, document)])


def _is_other_document(folder: LocalStore | RemoteStore, name: str) -> bool:
    """Return whether an object exists and is neither a reference document nor empty."""
    size = folder.size(name)
    if not size:
        return False
    if size > DEFAULT_LIMITS.max_consolidated_bytes:
        return True  # probably a data file, which need not be read
    (existing,) = folder.fetch([name])
    return not is_reference_document(bytes(existing or b""))


def _another_kind(place: str) -> ConflictError:
    return ConflictError(
        "the target exists, but is not a reference set",
        remedy="Choose another target, or remove the existing one first",
        store=place,
    )


def _put_directory(folder: LocalStore | RemoteStore, items: Iterable[tuple[str, bytes]]) -> None:
    """Write a directory of parquet files, replacing any existing reference set in it.

    Raise ConflictError if the directory exists, and is not a reference set.
    """
    if isinstance(folder, LocalStore):
        if os.path.lexists(folder.root) and record_document(folder) is None:
            raise _another_kind(folder.name)
        with folder.atomic_replacement(empty=True) as staging:
            names = []
            for name, data in items:
                staging.put([(name, data)])
                names.append(name)
            # A file system may treat two names as equal, for example if it ignores case. In that
            # case, the second file has replaced the first.
            staging.check_new_keys(names, ())
        return
    if _has_other_objects(folder):
        raise _another_kind(folder.name)
    # Remove the old metadata document first, and write the new one last, so that a set never mixes
    # old and new files.
    rendered = list(items)  # may fail, so do this before removing anything
    folder.delete(".zmetadata")
    written: list[str] = []
    try:
        for name, data in rendered:
            written.append(name)
            folder.put([(name, data)])
    except BaseException:
        for name in written:
            with suppress(NczarrError):
                folder.delete(name)
        raise


def _has_other_objects(folder: RemoteStore) -> bool:
    """Return whether a remote directory contains objects, but no reference set."""
    if record_document(folder) is not None:
        return False
    try:
        # An interrupted write can leave record files behind.
        return not all(map(_RECORD_FILE.fullmatch, folder.list_keys()))
    except AccessDeniedError:  # the server does not allow listing, so look only at the document
        return folder.size(".zmetadata") is not None


def _references(store: Store, inline_below: int, limits: Limits) -> Iterator[tuple[str, Reference]]:
    """Yield each key in a store, with its bytes or an address that other programs can read.

    Objects smaller than `inline_below` bytes are yielded as bytes if their size is known.
    """
    if isinstance(store, ReferenceStore):
        for key, reference in store.references.items():
            if isinstance(reference, Address):
                reference = reference._replace(url=store.targets.url(reference.url))
                small = reference.length is not None and reference.length < inline_below
                reference = next(_inlined(store, [key]))[1] if small else reference
            yield key, reference
        return
    names = _all_keys(store, limits)
    while batch := list(islice(names, _BATCH_KEYS)):
        chunks = [key for key in batch if not is_metadata(key)]
        if inline_below:
            chunks = [key for key in chunks if (store.size(key) or 0) >= inline_below]
        addresses = store.addresses(chunks)  # omits objects that only this store can read
        yield from addresses.items()
        yield from _inlined(store, [key for key in batch if key not in addresses])


def _all_keys(store: Store, limits: Limits) -> Iterator[str]:
    """Yield the keys of all objects in a store, even if the store cannot be listed."""
    keys = store.list_keys()
    try:
        first = [*islice(keys, 1)]
    except (AccessDeniedError, UnsupportedError):
        options = HierarchyOptions(
            listed_children=listed_children, sidecars=SIDECARS, limits=limits
        )
        hierarchy = open_hierarchy(store, options)
        yield from (key for key, _ in store.fetch_present(document_keys(hierarchy, SIDECARS)))
        for node in hierarchy.nodes.values():
            if isinstance(node, ArrayNode):
                yield from (key for key, _ in existing_chunks(store, node))
        return
    yield from first
    yield from keys


def _inlined(store: Store, keys: list[str]) -> Iterator[tuple[str, Reference]]:
    for key, data in store.fetch_present(keys):
        yield key, bytes(data)
