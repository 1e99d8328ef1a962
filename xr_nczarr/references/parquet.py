"""The parquet layout of kerchunk and fsspec: metadata in one document, chunks in record files.

``.zmetadata`` holds every document and the number of rows of a record file;
``{array}/refs.{record}.parq`` holds a row for each chunk of the array in C order, present or not.
"""

from __future__ import annotations

import importlib.util
import io
import itertools
import json
import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from xr_nczarr.errors import (
    LimitError,
    NczarrError,
    ReferenceSetError,
    UnsupportedError,
    quote,
    reason_of,
)
from xr_nczarr.locks import cached_property
from xr_nczarr.model import Json
from xr_nczarr.references.columns import DOTTED, Table, flat_index
from xr_nczarr.references.entries import (
    ByFields,
    InlineBytes,
    Reference,
    Target,
    check_number,
    combinations,
    is_metadata,
    parse_members,
)

_COLUMNS = ("path", "offset", "size", "raw")
_KEPT_ROW_GROUPS = 16
_MAX_RECORD_ROWS = 10_000_000

Columns = Mapping[str, Any]
"""A sequence of values by the name of the column."""

_File = tuple[tuple[int, ...], Callable[[int], Columns]]
"""An open parquet file: the rows of each row group, and how to read one."""


def parse_parquet_table(metadata: bytes, fetch: Callable[[str], bytes | None]) -> ParquetTable:
    """Return the table of a directory of parquet files.

    Parameters
    ----------
    metadata
        The directory's ``.zmetadata``.
    fetch
        Returns a file of the directory, None when it is not there. It is called when a chunk is
        looked up, and travels with the set when that is pickled.

    Raises
    ------
    ReferenceSetError
        When the document is not what kerchunk writes.
    """
    members = parse_members(metadata)
    documents, record_size = members.get("metadata"), members.get("record_size")
    if not isinstance(documents, dict):
        raise ReferenceSetError("found no object", key=".zmetadata", place="metadata")
    if type(record_size) is not int or not 1 <= record_size <= _MAX_RECORD_ROWS:
        raise ReferenceSetError(
            f"found {quote(repr(record_size))}, expected an integer from 1 to {_MAX_RECORD_ROWS:,}",
            key=".zmetadata",
            place="record_size",
        )
    texts = {
        key: value if isinstance(value, str) else json.dumps(value)
        for key, value in documents.items()
    }
    return ParquetTable(Table(texts), record_size, fetch)


