"""The parquet layout of kerchunk and fsspec: metadata in one document, references in record files.

The ``.zmetadata`` document contains all metadata, and the number of rows per record file. The
record files of an array, ``{array}/refs.{record}.parq``, contain one row per chunk, in C order.
Chunks that do not exist also have a row.

This package stores an identifier in all files of a set. If a set is replaced while it is open, its
readers find a different identifier in the record files, and raise a ReferenceSetError.
"""

from __future__ import annotations

import importlib.util
import io
import itertools
import json
import math
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from xr_nczarr.errors import (
    LimitError,
    MetadataError,
    ReferenceSetError,
    UnsupportedError,
    quote,
)
from xr_nczarr.formats.documents import read_chunk_shape, read_lengths
from xr_nczarr.locks import cached_property
from xr_nczarr.model import DEFAULT_LIMITS, Json, Limits, combinations, grid_shape
from xr_nczarr.references.entries import (
    Reference,
    check_number,
    invalid,
    is_metadata,
    parse_members,
)
from xr_nczarr.references.record_files import COLUMNS, SET_ID, Fetch, RecordFiles
from xr_nczarr.references.reference_set import ReferenceSet
from xr_nczarr.references.tables import DOTTED, flat_index
from xr_nczarr.storage.store import Address

_METADATA = ".zmetadata"
_MAX_RECORD_ROWS = 10_000_000
_MAX_RECORD_FILES = 1_000_000
_MAX_SPARSE_ROWS = 10_000_000
_MAX_ROWS_PER_REFERENCE = 1000
"""Maximum number of rows per reference for arrays with more than `_MAX_SPARSE_ROWS` chunks.

Sparser arrays are rejected, because almost all of their rows would be empty. Empty rows cannot be
omitted, because fsspec fails if the first record file of an array is missing.
"""


def parse_parquet_references(
    metadata: bytes, fetch: Fetch, limits: Limits = DEFAULT_LIMITS
) -> RecordSet:
    """Parse a directory of parquet files into a reference set.

    Parameters
    ----------
    metadata
        The content of the directory's ``.zmetadata``.
    fetch
        Function that takes the names of files and yields their contents in order. It yields None
        for a missing file. The function is called when chunks are looked up, and it is pickled with
        the set.
    limits
        `max_consolidated_bytes` limits the total size of URLs and inline data in each record file.

    Raises
    ------
    ReferenceSetError
        If the document does not have kerchunk's layout.
    """
    members = parse_members(metadata)
    documents, record_size = members.get("metadata"), members.get("record_size")
    if not isinstance(documents, dict):
        raise invalid('"metadata"', documents, "an object", key=_METADATA, place="metadata")
    if type(record_size) is not int or not 1 <= record_size <= _MAX_RECORD_ROWS:
        expected = f"an integer from 1 to {_MAX_RECORD_ROWS:,}"
        raise invalid('"record_size"', record_size, expected, key=_METADATA, place="record_size")
    # When fsspec changes a set, it removes the identifier here, but not from all record files.
    set_id = members.get(SET_ID)
    if not isinstance(set_id, str | None):
        raise invalid(f'"{SET_ID}"', set_id, "a string", key=_METADATA, place=SET_ID)
    texts = {
        key: value if isinstance(value, str) else json.dumps(_dotted(key, value))
        for key, value in documents.items()
    }
    records = RecordFiles(fetch, record_size, limits.max_consolidated_bytes, set_id)
    return RecordSet(texts, records=records)


