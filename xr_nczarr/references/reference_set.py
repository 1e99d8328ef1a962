"""Reference sets, which combine a table of explicit references with generators."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

from xr_nczarr.errors import ReferenceSetError
from xr_nczarr.locks import cached_property
from xr_nczarr.model import ChunkKeys
from xr_nczarr.references.columns import Column, Table
from xr_nczarr.references.entries import PickledByFields, Reference, Target
from xr_nczarr.references.generators import Generator
from xr_nczarr.references.parquet import ParquetTable
from xr_nczarr.storage import Listing

_FEW = 3
"""If a set has at most this many generators, a lookup tries all of them, whatever their folders."""


@dataclass(frozen=True)
class ReferenceSet(PickledByFields):
    """An immutable mapping from keys to references. Generators are pickled without being expanded.

    Attributes
    ----------
    table
        The references that are listed explicitly.
    generators
        Generators, each of which declares many keys and their references.
    digest
        Digest of the reference document, which is equal for equal documents. Empty if there is no
        document.
    """

    table: Table | ParquetTable
    generators: tuple[Generator, ...] = ()
    digest: bytes = field(default=b"", compare=False)

    def resolve(self, key: str) -> Reference | None:
        """Return the reference for `key`, or None if the set does not declare the key.

        Raises
        ------
        ReferenceSetError
            If the key is declared twice, or its entry violates the specification.
        """
        reference = self.table.find(key)
        generated = self.find_generated(key) if self.generators else None
        if reference is not None and generated is not None:
            raise ReferenceSetError('the key is declared twice, in "refs" and in "gen"', key=key)
        if reference is None and generated is None and key.endswith("/0"):
            # In the chunk key of a scalar, VirtualiZarr up to 2.5 omits the index.
            return self.table.find(key[:-1])
        return generated if reference is None else reference

    def column_of(self, keys: ChunkKeys, rank: int) -> Column | None:
        """Return the column that contains all references to the chunks of an array.

        `keys` are the array's chunk keys, and `rank` is its number of dimensions. Return None if
        the table has no column for the array, or if generators may declare some of its chunks.
        """
        if self.generators or isinstance(self.table, ParquetTable):
            return None
        return self.table.column_of(keys, rank)

    def find_generated(self, key: str) -> Reference | None:
        """Return the reference that a generator declares for `key`.

        Return None if no generator declares the key.

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

    def generators_near(self, key: str) -> int:
        """Return the number of generators that a lookup of `key` may have to try."""
        return sum(map(len, self._near(key)))

    def _near(self, key: str) -> Iterator[Sequence[Generator]]:
        folder = f"{key}|"  # keeps a slash at the end of the key
        while folder:
            folder = folder[: folder.rfind("/", 0, -1) + 1]
            yield self._by_folder.get(folder, ())

    def names(self, prefix: str = "") -> Listing:
        """Return the sorted names directly below `prefix`.

        Chunks in columns, parquet files and generators are left out, because there may be very many
        of them, and they are not needed to find groups and arrays.
        """
        return self.table.names(prefix)

    def items(self) -> Iterator[tuple[str, Reference]]:
        """Yield each key with its reference, including the keys that generators declare."""
        yield from self.table.items()
        for generator in self.generators:
            yield from generator.items()

    def urls(self, limit: int) -> set[str]:
        """Yield a sample of the URLs to which the references refer.

        The sample is taken from each column of references, from the first `limit` generators, and
        from the individually listed references. Each of these contributes at most `limit` URLs.
        """
        generated = (islice(generator.items(), limit) for generator in self.generators[:limit])
        urls = {item.url for _, item in chain.from_iterable(generated) if isinstance(item, Target)}
        return urls | self.table.urls(limit)

    def subset(self, prefix: str) -> ReferenceSet:
        """Return a smaller set that still contains all chunks whose keys begin with `prefix`.

        The smaller set may contain other references as well.
        """
        # Keep the generators that may declare a key with this prefix.
        generators = (
            generator
            for generator in self.generators
            if prefix.startswith(generator.literal) or generator.literal.startswith(prefix)
        )
        return ReferenceSet(self.table.subset(prefix), tuple(generators))

    @property
    def count(self) -> int:
        """Number of keys, including the keys that generators declare."""
        return self.table.count + sum(generator.count for generator in self.generators)

    @cached_property
    def _by_folder(self) -> dict[str, list[Generator]]:
        generators: dict[str, list[Generator]] = {}
        for generator in self.generators:
            generators.setdefault(generator.folder, []).append(generator)
        return generators
