"""Reference sets, which map keys to references."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

from xr_nczarr.errors import ReferenceSetError, quote
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
from xr_nczarr.storage.keys import Listing, children_of
from xr_nczarr.storage.store import Address

ChunkSource = ReferenceTable | Generator
"""A source of references to chunks whose keys have the same pattern."""


@dataclass(frozen=True)
class ReferenceSet(PickledByFields):
    """An immutable mapping from keys to references.

    Pickling the set does not expand its generators.

    Attributes
    ----------
    entries
        The references that are not in `chunks`, by key, in document order.
    chunks
        Tables and generators of references to chunks, keyed by the pattern of the chunk keys. If a
        pattern has a table, the table is the first item in its list.
    """

    entries: Mapping[str, Entry]
    chunks: Mapping[KeyPattern, Sequence[ChunkSource]] = field(default_factory=dict)

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
        listed, declared = self.find_listed(key), self.find_chunk(key)
        if len(declared) + (listed is not None) > 1:
            raise ReferenceSetError("the key is declared twice", key=key)
        return declared[0] if declared else listed

    def check_missing(self, key: str) -> None:
        """Check that a chunk is really missing, rather than declared under a malformed key.

        `key` is the key of a chunk that the set does not declare.

        Raises
        ------
        ReferenceSetError
            If the set declares chunks of the same array, but only under keys that contain more or
            fewer indices than `key`.
        """
        # For small arrays in GRIB files, kerchunk stores the only chunk inline under the key "0",
        # even if the array has several dimensions. If this chunk were considered missing, the whole
        # array would be read as fill values.
        prefix = key[: key.rfind("/") + 1]
        ranks = self._ranks.get(prefix)
        if ranks is None or not key[len(prefix) : len(prefix) + 1].isdigit():
            return
        rank = key.count(".", len(prefix)) + 1
        if rank not in ranks:
            raise ReferenceSetError(
                f"all chunk keys that begin with {quote(repr(prefix))} have the wrong "
                f"number of indices: {min(ranks)} instead of {rank}",
                remedy="Recreate the reference set. If kerchunk created it from GRIB files, pass a "
                "smaller inline_threshold, because kerchunk writes such keys for inlined arrays",
                key=key,
            )

    def find_listed(self, key: str) -> Reference | None:
        """Return the reference for `key` from `entries`, or None if `entries` omits the key."""
        entry = self.entries.get(key)
        return decode_inline(entry, key) if isinstance(entry, str) else entry

    def find_chunk(self, key: str) -> list[Address]:
        """Return the references for `key`, one from each source in `chunks` that has the key."""
        split = split_chunk_key(key) if self.chunks else None
        if split is None:
            return []
        pattern, text = split
        sources = self.chunks.get(pattern, ())
        index = [int(number) for number in text.split(pattern.separator)]
        return [item for source in sources if (item := source.find(key, index))]

    def table_of(self, keys: ChunkKeys, rank: int) -> ReferenceTable | None:
        """Return the table that contains all references to the chunks of an array.

        `keys` are the array's chunk keys, and `rank` is its number of dimensions. Return None if
        the array has no table, or if some of its chunks may be declared outside the table.
        """
        pattern = KeyPattern(keys.prefix, keys.separator if rank > 1 else ".", rank)
        sources = self.chunks.get(pattern, ())
        source = sources[0] if len(sources) == 1 else None
        return source if isinstance(source, ReferenceTable) else None

    def names(self, prefix: str = "") -> Listing:
        """Return the sorted names directly under `prefix`.

        Chunks that are not in `entries` are omitted. There may be very many of them, and they are
        not needed to find groups and arrays.
        """
        return children_of(self._sorted_keys, prefix)

    def items(self) -> Iterator[tuple[str, Reference]]:
        """Yield each key with its reference, including the keys that generators declare."""
        for key, entry in self.entries.items():
            yield key, decode_inline(entry, key) if isinstance(entry, str) else entry
        for source in self.sources:
            yield from source.items()

    def urls(self, limit: int) -> set[str]:
        """Return a sample of the URLs in the references.

        `limit` is the maximum number of URLs per source (`entries`, a table or a generator). It is
        also the maximum number of generators.
        """
        tables = (item.urls[:limit] for item in self.sources if isinstance(item, ReferenceTable))
        generators = islice((item for item in self.sources if isinstance(item, Generator)), limit)
        generated = chain.from_iterable(islice(item.items(), limit) for item in generators)
        entries = (entry.url for entry in self.entries.values() if isinstance(entry, Address))
        urls = {*islice(entries, limit), *(address.url for _, address in generated)}
        return urls.union(*tables)

    def subset(self, prefix: str) -> ReferenceSet:
        """Return a smaller set for the chunks whose keys begin with `prefix`.

        The smaller set contains all references to these chunks. It can also contain other
        references, because each table or generator is either kept as a whole or left out.
        """
        keys = self._sorted_keys
        end = bisect_left(keys, prefix[:-1] + "0") if prefix else len(keys)
        below = keys[bisect_left(keys, prefix) : end]

        # If the name of an array is a number, it looks like part of a chunk index. The array's
        # chunks may then be in the table or generator of its parent.
        def is_near(pattern: KeyPattern) -> bool:
            return pattern.prefix.startswith(prefix) or prefix.startswith(pattern.prefix)

        chunks = {pattern: item for pattern, item in self.chunks.items() if is_near(pattern)}
        entries = {key: self.entries[key] for key in below if not is_metadata(key)}
        return ReferenceSet(entries, chunks)

    @property
    def key_count(self) -> int:
        """Number of keys, including the keys that generators declare."""
        return len(self.entries) + sum(source.key_count for source in self.sources)

    @property
    def sources(self) -> Iterator[ChunkSource]:
        """All sources in `chunks`."""
        return chain.from_iterable(self.chunks.values())

    def chunk_counts(self) -> Counter[str]:
        """Return the number of chunk references of each array, keyed by the prefix of its keys."""
        counts: Counter[str] = Counter()
        for key in self.entries:
            if not is_metadata(key):
                split = split_chunk_key(key)
                counts[split[0].prefix if split else key[: key.rfind("/") + 1]] += 1
        for pattern, sources in self.chunks.items():
            counts[pattern.prefix] += sum(source.key_count for source in sources)
        return counts

    @cached_property
    def _sorted_keys(self) -> list[str]:
        return sorted(self.entries)

    @cached_property
    def _ranks(self) -> dict[str, set[int]]:
        """The ranks of each array's chunk keys, keyed by the prefix of these keys.

        The rank of a chunk key is the number of indices in it.
        """
        splits = filter(None, map(split_chunk_key, self.entries))
        ranks: dict[str, set[int]] = {}
        for pattern in (*(split[0] for split in splits), *self.chunks):
            if pattern.separator == ".":  # with "/", the prefix cannot always be determined
                ranks.setdefault(pattern.prefix, set()).add(pattern.rank)
        return ranks