@dataclass(frozen=True)
class RecordSet(ReferenceSet):
    """A reference set in a directory of parquet files, which are fetched on demand.

    The references to chunks are in `records`. `entries` contains only metadata.
    """

    records: RecordFiles = field(kw_only=True)

    @property
    def key_count(self) -> int:
        """Number of keys, including the keys of missing chunks."""
        return super().key_count + sum(math.prod(grid or (1,)) for grid in self._grids.values())

    def load(self, keys: Sequence[str]) -> None:
        """Cache the record files that contain the references for `keys`.

        The files are fetched in one call. If the cache is too small for all files, the files for
        the last keys are not fetched.
        """
        placed = map(self._row_of, keys)
        self.records.load(place[0] for place in placed if place is not None)

    def find_listed(self, key: str) -> Reference | None:
        """Return the reference for `key`, or None if the set does not declare the key.

        A chunk is declared if its record file exists, and its row in that file is not empty.
        """
        place = self._row_of(key)
        if place is None:
            return super().find_listed(key)
        values = self.records.row(*place)
        if values is None:
            return None
        raw = _column_value(values, "raw", (str, bytes), key)
        if raw is not None:
            return raw.encode() if isinstance(raw, str) else bytes(raw)
        path = _column_value(values, "path", str, key)
        if path is None:
            return None
        offset = check_number(values.get("offset"), "offset", key)
        length = check_number(values.get("size"), "size", key)
        return Address(path) if offset == length == 0 else Address(path, offset, length)

    def items(self) -> Iterator[tuple[str, Reference]]:
        """Yield each key with its reference.

        If a record file does not exist, all chunks that belong in this file are skipped at once.

        Raises
        ------
        UnsupportedError
            If the arrays have so many chunks that there may be too many record files to search.
        ReferenceSetError
            If array metadata, a record file or a reference is invalid.
        LimitError
            If a record file is too large.
        """
        max_rows = self.records.max_rows
        files = sum(-(-math.prod(grid or ()) // max_rows) for grid in self._grids.values())
        if files > _MAX_RECORD_FILES:
            raise UnsupportedError(
                f"the reference set may contain as many as {files:,} record files, too many to "
                f"search for chunks (the limit is {_MAX_RECORD_FILES:,})",
                remedy="Recreate the reference set with a larger record_size",
            )
        yield from super().items()
        for array, grid in self._grids.items():
            if grid is None:
                raise _no_grid(f"{array}.zarray")
            size = math.prod(grid)
            for record, first in enumerate(range(0, size, max_rows)):
                count = self.records.row_count(f"{array}refs.{record}.parq")
                for number in range(first, min(first + count, size)):
                    key = array + ".".join(map(str, np.unravel_index(number, grid)))
                    reference = self.find_listed(key)
                    if reference is not None:
                        yield key, reference

    def urls(self, limit: int) -> set[str]:
        """Return the URLs of the first `limit` chunks.

        Arrays with a damaged or oversized record file are skipped. Reading them raises an error
        later.
        """
        urls = set[str]()
        for array, grid in self._grids.items():
            keys = [] if grid is None else list(itertools.islice(chunk_keys(array, grid), limit))
            limit -= len(keys)
            with suppress(ReferenceSetError, LimitError):
                references = map(self.find_listed, keys)
                urls |= {item.url for item in references if isinstance(item, Address)}
        return urls

    def subset(self, prefix: str) -> RecordSet:
        """Return a reference set for the chunks whose keys begin with `prefix`.

        The new set and this one share the cache of record files.
        """
        entries = {
            key: text
            for key, text in self.entries.items()
            if key.startswith(prefix) and key.endswith(".zarray")
        }
        return RecordSet(entries, records=self.records)

    def _row_of(self, key: str) -> tuple[str, int] | None:
        """Return the name of a chunk's record file and the chunk's row number in that file.

        Return None if `key` is not a chunk key, or if the chunk is outside the array. Raise
        ReferenceSetError if the metadata of the array is invalid.
        """
        split = None if key in self.entries else DOTTED.fullmatch(key)
        if split is None or split[1] not in self._grids:
            return None
        prefix, text = split.groups()
        grid = self._grids[prefix]
        if grid is None:
            raise _no_grid(f"{prefix}.zarray")
        index = tuple(map(int, text.split(".")))
        number = flat_index(index, grid) if len(index) == len(grid) else None
        if number is None:
            return None
        record, row = divmod(number, self.records.max_rows)
        return f"{prefix}refs.{record}.parq", row

    @cached_property
    def _grids(self) -> dict[str, tuple[int, ...] | None]:
        """The shape of each array's chunk grid, by the prefix of the array's keys.

        The shape is (1,) for a scalar, and None for an array with invalid metadata.
        """
        return {
            key.removesuffix(".zarray"): _grid(str(text))
            for key, text in self.entries.items()
            if key.endswith(".zarray")
        }


def _column_value(values: Mapping[str, Any], column: str, kind: Any, key: str) -> Any:
    """Return the value in a column of a row, or None if the value is missing (null or NaN).

    Raise ReferenceSetError if the value is not of type `kind`.
    """
    value = values.get(column)
    if value is None or isinstance(value, kind):
        return value
    if isinstance(value, float) and math.isnan(value):
        return None
    raise invalid(f'the value in column "{column}"', value, "a string", key=key)


def render_parquet_references(
    references: ReferenceSet, *, record_size: int
) -> Iterator[tuple[str, bytes]]:
    """Render a reference set as a directory of parquet files.

    Yield the name and content of each file. `record_size` is the maximum number of rows in a record
    file.

    Raises
    ------
    UnsupportedError
        If pyarrow is not installed, if almost all chunks of a large array are missing, if the set
        contains anything other than metadata and the chunks of Zarr v2 arrays, or if a URL is not
        valid Unicode.
    ReferenceSetError
        If the shape or the chunk shape of an array is invalid.
    """
    if importlib.util.find_spec("pyarrow") is None:
        raise UnsupportedError(
            "writing parquet files requires the pyarrow package", remedy="Install pyarrow"
        )
    documents = {key: reference for key, reference in references.items() if is_metadata(key)}
    texts = {
        key: reference.decode()
        for key, reference in documents.items()
        if isinstance(reference, bytes)
    }
    set_id = secrets.token_hex(16)
    placed = len(texts)
    for key, text in texts.items():
        if not key.endswith(".zarray"):
            continue
        array = key.removesuffix(".zarray")
        grid = _grid(text)
        if grid is None:
            raise _no_grid(key)
        if math.prod(grid) > max(_MAX_SPARSE_ROWS, _MAX_ROWS_PER_REFERENCE * references.key_count):
            raise UnsupportedError(
                "the array is too sparse for parquet files, which would contain a row for each "
                "chunk, although almost none of the chunks exist",
                remedy="Write a JSON document instead",
                key=key,
            )
        nested = parse_members(text.encode()).get("dimension_separator") == "/"
        keys = chunk_keys(array, grid, "/" if nested else ".")
        for record in itertools.count():
            rows = [references.resolve(key) for key in itertools.islice(keys, record_size)]
            if not rows:
                break
            placed += sum(row is not None for row in rows)
            yield f"{array}refs.{record}.parq", _render_record(rows, set_id)
    others = references.key_count - placed
    if others:
        raise UnsupportedError(
            "parquet files can contain only references to chunks of Zarr v2 arrays, but "
            f"the set also contains {others:,} other reference{'s' * (others != 1)}",
            remedy="Write a JSON document instead",
        )
    members = {key: _dotted(key, _parsed(text)) for key, text in texts.items()}
    metadata = {"metadata": members, "record_size": record_size, SET_ID: set_id}
    yield _METADATA, json.dumps(metadata).encode()


def _dotted(key: str, document: Json) -> Json:
    """Return the document at `key`, with a dot as the chunk key separator of all arrays in it."""
    # kerchunk supports no other separator. The record files are valid for every separator, because
    # they contain no chunk keys.
    if not isinstance(document, dict):
        return document
    if key.endswith(".zarray"):
        return {**document, "dimension_separator": "."}
    members = document.get("metadata")
    if key.endswith(_METADATA) and isinstance(members, dict):
        dotted = {name: _dotted(name, member) for name, member in members.items()}
        return {**document, "metadata": dotted}
    return document


def _parsed(text: str) -> Json:
    """Parse a JSON document, or return the text unchanged if it is not valid JSON."""
    try:
        return json.loads(text)
    except ValueError:  # netCDF-C does not always write valid JSON
        return text


def _render_record(rows: Sequence[Reference | None], set_id: str) -> bytes:
    import pyarrow as pa
    from pyarrow import parquet

    # An offset and size of 0 stand for a whole object, so an empty range is stored as inline data.
    rows = [b"" if isinstance(row, Address) and row.length == 0 else row for row in rows]
    targets = [row if isinstance(row, Address) else Address("") for row in rows]
    raw = [row if isinstance(row, bytes) else None for row in rows]
    try:
        paths = pa.array([target.url or None for target in targets], pa.string())
    except UnicodeEncodeError as error:
        raise UnsupportedError(
            f"parquet files cannot contain the URL {quote(error.object)}, because it is not valid "
            "Unicode",
            remedy="Write a JSON document instead, or rename the file",
        ) from error
    offsets = pa.array([target.offset or 0 for target in targets], pa.int64())
    sizes = pa.array([target.length or 0 for target in targets], pa.int64())
    columns = [paths, offsets, sizes, pa.array(raw, pa.binary())]
    sink = io.BytesIO()
    table = pa.table(columns, COLUMNS, metadata={SET_ID: set_id})
    parquet.write_table(table, sink, compression="zstd")
    return sink.getvalue()


def chunk_keys(array: str, grid: Sequence[int], separator: str = ".") -> Iterator[str]:
    """Yield the chunk keys of an array in C order.

    `array` is the path of the array, with a trailing slash. It is empty for a root array.
    """
    for index in combinations([range(extent) for extent in grid]):
        yield array + separator.join(map(str, index))


def _grid(text: str) -> tuple[int, ...] | None:
    try:
        members = parse_members(text.encode())
        shape = read_lengths(members.get("shape"), "shape")
        chunks = read_chunk_shape(members.get("chunks"), "chunks", shape)
    except (ReferenceSetError, MetadataError):
        return None
    return grid_shape(shape, chunks) or (1,)


def _no_grid(key: str) -> ReferenceSetError:
    problem = (
        'the "shape" or "chunks" of the array is missing or invalid; '
        "expected two integer lists of the same length"
    )
    return ReferenceSetError(problem, key=key)
