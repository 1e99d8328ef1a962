"""Mutants of a corpus: changed bytes, and JSON documents with changed or exchanged values.

Mutant n of a seed does not depend on earlier mutants.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

NUMBERS = [0, 1, -1, 2, 3, 7, 255, 65536, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63]
NUMBERS += [-(2**63) - 1, 2**64, 10**30, 0.5, -0.0, 1e300, float("nan"), float("inf")]
TEXTS = ["", "a", "/", "//", ".", "..", "../a", "/etc/passwd", "a/b", "\\", "\x00", "a\nb", "\x7f"]
TEXTS += [
    "NaN",
    "Infinity",
    "0x7fc00000",
    "1",
    "é",
    "\ud800",
    "x" * 5000,
    "{{ a }}",
    "{{ 1 // 0 }}",
]
TEXTS += ["<i4", ">f8", "|S0", "|S1", "<U4", "|O", "<M8[ns]", "|V7", "|b1", "<c16", "float32"]
TEXTS += ["int64", "string", "r24", "zlib", "gzip", "zstd", "blosc", "lz4", "shuffle", "pickle"]
TEXTS += ["bytes", "transpose", "sharding_indexed", "crc32c", "vlen-utf8", "delta", "packbits"]
TEXTS += ["quantize", "fixedscaleoffset", "bz2", "lzma", "msgpack2", "json2", "big", "little", "C"]
TEXTS += ["/x", "/g/x", "_ARRAY_DIMENSIONS", "days since 2000-01-01", "days since", "seconds"]
WORDS = [0, 1, 2**7, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1]


def mutants(corpus: Sequence[bytes], name: str, seed: int, count: int) -> Iterator[bytes]:
    """Yield mutants of the files of a corpus."""
    for number in range(count):
        yield mutant(corpus, random.Random(f"{name}-{seed}-{number}"))


def mutant(corpus: Sequence[bytes], chance: random.Random) -> bytes:
    """Return a file with random changes: usually to its JSON values, otherwise to its bytes."""
    data = chance.choice(corpus)
    if data[:1] in (b"{", b"[") and chance.random() < 0.85:
        with suppress(ValueError, RecursionError):
            document = json.loads(data)
            for _ in range(chance.choice((1, 1, 1, 2, 3))):
                document = _changed(document, chance)
            return json.dumps(document, ensure_ascii=chance.random() < 0.5).encode(
                "utf-8", "surrogatepass"
            )
    return changed_bytes(data, chance)


def _changed(document: Any, chance: random.Random) -> Any:
    """Return the document with one random change.

    The change replaces a value, or removes, duplicates or renames a member.
    """
    places = list(_places(document, ()))
    place = chance.choice(places)
    if not place:
        return _value(chance) if chance.random() < 0.1 else _changed_within(document, (), chance)
    return _changed_within(document, place, chance)


def _changed_within(  # noqa: C901  (a list of changes)
    document: Any, place: tuple[Any, ...], chance: random.Random
) -> Any:
    if not place:
        return _value(chance)
    holder = document
    for step in place[:-1]:
        holder = holder[step]
    last, kind = place[-1], chance.randrange(10)
    if kind == 0:
        del holder[last]
    elif kind == 1 and isinstance(holder, dict):
        holder[chance.choice(TEXTS)] = holder.pop(last)
    elif kind == 2 and isinstance(holder, dict):
        holder[chance.choice([*holder, *TEXTS])] = holder[last]
    elif kind == 2:
        holder.insert(chance.randrange(len(holder) + 1), holder[last])
    elif kind == 3:
        wrapped = chance.choice([[holder[last]], {"a": holder[last]}, [holder[last]] * 40])
        holder[last] = wrapped
    elif kind == 4:
        # A value from another place in the document, which may have the right type.
        other = document
        for step in chance.choice(list(_places(document, ()))):
            other = other[step]
        holder[last] = json.loads(json.dumps(other))
    elif kind == 5 and isinstance(holder[last], str) and holder[last]:
        at = chance.randrange(len(holder[last]) + 1)
        holder[last] = holder[last][:at] + chance.choice(TEXTS) + holder[last][at:]
    elif kind == 5 and type(holder[last]) is int:
        holder[last] += chance.choice((-1, 1, 1000))
    else:
        holder[last] = _value(chance)
    return document


def _places(value: Any, place: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    yield place
    items = value.items() if isinstance(value, dict) else ()
    for step, inner in enumerate(value) if isinstance(value, list) else items:
        yield from _places(inner, (*place, step))


def _value(chance: random.Random) -> Any:
    kind = chance.randrange(12)
    if kind < 4:
        return chance.choice(NUMBERS)
    if kind < 8:
        return chance.choice(TEXTS)
    if kind == 8:
        return chance.choice((None, True, False))
    if kind == 9:
        return [chance.choice(NUMBERS + TEXTS) for _ in range(chance.choice((0, 1, 2, 3, 70)))]
    if kind == 10:
        return {chance.choice(TEXTS): chance.choice(NUMBERS + TEXTS) for _ in range(3)}
    nested: Any = chance.choice(([], {}))
    for _ in range(chance.choice((2, 70, 900))):
        nested = [nested] if chance.random() < 0.5 else {"a": nested}
    return nested


def changed_bytes(data: bytes, chance: random.Random) -> bytes:
    """Return bytes with random changes: bits flipped, parts cut or moved, numbers replaced."""
    result = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4, 16))):
        reach = chance.choice((24, 64, len(result), len(result)))
        at = chance.randrange(min(len(result), reach) or 1)
        at = len(result) - 1 - at if chance.random() < 0.3 and result else at
        kind = chance.randrange(8)
        if kind < 2 and result:
            result[at] ^= 1 << chance.randrange(8)
        elif kind == 2:
            size = chance.choice((1, 2, 4, 8))
            word = chance.choice((*WORDS, len(result), len(result) + 1, chance.randrange(2**32)))
            result[at : at + size] = (word % 256**size).to_bytes(size, "little")
        elif kind == 3:
            del result[chance.randrange(len(result) + 1) :]
        elif kind == 4:
            result[at:at] = chance.randbytes(chance.randrange(1, 9))
        elif kind == 5:
            del result[at : at + chance.randrange(1, 9)]
        elif kind == 6:
            start = chance.randrange(len(result) + 1)
            result[at:at] = result[start : start + chance.choice((4, 16, 200))]
        else:
            result[at:at] = chance.choice(TEXTS).encode("utf-8", "replace")
    return bytes(result)