@dataclass(frozen=True)
class ParquetTable(ByFields):
    """The references of a directory of parquet files, read a row group at a time."""

    documents: Table
    record_size: int
    fetch: Callable[[str], bytes | None]

    @property
    def count(self) -> int:
        """Number of keys if no chunk were missing."""
        return self.documents.count + sum(math.prod(grid or (1,)) for grid in self._grids.values())

    def find(self, key: str) -> Reference | None:
        """Return the reference of `key`, None for a row without path and data."""
        document = self.documents.find(key)
        split = None if document else DOTTED.fullmatch(key)
        if split is None:
            return document
        prefix, text = split.groups()
        index = tuple(map(int, text.split(".")))
        if prefix not in self._grids:
            return None
        grid = self._grids[prefix]
        if grid is None:
            raise _no_grid(f"{prefix}.zarray")
        grid = grid or (1,)
        if len(index) != len(grid):
            return None
        number = flat_index(index, grid)
        if number is None:
            return None
        record, row = divmod(number, self.record_size)
        return self._row(f"{prefix}refs.{record}.parq", row, key)

    def names(self, prefix: str) -> tuple[list[str], list[str]]:
        """Return the names of documents and of prefixes directly below `prefix`."""
        return self.documents.names(prefix)

    def items(self) -> Iterator[tuple[str, Reference]]:
        """Yield every key with its reference."""
        yield from self.documents.items()
        for array, grid in self._grids.items():
            for key in chunk_keys(array, grid or ()):
                reference = self.find(key)
                if reference is not None:
                    yield key, reference

    def urls(self, most: int) -> set[str]:
        """Return the URLs of the first `most` chunks that exist."""
        grids = [(array, grid) for array, grid in self._grids.items() if grid is not None]
        keys = (key for array, grid in grids for key in chunk_keys(array, grid))
        references = map(self.find, itertools.islice(keys, most))
        return {reference.url for reference in references if isinstance(reference, Target)}

    def subset(self, prefix: str) -> ParquetTable:
        """Return the table of the chunks whose keys begin with `prefix`."""
        entries = {
            key: text
            for key, text in self.documents.entries.items()
            if key.startswith(prefix) and key.endswith(".zarray")
        }
        return replace(self, documents=Table(entries))

    def _row(self, name: str, row: int, key: str) -> Reference | None:
        try:
            sizes, _ = self._open(name)
            group = 0
            while group < len(sizes) and row >= sizes[group]:
                row -= sizes[group]
                group += 1
            if group == len(sizes):
                return None
            columns = self._read(name, group)
            path, offset, length, raw = (
                columns[column][row] if column in columns else None for column in _COLUMNS
            )
        except NczarrError:
            raise
        except (ValueError, OSError, RuntimeError, LookupError, TypeError, AssertionError) as error:
            problem = f"the parquet file cannot be read ({reason_of(error)})"
            raise ReferenceSetError(problem, key=name) from error
        if isinstance(raw, (str, bytes)):
            return InlineBytes(raw.encode() if isinstance(raw, str) else raw)
        if not isinstance(path, str):
            return None
        offset, length = (
            check_number(number, what, key)
            for number, what in ((offset, "offset"), (length, "size"))
        )
        return Target(path) if offset == length == 0 else Target(path, offset, length)

    @cached_property
    def _grids(self) -> dict[str, tuple[int, ...] | None]:
        """Number of chunks along each dimension, by the array's key; None for a broken array."""
        return {
            key.removesuffix(".zarray"): _grid(str(text))
            for key, text in self.documents.entries.items()
            if key.endswith(".zarray")
        }

    @cached_property
    def _open(self) -> Callable[[str], _File]:
        return lru_cache(_KEPT_ROW_GROUPS)(self._open_file)

    @cached_property
    def _read(self) -> Callable[[str, int], Columns]:
        return lru_cache(_KEPT_ROW_GROUPS)(lambda name, group: self._open(name)[1](group))

    def _open_file(self, name: str) -> _File:
        data = self.fetch(name)
        if data is None:
            return (), lambda _: {}
        sizes, read = _open_parquet(data)
        if sum(sizes) > self.record_size:
            raise LimitError(
                f"found {sum(sizes):,} rows, expected at most {self.record_size:,}", key=name
            )
        return sizes, read


def render_parquet_references(
    table: Table | ParquetTable, *, record_size: int
) -> Iterator[tuple[str, bytes]]:
    """Yield the name and content of each file of the directory that declares what `table` does.

    Raises
    ------
    UnsupportedError
        Without pyarrow, and for chunks that the layout has no place for: those of Zarr v3.
    """
    if importlib.util.find_spec("pyarrow") is None:
        raise UnsupportedError("parquet is not written", remedy="Install pyarrow")
    documents = {key: reference for key, reference in table.items() if is_metadata(key)}
    texts = {
        key: reference.data.decode()
        for key, reference in documents.items()
        if isinstance(reference, InlineBytes)
    }
    placed = len(texts)
    for key, text in texts.items():
        if not key.endswith(".zarray"):
            continue
        array = key.removesuffix(".zarray")
        grid = _grid(text)
        if grid is None:
            raise _no_grid(key)
        keys = chunk_keys(array, grid)
        for record in itertools.count():
            rows = [table.find(key) for key in itertools.islice(keys, record_size)]
            if not rows:
                break
            placed += sum(row is not None for row in rows)
            yield f"{array}refs.{record}.parq", _render_record(rows)
    if placed != table.count:
        raise UnsupportedError(
            f"{table.count - placed:,} of the references are no chunks of Zarr v2 arrays",
            remedy="Write a JSON document",
        )
    members = {key: _parsed(text) for key, text in texts.items()}
    metadata = json.dumps({"metadata": members, "record_size": record_size})
    yield ".zmetadata", metadata.encode()


