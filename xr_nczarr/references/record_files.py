"""Fetch and cache record files, which are parquet files that contain references to chunks."""

from __future__ import annotations

import importlib.util
import io
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
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
from xr_nczarr.locks import ProcessLock, cached_property
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

_Columns = Mapping[str, Any]
"""Mapping of column names to the values in each column of a file."""


class _Parquet(NamedTuple):
    """An open parquet file.

    `rows` contains the number of rows in each row group, `size` is the uncompressed size of the
    file in bytes, and `set_id` is the identifier of the set to which the file belongs, or None. The
    function `read` takes the index of a row group and returns its columns.
    """

    rows: tuple[int, ...]
    size: int
    set_id: str | None
    read: Callable[[int], _Columns]


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
        Identifier that every file must have; see `SET_ID`. If None, files may have any identifier,
        and may be missing. For example, fsspec may have changed the set: it then removes the
        identifier from ``.zmetadata``, but only from some of the record files.
    """

    def __init__(
        self, fetch: Fetch, max_rows: int, max_bytes: int, set_id: str | None = None
    ) -> None:
        self.fetch = fetch
        self.max_rows = max_rows
        self.max_bytes = max_bytes
        self.set_id = set_id
        self._files = SharedCache[str, _RecordFile](_MAX_KEPT_FILES)

    def __reduce__(self) -> tuple[Any, ...]:
        return RecordFiles, (self.fetch, self.max_rows, self.max_bytes, self.set_id)

    def load(self, names: Iterable[str]) -> Mapping[str, _RecordFile]:
        """Return a mapping of names to record files.

        All files that are not cached are fetched in one call. If there are more names than the
        cache can hold, the last ones are omitted.
        """
        return self._files.load(islice(dict.fromkeys(names), _MAX_KEPT_FILES), self._fetched)

    def row(self, name: str, row: int) -> dict[str, Any] | None:
        """Return the values in a row of the file `name`, as a dict keyed by column name.

        Return None if the file or the row does not exist.

        Raises
        ------
        ReferenceSetError
            If the file cannot be read. If the set has an identifier, also if the file does not
            exist or belongs to another set.
        LimitError
            If the file has more than `max_rows` rows, or is larger than `max_bytes`.
        """
        with self._file(name) as file:
            return file.row(row)

    def row_count(self, name: str) -> int:
        """Return the number of rows in the file `name`, or 0 if the file does not exist.

        Raises
        ------
        ReferenceSetError, LimitError
            As in `row`.
        """
        with self._file(name) as file:
            return file.row_count

    @contextmanager
    def _file(self, name: str) -> Iterator[_RecordFile]:
        """Yield a record file, and add its name to any error in the ``with`` block."""
        with ErrorContext(key=name):
            try:
                yield self.load([name])[name]
            except (NczarrError, MemoryError):
                raise
            except Exception as error:  # parquet libraries raise errors of many types
                problem = f"the parquet file cannot be read ({reason_of(error)})"
                raise ReferenceSetError(problem) from error

    def _fetched(self, names: list[str]) -> Iterator[_RecordFile]:
        rules = self.max_rows, self.max_bytes, self.set_id
        return (_RecordFile(data, *rules) for data in self.fetch(names))


class _RecordFile:
    """One record file, which caches the row group that was read most recently."""

    def __init__(
        self, data: Bytes | None, max_rows: int, max_bytes: int, set_id: str | None
    ) -> None:
        self._data = data
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._set_id = set_id
        self._columns = lru_cache(1)(lambda group: self._opened.read(group))
        self._reading = ProcessLock()  # a pyarrow file serves one thread at a time

    def row(self, row: int) -> dict[str, Any] | None:
        """Return the values in a row, as a dict keyed by column name.

        Return None if the row does not exist.
        """
        for group, count in enumerate(self._opened.rows):
            if row < count:
                with self._reading:
                    columns = self._columns(group)
                return {column: columns[column][row] for column in columns}
            row -= count
        return None

    @property
    def row_count(self) -> int:
        """The number of rows in the file, or 0 if the file does not exist."""
        return sum(self._opened.rows)

    @cached_property
    def _opened(self) -> _Parquet:
        if self._data is None:
            opened = _Parquet((), 0, None, lambda _: {})
        else:
            opened = _open_parquet(self._data)
        if self._set_id not in (None, opened.set_id):
            raise ReferenceSetError(
                "the file does not exist, but the reference set requires it"
                if self._data is None
                else "the reference set was replaced after it was opened",
                remedy="Open the set again. If the error persists, recreate the set, because it is "
                "incomplete",
            )
        rows = sum(opened.rows)
        if rows > self._max_rows:
            raise LimitError(
                f"the parquet file has {rows:,} rows, which exceeds the limit of {self._max_rows:,}"
            )
        size = opened.size - _NUMBER_BYTES * rows
        if size > self._max_bytes:
            raise LimitError(
                f"URLs and inline data total {size:,} bytes, which exceeds the limit of "
                f"{self._max_bytes:,} bytes",
                remedy="If you trust the set, pass limits=Limits(max_consolidated_bytes=…)",
            )
        return opened


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

    def read(group: int) -> _Columns:
        rows = file.read_row_group(group, columns=present)
        return {column: plain(rows[column]) for column in present}

    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    size = sum(group.total_byte_size for group in groups)
    set_id = (metadata.metadata or {}).get(SET_ID.encode(), b"").decode(errors="replace") or None
    return _Parquet(tuple(group.num_rows for group in groups), size, set_id, read)


def _open_fastparquet(data: Bytes) -> _Parquet:
    import fastparquet

    try:
        file = fastparquet.ParquetFile(io.BytesIO(data))
    except (fastparquet.util.ParquetException, struct.error) as error:
        raise ValueError(error) from error
    present = [column for column in COLUMNS if column in file.columns]

    def read(group: int) -> _Columns:
        rows = file[group].to_pandas(columns=present)
        return {column: rows[column].to_numpy() for column in present}

    size = sum(group.total_byte_size for group in file.row_groups)
    set_id = file.key_value_metadata.get(SET_ID)
    return _Parquet(tuple(group.num_rows for group in file.row_groups), size, set_id, read)
