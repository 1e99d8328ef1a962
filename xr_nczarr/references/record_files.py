"""Fetch and cache record files, which are parquet files that contain references to chunks."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from xr_nczarr.errors import (
    ErrorContext,
    LimitError,
    NczarrError,
    ReferenceSetError,
    UnsupportedError,
    reason_of,
)
from xr_nczarr.storage.ranges import Bytes
from xr_nczarr.storage.shared_cache import SharedCache

COLUMNS = ("path", "offset", "size", "raw")
SET_ID = "xr_nczarr_set_id"
"""Name of the member that contains the identifier of a set.

The member is in ``.zmetadata``, and in the key-value metadata of each record file. All files of a
set have the same identifier, and no other set has it. Other programs ignore the identifier.
"""
_MAX_KEPT_FILES = 16
_NUMBER_BYTES = 16  # per row, for offset and size

Fetch = Callable[[Sequence[str]], Iterable[Bytes | None]]
"""Function that takes the names of files in a directory and yields their contents in order.

The function yields None for a file that does not exist.
"""

_Columns = Mapping[str, Sequence[Any]]
"""Mapping of column names to the values in each column of a file. Empty for a missing file."""


class _Parquet(NamedTuple):
    """An open parquet file.

    `size` is the uncompressed size in bytes. `set_id` is None if the file contains no identifier.
    """

    rows: int
    size: int
    set_id: str | None
    read: Callable[[], _Columns]


class RecordFiles:
    """The record files in a directory, with a cache that is not pickled.

    Parameters
    ----------
    fetch
        Function that fetches files of the directory; see `Fetch`.
    max_rows
        Maximum number of rows in a file.
    max_bytes
        Maximum uncompressed size of a file in bytes, not counting its numeric columns.
    set_id
        Identifier that every file must contain; see `SET_ID`. If None, identifiers are
        ignored and files may be missing.
    """

    def __init__(
        self, fetch: Fetch, max_rows: int, max_bytes: int, set_id: str | None = None
    ) -> None:
        self.fetch = fetch
        self.max_rows = max_rows
        self.max_bytes = max_bytes
        self.set_id = set_id
        self._files = SharedCache[str, _Columns](_MAX_KEPT_FILES)

    def __reduce__(self) -> tuple[Any, ...]:
        return RecordFiles, (self.fetch, self.max_rows, self.max_bytes, self.set_id)

    def load(self, names: Iterable[str]) -> Mapping[str, _Columns]:
        """Return a mapping from the names of record files to the columns of these files.

        All files that are not cached are fetched in one call. If the cache is too small for all
        files, the last files in `names` are not fetched, and are missing from the result.

        Raises
        ------
        ReferenceSetError
            If a file cannot be read. If `set_id` is not None, this error is also raised for a file
            that does not exist or belongs to another set.
        LimitError
            If a file has more than `max_rows` rows, or is larger than `max_bytes`.
        UnsupportedError
            If neither pyarrow nor fastparquet is installed.
        """
        return self._files.load(islice(dict.fromkeys(names), _MAX_KEPT_FILES), self._read)

    def row(self, name: str, row: int) -> dict[str, Any] | None:
        """Return the values in a row of the file `name`, as a dict keyed by column name.

        Return None if the file or the row does not exist.

        Raises
        ------
        ReferenceSetError, LimitError
            As in `load`.
        """
        columns = self.load([name])[name]
        if row >= _row_count(columns):
            return None
        return {column: values[row] for column, values in columns.items()}

    def row_count(self, name: str) -> int:
        """Return the number of rows in the file `name`, or 0 if the file does not exist.

        Raises
        ------
        ReferenceSetError, LimitError
            As in `load`.
        """
        return _row_count(self.load([name])[name])

    def _read(self, names: list[str]) -> Iterator[_Columns]:
        for name, data in zip(names, self.fetch(names), strict=True):
            with ErrorContext(key=name):
                try:
                    columns = self._columns(data)
                except (NczarrError, MemoryError):
                    raise
                except Exception as error:  # parquet libraries raise errors of many types
                    problem = f"the parquet file cannot be read ({reason_of(error)})"
                    raise ReferenceSetError(problem) from error
            yield columns

    def _columns(self, data: Bytes | None) -> _Columns:
        file = _Parquet(0, 0, None, dict) if data is None else _open_parquet(data)
        if self.set_id not in (None, file.set_id):
            raise ReferenceSetError(
                "the file does not exist, but the reference set requires it"
                if data is None
                else "the reference set was replaced after it was opened",
                remedy="Open the set again. If the error persists, the set is incomplete; recreate "
                "it",
            )
        if file.rows > self.max_rows:
            raise LimitError(
                f"the parquet file has {file.rows:,} rows, which exceeds the limit of "
                f"{self.max_rows:,}"
            )
        size = file.size - _NUMBER_BYTES * file.rows
        if size > self.max_bytes:
            raise LimitError(
                f"the URLs and inline data in the parquet file take up {size:,} bytes, which "
                f"exceeds the limit of {self.max_bytes:,} bytes",
                remedy="If you trust the set, pass limits=Limits(max_consolidated_bytes=…)",
            )
        columns = file.read()
        if data is not None and not {"path", "raw"} & columns.keys():
            raise ReferenceSetError('the parquet file has neither a "path" nor a "raw" column')
        return columns


def _row_count(columns: _Columns) -> int:
    return max(map(len, columns.values()), default=0)


def _open_parquet(data: Bytes) -> _Parquet:
    if importlib.util.find_spec("pyarrow") is not None:
        return _open_pyarrow(data)
    if importlib.util.find_spec("fastparquet") is not None:
        return _open_fastparquet(data)
    raise UnsupportedError(
        "reading parquet files requires the pyarrow or fastparquet package",
        remedy="Install pyarrow or fastparquet",
    )


def _open_pyarrow(data: Bytes) -> _Parquet:
    from pyarrow import BufferReader, parquet, types

    metadata = parquet.read_metadata(BufferReader(data))
    names = metadata.schema.to_arrow_schema().names
    present = [column for column in COLUMNS if column in names]
    texts = [column for column in ("path", "raw") if column in present]
    file = parquet.ParquetFile(BufferReader(data), metadata=metadata, read_dictionary=texts)

    def plain(values: Any) -> Any:
        if not types.is_dictionary(values.type):
            return values.to_numpy(zero_copy_only=False)
        # Let rows with equal text share one object, because a small file may repeat a long text.
        values, missing = values.combine_chunks(), np.array([None], object)
        distinct = np.append(values.dictionary.to_numpy(zero_copy_only=False), missing)
        return distinct[values.indices.cast("int64").fill_null(-1).to_numpy(zero_copy_only=False)]

    def read() -> _Columns:
        rows = file.read(columns=present)
        return {column: plain(rows[column]) for column in present}

    groups = map(metadata.row_group, range(metadata.num_row_groups))
    size = sum(group.total_byte_size for group in groups)
    set_id = (metadata.metadata or {}).get(SET_ID.encode(), b"").decode(errors="replace") or None
    return _Parquet(metadata.num_rows, size, set_id, read)


def _open_fastparquet(data: Bytes) -> _Parquet:
    import fastparquet

    file = fastparquet.ParquetFile(io.BytesIO(data))
    present = [column for column in COLUMNS if column in file.columns]

    def read() -> _Columns:
        rows = file.to_pandas(columns=present)
        return {column: rows[column].to_numpy() for column in present}

    size = sum(group.total_byte_size for group in file.row_groups)
    return _Parquet(file.count(), size, file.key_value_metadata.get(SET_ID), read)