def _parsed(text: str) -> Json:
    """Return the value of a document; other text than JSON, as netcdf-c writes it, stays text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _render_record(rows: Sequence[Reference | None]) -> bytes:
    import pyarrow as pa
    from pyarrow import parquet

    targets = [row if isinstance(row, Target) else Target("") for row in rows]
    raw = [row.data if isinstance(row, InlineBytes) else None for row in rows]
    paths = pa.array([target.url or None for target in targets], pa.string())
    offsets = pa.array([target.offset or 0 for target in targets], pa.int64())
    sizes = pa.array([target.length or 0 for target in targets], pa.int64())
    columns = [paths, offsets, sizes, pa.array(raw, pa.binary())]
    sink = io.BytesIO()
    parquet.write_table(pa.table(columns, _COLUMNS), sink, compression="zstd")
    return sink.getvalue()


def chunk_keys(array: str, grid: Sequence[int]) -> Iterator[str]:
    """Yield the keys of the chunks of an array in C order; `array` ends in a slash or is empty."""
    for index in combinations([range(extent) for extent in grid or (1,)]):
        yield array + ".".join(map(str, index))


def _grid(text: str) -> tuple[int, ...] | None:
    try:
        document = parse_members(text.encode())
    except ReferenceSetError:
        return None
    shape, chunks = document.get("shape"), document.get("chunks")
    if (
        not isinstance(shape, list)
        or not isinstance(chunks, list)
        or len(shape) != len(chunks)
        or not all(type(extent) is int and extent >= 0 for extent in shape + chunks)
        or any(extent and not chunk for extent, chunk in zip(shape, chunks, strict=True))
    ):
        return None
    return tuple(-(-extent // (chunk or 1)) for extent, chunk in zip(shape, chunks, strict=True))


def _no_grid(key: str) -> ReferenceSetError:
    problem = "expected shape and chunks, lists of the same length"
    return ReferenceSetError(problem, key=key)


def _open_parquet(data: bytes) -> _File:
    """Open a file with whichever of pyarrow and fastparquet is installed."""
    if importlib.util.find_spec("pyarrow") is not None:
        return _open_pyarrow(data)
    if importlib.util.find_spec("fastparquet") is not None:
        return _open_fastparquet(data)
    raise UnsupportedError("it is in parquet", remedy="Install pyarrow or fastparquet")


def _open_pyarrow(data: bytes) -> _File:
    from pyarrow import BufferReader, parquet, types

    file = parquet.ParquetFile(BufferReader(data))
    present = [column for column in _COLUMNS if column in file.schema_arrow.names]

    def plain(values: Any) -> Any:
        # A dictionary's to_numpy gives its last item for a null.
        is_dictionary = types.is_dictionary(values.type)
        values = values.cast(values.type.value_type) if is_dictionary else values
        return values.to_numpy(zero_copy_only=False)

    def read(group: int) -> Columns:
        rows = file.read_row_group(group, columns=present)
        return {column: plain(rows[column]) for column in present}

    groups = map(file.metadata.row_group, range(file.num_row_groups))
    return tuple(group.num_rows for group in groups), read


def _open_fastparquet(data: bytes) -> _File:
    import fastparquet

    try:
        file = fastparquet.ParquetFile(io.BytesIO(data))
    except (fastparquet.util.ParquetException, struct.error) as error:
        raise ValueError(error) from error
    present = [column for column in _COLUMNS if column in file.columns]

    def read(group: int) -> Columns:
        rows = file[group].to_pandas(columns=present)
        return {column: rows[column].to_numpy() for column in present}

    return tuple(group.num_rows for group in file.row_groups), read
