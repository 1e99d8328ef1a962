"""Reference sets, which map keys to references."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

from xr_nczarr.errors import ReferenceSetError
from xr_nczarr.locks import cached_property
from xr_nczarr.model import ChunkKeys
from xr_nczarr.references.entries import (
    Entry,
    PickledByFields,
    Reference,
    decode_inline,
    is_metadata,
)
from xr_nczarr.references.generators import Generator
from xr_nczarr.references.tables import KeyPattern, ReferenceTable, split_chunk_key
from xr_nczarr.storage.keys import Listing, one_level
from xr_nczarr.storage.store import Address

_FEW = 3
"""If a set has at most this many generators, a lookup tries all of them, whatever their folders."""


@dataclass(frozen=True)
class ReferenceSet(PickledByFields):
    """An immutable mapping from keys to references.

    Generators are pickled without being expanded.

    Attributes
    ----------
    entries
        Mapping from keys to references, in document order. It contains the references that are
        neither in `tables` nor declared by `generators`.
    tables
        Mapping from the key pattern of each large array to the table for that array's chunks.
    generators
        The generators, each of which declares many keys and their references.
    digest
        Digest of the reference document. Equal documents have equal digests. Empty if there is no
        document.
    """

    entries: Mapping[str, Entry]
    tables: Mapping[KeyPattern, ReferenceTable] = field(default_factory=dict)
    generators: tuple[Generator, ...] = ()
    digest: bytes = field(default=b"", compare=False)

    def load(self, keys: Sequence[str]) -> None:
        """Do nothing, because all references are already in memory.

        In a `RecordSet`, this method fetches the references for `keys`.
        """

    def resolve(self, key: str) -> Reference | None:
        """Return the reference for `key`, or None if the set does not declare the key.

        Raises
        ------
        ReferenceSetError
            If the key is declared twice, or its entry violates the specification.
        """
        listed = self.find_listed(key)
        generated = self.find_generated(key) if self.generators else None
        if listed is not None and generated is not None:
            raise ReferenceSetError('the key is declared twice, in "refs" and in "gen"', key=key)
        return generated if listed is None else listed

    def find_listed(self, key: str) -> Reference | None:
        """Return the reference for `key`, or None if the set does not list the key.

        A key is not listed if only a generator declares it.
        """
        entry = self.entries.get(key)
        return self.find_chunk(key) if entry is None else _decoded(entry, key)

    def find_chunk(self, key: str) -> Address | None:
        """Return the reference for `key` from a table, or None if no table contains the key."""
        split = split_chunk_key(key) if self.tables else None
        table = self.tables.get(split[0]) if split else None
        if split is None or table is None:
            return None
        return table.find([int(part) for part in split[1].split(split[0].separator)])

    def table_of(self, keys: ChunkKeys, rank: int) -> ReferenceTable | None:
        """Return the table that contains all references to the chunks of an array.

        `keys` are the array's chunk keys, and `rank` is its number of dimensions. Return None if
        the array has no table, or if some of its chunks may be declared elsewhere.
        """
        if self.generators:
            return None
        return self.tables.get(KeyPattern(keys.prefix, keys.separator if rank > 1 else ".", rank))

    def find_generated(self, key: str) -> Reference | None:
        """Return the reference for `key` from a generator, or None if no generator declares it.

        Raises
        ------
        ReferenceSetError
            If two generators declare the key.
        """
        result = None
        few = len(self.generators) <= _FEW
        for generators in (self.generators,) if few else self._near(key):
            for generator in generators:
                reference = generator.find(key)
                if result is not None and reference is not None:
                    raise ReferenceSetError("the key is declared twice", key=key)
                result = result or reference
        return result

    def _near(self, key: str) -> Iterator[Sequence[Generator]]:
        folder = f"{key}|"  # without the "|", `rfind` would skip a trailing slash
        while folder:
            folder = folder[: folder.rfind("/", 0, -1) + 1]
            yield self._by_folder.get(folder, ())

    def names(self, prefix: str = "") -> Listing:
        """Return the sorted names directly below `prefix`.

        Chunks in tables, parquet files and generators are left out. There may be very many of them,
        and they are not needed to find groups and arrays.
        """
        return one_level(self._sorted_keys, prefix)

    def items(self) -> Iterator[tuple[str, Reference]]:
        """Yield each key with its reference, including the keys that generators declare."""
        for key, entry in self.entries.items():
            yield key, _decoded(entry, key)
        for table in self.tables.values():
            for row, key in enumerate(table.keys()):
                yield key, table.reference(row)
        for generator in self.generators:
            yield from generator.items()

    def urls(self, limit: int) -> set[str]:
        """Return a sample of the URLs in the references.

        The sample is taken from `entries`, from each table, and from each of the first `limit`
        generators. Each of these contributes at most `limit` URLs.
        """
        generated = (islice(generator.items(), limit) for generator in self.generators[:limit])
        references = [reference for _, reference in chain.from_iterable(generated)]
        targets = (item.url for item in references if isinstance(item, Address))
        entries = (entry.url for entry in self.entries.values() if isinstance(entry, Address))
        tables = (table.urls[:limit] for table in self.tables.values())
        return {*targets, *islice(entries, limit), *chain.from_iterable(tables)}

    def subset(self, prefix: str) -> ReferenceSet:
        """Return a smaller set for the chunks whose keys begin with `prefix`.

        The smaller set still contains all references to these chunks. It may contain other
        references as well, because a table or generator that may declare some of these chunks is
        kept as a whole.
        """
        keys = self._sorted_keys
        end = bisect_left(keys, prefix[:-1] + "0") if prefix else len(keys)
        below = keys[bisect_left(keys, prefix) : end]
        # If the name of an array is a number, it looks like part of a chunk index. The array's
        # chunks may then be in the table of its parent.
        tables = {
            pattern: table
            for pattern, table in self.tables.items()
            if pattern.prefix.startswith(prefix) or prefix.startswith(pattern.prefix)
        }
        generators = (
            generator
            for generator in self.generators
            if prefix.startswith(constant := generator.constant_prefix)
            or constant.startswith(prefix)
        )
        entries = {key: self.entries[key] for key in below if not is_metadata(key)}
        return ReferenceSet(entries, tables, tuple(generators))

    @property
    def key_count(self) -> int:
        """Number of keys, including the keys that generators declare."""
        generated = sum(generator.key_count for generator in self.generators)
        return len(self.entries) + sum(map(len, self.tables.values())) + generated

    def chunk_counts(self) -> Counter[str]:
        """Count the references to the chunks of each array, without expanding generators.

        Return a counter that maps the prefix of an array's chunk keys to the number of references.
        """
        counts: Counter[str] = Counter()
        for key in self.entries:
            if not is_metadata(key):
                split = split_chunk_key(key)
                counts[split[0].prefix if split else key[: key.rfind("/") + 1]] += 1
        for pattern, table in self.tables.items():
            counts[pattern.prefix] += len(table)
        return counts

    @cached_property
    def _sorted_keys(self) -> list[str]:
        return sorted(self.entries)

    @cached_property
    def _by_folder(self) -> dict[str, list[Generator]]:
        generators: dict[str, list[Generator]] = {}
        for generator in self.generators:
            generators.setdefault(generator.folder, []).append(generator)
        return generators


def _decoded(entry: Entry, key: str) -> Reference:
    return decode_inline(entry, key) if isinstance(entry, str) else entry
