"""Record files: the parquet files that contain references. They are fetched together and cached."""

from __future__ import annotations

import importlib.util
import io
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any

from xr_nczarr.errors import (
    LimitError,
    NczarrError,
    Place,
    ReferenceSetError,
    UnsupportedError,
    reason_of,
)
from xr_nczarr.locks import ProcessLock, cached_property
from xr_nczarr.storage.ranges import Bytes
from xr_nczarr.storage.shared_cache import SharedCache

COLUMNS = ("path", "offset", "size", "raw")
_KEPT_FILES = 16
_UNREADABLE = (ValueError, OSError, RuntimeError, LookupError, TypeError, AssertionError)

Fetch = Callable[[Sequence[str]], Iterable[Bytes | None]]
"""Function that yields files of a directory in order, with None for files that do not exist."""

_Columns = Mapping[str, Any]
"""The values in each column of a file, by column name."""

_Opened = tuple[tuple[int, ...], Callable[[int], _Columns]]
"""The number of rows in each row group of a file, and a function that reads a row group."""


class RecordFiles:
    """The record files in a directory. Cached files are not pickled.

    Parameters
    ----------
    fetch
        Function that fetches several files of the directory together.
    max_rows
        Maximum number of rows in a file. A file with more rows raises LimitError.
    """

    def __init__(self, fetch: Fetch, max_rows: int) -> None:
        self.fetch = fetch
        self.max_rows = max_rows
        self._files = SharedCache[str, _RecordFile](_KEPT_FILES)

    def __reduce__(self) -> tuple[Any, ...]:
        return RecordFiles, (self.fetch, self.max_rows)

    def load(self, names: Iterable[str]) -> Mapping[str, _RecordFile]:
        """Return record files by name; fetch all files that are not cached in one call.

        If there are more files than the cache can hold, only the first ones are returned.
        """
        return self._files.load(islice(dict.fromkeys(names), _KEPT_FILES), self._fetched)

    def row(self, name: str, row: int) -> dict[str, Any] | None:
        """Return the values of a row by column, or None if the file or the row does not exist.

        Raises
        ------
        ReferenceSetError
            If the file cannot be read.
        LimitError
            If the file has more than `max_rows` rows.
        """
        with Place(key=name):
            try:
                return self.load([name])[name].row(row)
            except NczarrError:
                raise
            except _UNREADABLE as error:
                problem = f"the parquet file cannot be read ({reason_of(error)})"
                raise ReferenceSetError(problem) from error

    def _fetched(self, names: list[str]) -> Iterator[_RecordFile]:
        return (_RecordFile(data, self.max_rows) for data in self.fetch(names))


class _RecordFile:
    """One record file. The most recently read row group is cached."""

    def __init__(self, data: Bytes | None, max_rows: int) -> None:
        self._data = data
        self._max_rows = max_rows
        self._columns = lru_cache(1)(lambda group: self._opened[1](group))
        self._reading = ProcessLock()  # pyarrow's files serve one thread at a time

    def row(self, row: int) -> dict[str, Any] | None:
        """Return the values of a row by column, or None if the row does not exist."""
        sizes, _ = self._opened
        for group, size in enumerate(sizes):
            if row < size:
                with self._reading:
                    columns = self._columns(group)
                return {column: columns[column][row] for column in columns}
            row -= size
        return None

    @cached_property
    def _opened(self) -> _Opened:
        if self._data is None:
            return (), lambda _: {}
        opened = _open_parquet(self._data)
        rows = sum(opened[0])
        if rows > self._max_rows:
            raise LimitError(
                f"the parquet file has {rows:,} rows; expected at most {self._max_rows:,}"
            )
        return opened


def _open_parquet(data: Bytes) -> _Opened:
    """Open a file with pyarrow or fastparquet, whichever is installed."""
    if importlib.util.find_spec("pyarrow") is not None:
        return _open_pyarrow(data)
    if importlib.util.find_spec("fastparquet") is not None:
        return _open_fastparquet(data)
    raise UnsupportedError(
        "reading parquet requires pyarrow or fastparquet", remedy="Install pyarrow or fastparquet"
    )


def _open_pyarrow(data: Bytes) -> _Opened:
    from pyarrow import BufferReader, parquet, types

    file = parquet.ParquetFile(BufferReader(data))
    present = [column for column in COLUMNS if column in file.schema_arrow.names]

    def plain(values: Any) -> Any:
        # A DictionaryArray's to_numpy returns the last item for a null.
        is_dictionary = types.is_dictionary(values.type)
        values = values.cast(values.type.value_type) if is_dictionary else values
        return values.to_numpy(zero_copy_only=False)

    def read(group: int) -> _Columns:
        rows = file.read_row_group(group, columns=present)
        return {column: plain(rows[column]) for column in present}

    groups = map(file.metadata.row_group, range(file.num_row_groups))
    return tuple(group.num_rows for group in groups), read


def _open_fastparquet(data: Bytes) -> _Opened:
    import fastparquet

    try:
        file = fastparquet.ParquetFile(io.BytesIO(data))
    except (fastparquet.util.ParquetException, struct.error) as error:
        raise ValueError(error) from error
    present = [column for column in COLUMNS if column in file.columns]

    def read(group: int) -> _Columns:
        rows = file[group].to_pandas(columns=present)
        return {column: rows[column].to_numpy() for column in present}

    return tuple(group.num_rows for group in file.row_groups), read
