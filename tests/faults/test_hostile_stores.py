"""Hostile stores, with any JSON values in place of members, and with names that point elsewhere.

Each store opens or raises an NczarrError. At least 99 of 100 errors name the store and the key.
"""

import json
import os
from contextlib import suppress

import pytest
import xarray as xr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.mutants import NUMBERS, TEXTS
from tests.fuzz.targets import LIMITS, Objects, corpus, read_ends
from xr_nczarr import NczarrError, RefusedError, info

EXAMPLES = int(os.environ.get("NCZARR_EXAMPLES", "60"))
BASES = [json.loads(text)["metadata"] for text in corpus("nczarr")]
BASES += [{"zarr.json": json.loads(text)} for text in corpus("zarr_json")]
BASES += [{".zarray": json.loads(text)} for text in corpus("zarray")]

LEAVES = st.one_of(st.sampled_from([*NUMBERS, *TEXTS, None, True]), st.text(max_size=9))
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)


def places(value, place=()):
    yield place
    steps = value.items() if isinstance(value, dict) else ()
    for step, inner in enumerate(value) if isinstance(value, list) else steps:
        yield from places(inner, (*place, step))


@st.composite
def hostile_stores(draw):
    """Draw the documents of a store of any version, with one to three values replaced."""
    documents = json.loads(json.dumps(draw(st.sampled_from(BASES))))
    for _ in range(draw(st.integers(1, 3))):
        chosen = draw(st.sampled_from([place for place in places(documents) if place]))
        holder = documents
        for step in chosen[:-1]:
            holder = holder[step]
        if len(chosen) == 1 and draw(st.booleans()):
            # Store the document under the key of another one.
            holder[draw(st.sampled_from(TEXTS)) + "/.zarray"] = holder.pop(chosen[-1])
        else:
            holder[chosen[-1]] = draw(VALUES)
    return {
        key: json.dumps(value).encode("utf-8", "surrogatepass") for key, value in documents.items()
    }


def test_opening_hostile_store_succeeds_or_raises_error_with_location():
    errors = []

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(hostile_stores())
    def attempt(documents):
        for read in (read_ends, lambda store: info(store, limits=LIMITS, count_chunks=False)):
            try:
                repr(read(Objects(documents)))
            except NczarrError as error:
                errors.append(error)

    attempt()
    assert len(errors) > EXAMPLES / 4
    # If no document is recognized, the message says so. Then there is no key that it could include.
    unnamed = [
        str(error)
        for error in errors
        if error.store is None
        or not (
            error.key or error.variable or error.place or "no Zarr metadata found" in str(error)
        )
    ]
    assert len(unnamed) <= len(errors) / 100, unnamed[:5]


def store_listing(member, name):
    """Return a store whose root group lists an array or a group that has no document."""
    group = {"dimensions": {}, "arrays": [], "groups": []} | {member: [name]}
    documents = {".zgroup": {"zarr_format": 2}, ".zattrs": {"_nczarr_group": group}}
    return {key: json.dumps(value).encode() for key, value in documents.items()}


@pytest.mark.parametrize("name", ["..", ".", "a/b", "/etc", "a\x00", ""])
@pytest.mark.parametrize("member", ["arrays", "groups"])
def test_names_pointing_outside_group_are_not_listed_as_members(name, member):
    store = store_listing(member, name)
    with suppress(NczarrError), xr.open_dataset(store, engine="nczarr") as dataset:
        assert list(dataset.variables) == []


def test_array_with_backslash_in_name_is_listed_but_never_read():
    """netCDF-C writes such names on Unix. On Windows, they would point to another folder."""

    class Recorded(dict):
        def __getitem__(self, key):
            requested.append(key)
            return super().__getitem__(key)

    requested = []
    with xr.open_dataset(Recorded(store_listing("arrays", "..\\a")), engine="nczarr") as dataset:
        assert list(dataset.variables) == ["..\\a"]
        with pytest.raises(RefusedError, match="contains a backslash"):
            dataset["..\\a"].load()
    assert requested
    assert not [key for key in requested if "\\" in key]
