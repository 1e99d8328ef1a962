"""A store that is there → a reference set that points at its bytes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

from xr_nczarr.errors import ConflictError, UnsupportedError, quote
from xr_nczarr.model import DEFAULT_LIMITS, Limits
from xr_nczarr.references import (
    InlineBytes,
    Reference,
    Target,
    is_metadata,
    is_record_document,
    parse_references,
    portable,
    render_parquet_references,
    render_references,
    tabulated,
)
from xr_nczarr.storage.caching import CachingStore
from xr_nczarr.storage.filesystem import FilesystemStore
from xr_nczarr.storage.keys import stored_keys
from xr_nczarr.storage.local import LocalStore
from xr_nczarr.storage.opening import open_store
from xr_nczarr.storage.protocol import ByteRange, Store, fetch_present
from xr_nczarr.storage.reference import ReferenceStore
from xr_nczarr.storage.reference_opening import (
    RECORDS,
    is_parquet,
    is_record_directory,
    open_record_set,
)
from xr_nczarr.storage.replacing import in_one_step
from xr_nczarr.storage.url import local_path, mask, merge_options, parse_url, split_name
from xr_nczarr.storage.zip import ZipStore

_AT_ONCE = 1024


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class WrittenReferences:
    """What `write` has written.

    Attributes
    ----------
    target
        Name of the document, or of the directory of parquet files.
    references
        Number of references to chunks, those that lie in the set included.
    arrays
        Number of arrays that they belong to.
    generators
        Number of members of ``gen``.
    """

    target: str
    references: int
    arrays: int
    generators: int

    def __repr__(self) -> str:
        references = f"{self.references:,} reference{'s' * (self.references != 1)}"
        arrays = f"{self.arrays:,} array{'s' * (self.arrays != 1)}"
        lines = [f"{references} of {arrays} → {self.target}"]
        if self.generators:
            lines.append(
                f"{self.generators:,} of its entries are gen: VirtualiZarr does not read them, "
                "fsspec and kerchunk do with simple_templates=False"
            )
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """Return it as values of JSON."""
        return asdict(self)


def write(
    source: Any,
    target: str | os.PathLike[str],
    *,
    generators: bool = False,
    inline_below: int = 0,
    record_size: int = 100_000,
    storage_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
    limits: Limits = DEFAULT_LIMITS,
    keys: Callable[[Store], Iterator[str]] = stored_keys,
) -> WrittenReferences:
    """Write the reference set of an existing Zarr or NCZarr store.

    Metadata lie in the set itself, chunks where they are; those of a zip file as ranges of it.
    kerchunk, fsspec and VirtualiZarr read the set: those of Zarr v2 all of them, JSON of Zarr v3
    fsspec, and VirtualiZarr from 2.8.

    Parameters
    ----------
    source
        A path, URL or store, as `xarray.open_dataset` takes it with ``engine="nczarr"``.
    target
        Path or URL of the document (version 1, JSON), or of a directory of parquet files when it
        ends in ``.parq`` or ``.parquet``. A set that is there is replaced.
    generators
        Whether regular runs of chunks become ``gen``, a formula for all of them, which makes the
        document small. Only readers that know it get their values: this package, and fsspec and
        kerchunk with ``simple_templates=False``. Without it they read missing values, and so does
        VirtualiZarr, without a warning. Parquet has no ``gen``.
    inline_below
        Chunks of fewer bytes lie in the set as well.
    record_size
        Rows of a parquet file.
    storage_options, target_options
        For `source` and for `target`.
    keys
        What yields the keys of all objects of a store.

    Raises
    ------
    UnsupportedError
        When chunks have no address of their own: entries of a zip file that are deflated.
    ConflictError
        When something of another kind is where the set is to be.

    Examples
    --------
    >>> import xr_nczarr.references
    >>> xr_nczarr.references.write("forecast.zip", "forecast.json")  # doctest: +SKIP
    """
    location = parse_url(target)
    url = location.url.rstrip("/")
    if generators and is_parquet(url):
        raise UnsupportedError("parquet has no gen", remedy="Write a JSON document")
    options = merge_options(location.storage_options, target_options or {})
    store = _open_source(source, storage_options, limits)
    table = portable(tabulated(_references(store, inline_below, keys)))
    members = 0
    if is_parquet(url):
        items = render_parquet_references(table, record_size=record_size)
        _put_directory(_folder(url, options), items)
    else:
        folder, name = split_name(url)
        document = render_references(table, generators=generators)
        members = len(parse_references(document).generators) if generators else 0
        _put_document(_folder(folder, options), name, document)
    counts = table.chunk_counts()
    return WrittenReferences(
        target=mask(url), references=sum(counts.values()), arrays=len(counts), generators=members
    )


def _open_source(source: Any, options: Mapping[str, Any] | None, limits: Limits) -> Store:
    """Return the store of which a set is to be written, all of it."""
    group = parse_url(source).group
    if group:
        raise UnsupportedError(
            f"the source names its group {quote(group)!r}; a set is of a whole store",
            remedy="Leave the group out.",
        )
    store = open_store(source, storage_options=options, limits=limits)
    if not isinstance(store, ReferenceStore):
        for _, data in fetch_present(store, [RECORDS]):
            if is_record_document(data):
                return open_record_set(source, store, bytes(data), options, limits=limits)
    return store


def _folder(url: str, options: Mapping[str, Any]) -> LocalStore | FilesystemStore:
    path = local_path(url)
    return FilesystemStore.connect(url, options) if path is None else LocalStore(path)


def _put_document(folder: LocalStore | FilesystemStore, name: str, document: bytes) -> None:
    size = min(folder.size(name) or 0, 64)
    begin = next(folder.fetch_ranges([ByteRange(name, 0, size)])) if size else None
    if begin and not bytes(begin).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
        raise _another_kind(f"{folder.name}/{name}")
    folder.put([(name, document)])


def _another_kind(found: str) -> ConflictError:
    return ConflictError(
        "what is there is no reference set",
        remedy="Remove it, or choose another name.",
        store=found,
    )


def _put_directory(
    folder: LocalStore | FilesystemStore, items: Iterable[tuple[str, bytes]]
) -> None:
    """Put the files of a set in place of the one that is there; leave none if it fails."""
    if isinstance(folder, LocalStore):
        if os.path.lexists(folder.root) and not is_record_directory(folder.root):
            raise _another_kind(folder.name)
        with in_one_step(folder, empty=True) as staging:
            names = []
            for name, data in items:
                staging.put([(name, data)])
                names.append(name)
            # Of two that are one name here the later is there in place of the other.
            staging.check_new_keys(names, ())
        return
    # Objects are not put together: without the last one they are no set.
    folder.delete(".zmetadata")
    begun: list[str] = []
    try:
        for name, data in items:
            begun.append(name)
            folder.put([(name, data)])
    except BaseException:
        for name in begun:
            folder.delete(name)
        raise


def _references(
    store: Store, inline_below: int, keys: Callable[[Store], Iterator[str]]
) -> Iterator[tuple[str, Reference]]:
    """Yield each key of a store with what it refers to."""
    if isinstance(store, ReferenceStore):
        for key, reference in store.references.items():
            if isinstance(reference, Target):
                reference = reference._replace(url=store.targets.url(reference.url))
                small = reference.length is not None and reference.length < inline_below
                reference = next(_inlined(store, [key]))[1] if small else reference
            yield key, reference
        return
    names = keys(store)
    while batch := list(islice(names, _AT_ONCE)):
        chunks = [key for key in batch if not is_metadata(key)]
        targets = _targets(store, chunks, inline_below)
        yield from targets.items()
        yield from _inlined(store, [key for key in batch if key not in targets])


def _inlined(store: Store, keys: list[str]) -> Iterator[tuple[str, Reference]]:
    for key, data in fetch_present(store, keys):
        yield key, InlineBytes(bytes(data))


def _targets(store: Store, keys: Sequence[str], inline_below: int) -> dict[str, Target]:
    """Give where those objects of a store lie that are not to lie in the set."""
    if isinstance(store, CachingStore):
        return _targets(store.source, keys, inline_below)
    if not isinstance(store, ZipStore | LocalStore | FilesystemStore):
        return {}
    if inline_below:
        keys = [key for key in keys if (store.size(key) or 0) >= inline_below]
    if not isinstance(store, ZipStore):
        return {key: Target(_url(store, key)) for key in keys}
    url, places = _url(store.folder, store.key), store.uncompressed_ranges(keys)
    for key in keys:
        if key not in places:
            raise UnsupportedError(
                "the entry of the zip file is deflated: its bytes are nowhere as they are",
                remedy="Pack the store without compression, or raise inline_below.",
                store=store.name,
                key=key,
            )
    return {key: Target(url, *places[key]) for key in keys}


def _url(store: Any, key: str) -> str:
    if isinstance(store, LocalStore):
        return f"{store.root}/{key}"
    assert isinstance(store, FilesystemStore)
    return store.url_of(key)
