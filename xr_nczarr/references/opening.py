"""Recognize and open reference sets."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from xr_nczarr.errors import ConflictError, ErrorContext, NotFoundError, UnsupportedError
from xr_nczarr.hierarchy import is_record_document
from xr_nczarr.model import Limits
from xr_nczarr.references.document import ReferenceDocument
from xr_nczarr.references.parquet import parse_parquet_references
from xr_nczarr.references.parse import parse_references
from xr_nczarr.references.recognition import has_reference_options, is_parquet
from xr_nczarr.references.reference_store import ReferenceStore
from xr_nczarr.references.storage_options import ReferenceOptions
from xr_nczarr.references.targets import Targets
from xr_nczarr.storage import Access, LocalStore, Location, Store, parse_target
from xr_nczarr.storage.open_store import open_url
from xr_nczarr.storage.url import local_path, mask, split_name, split_query

_RECORDS = ".zmetadata"
"""Name of the metadata document in a folder of parquet files or a consolidated Zarr v2 store."""


def open_references(location: Location, access: Access) -> ReferenceStore | None:
    """Open the reference set at a location for which `names_reference_set` returns True.

    A name that ends in ``.parq`` or ``.parquet`` may also belong to a Zarr store. If nothing except
    the name suggests a reference set, and there is no such set, return None.

    Raises
    ------
    NotFoundError
        If there is no reference set at the location, except in the case above.
    UnsupportedError
        If a storage option is missing or not supported.
    ConflictError
        If both the target and the `fo` storage option name a reference set.
    """
    implied = {}
    if location.is_reference_set and location.filesystem is not None:
        # fsspec has already read the document.
        implied = {"fo": location.filesystem.references, "fs": location.filesystem.fss}
    options = ReferenceOptions.of(access, **implied)
    document = _locate_document(location, options)
    document.check_medium("s3")
    if document.url:
        with ErrorContext(store=mask(document.url)):
            try:
                return _open_at(document, options.at(document))
            except NotFoundError:
                # A name that ends in .parq or .parquet may belong to a Zarr store instead.
                is_certain = location.is_reference_set or has_reference_options(access.options)
                if is_certain or not is_parquet(location.url):
                    raise
                return None
    if not isinstance(document.target, Mapping):
        raise UnsupportedError(
            f'the storage option "fo" has the unsupported type {type(document.target).__name__}',
            remedy="Pass the path or URL of a reference set, or its contents as a dictionary",
        )
    with ErrorContext(store="references"):
        references = parse_references(document.target, **options.parsing)
    return ReferenceStore(references, options.targets(None), "references")


def _locate_document(location: Location, options: ReferenceOptions) -> Location:
    """Return the location of the reference document that the target or the `fo` option names."""
    document = location
    if location.is_reference_set and not location.url:
        if options.fo is None:
            raise UnsupportedError(
                'the storage option "fo" is missing; expected the path or URL of a reference set'
            )
        document = parse_target(options.fo)
        if document.is_reference_set:
            raise UnsupportedError(
                'the storage option "fo" must not begin with "reference:"',
                remedy="Pass the path or URL of a document. To open a group of the set, pass "
                '"reference://group" as the target',
            )
    elif options.fo is not None:
        raise ConflictError(
            'the target and the storage option "fo" both name a reference set',
            remedy='Leave out "fo", or pass "reference://" as the target',
            store=mask(location.url),
        )
    # `target_protocol` applies to a path without a protocol.
    text, protocol = document.target, options.target_protocol
    if isinstance(text, str) and "://" not in text and protocol not in (None, "file", "local"):
        document = parse_target(f"{protocol}://{text}")
    return replace(document, medium=document.medium or location.medium)


def open_record_set(
    location: Location, store: Store, document: bytes, access: Access
) -> ReferenceStore:
    """Open the reference set in a folder of parquet files.

    Parameters
    ----------
    location
        The location of the folder. Relative URLs in the set are resolved against the folder's
        parent.
    store
        The store that contains the parquet files.
    document
        The content of ``.zmetadata`` in `store`.

    Raises
    ------
    ReferenceSetError
        If the document does not have kerchunk's layout.
    """
    with ErrorContext(store=store.name):
        targets = ReferenceOptions.of(access).at(location).targets(location.url or None)
    return _record_set(store, document, targets, access.limits)


def _record_set(store: Store, document: bytes, targets: Targets, limits: Limits) -> ReferenceStore:
    with ErrorContext(store=store.name):
        references = parse_parquet_references(document, store.fetch, limits)
    record_set = ReferenceStore(references, targets, store.name)
    record_set.consolidated = True
    return record_set


def _open_at(location: Location, options: ReferenceOptions) -> ReferenceStore:
    """Open the JSON document or the folder of parquet files at a location.

    Raise NotFoundError if there is no reference set at the location.
    """
    url = location.url.rstrip("/")
    ways = [_open_document, _open_records]
    if location.folder or os.path.isdir(url):
        ways = [_open_records]
    elif is_parquet(url):
        ways.reverse()
    for open_set in ways:
        with suppress(NotFoundError):
            return open_set(url, options)
    remedy = 'If the target is a store, leave out options such as "remote_options"'
    has_options = has_reference_options(options.access.options)
    raise NotFoundError("the reference set does not exist", remedy=remedy if has_options else "")


def _open_document(url: str, options: ReferenceOptions) -> ReferenceStore:
    path, query = split_query(url)
    folder, name = split_name(path)
    store = _folder(folder + query, options)
    document = ReferenceDocument(folder=store, name=name, parsing=options.parsing)
    document, references = document.read()
    return ReferenceStore(references, options.targets(url), mask(url), document)


def _open_records(url: str, options: ReferenceOptions) -> ReferenceStore:
    # Unlike the path of a document, the names of record files do not come from the caller.
    store = _folder(url, options, follow_symlinks=options.access.trusted)
    document = record_document(store)
    if document is None:
        raise NotFoundError("the reference set does not exist")
    return _record_set(store, document, options.targets(url), options.access.limits)


def record_document(store: Store) -> bytes | None:
    """Return the ``.zmetadata`` document of a reference set in parquet files.

    Return None if `store` does not contain such a document.
    """
    for _, document in store.fetch_present([_RECORDS]):
        if is_record_document(document):
            return bytes(document)
    return None


def _folder(url: str, options: ReferenceOptions, *, follow_symlinks: bool = True) -> Store:
    """Open the folder at `url`, and optionally allow symbolic links that lead out of it."""
    path, max_bytes = local_path(url), options.access.limits.max_consolidated_bytes
    if path is not None:
        return LocalStore(path, follow_symlinks=follow_symlinks, max_object_bytes=max_bytes)
    storage_options = options.document_options(split_query(url)[0])
    folder = open_url(url, storage_options, options.access, filesystem=options.filesystem)
    return folder.bounded(max_bytes)
