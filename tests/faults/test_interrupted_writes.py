"""Writes that are interrupted after any change of a store: what readers find, and retries."""

import contextlib
import json

import dask.array
import numpy as np
import pytest
import xarray as xr

import xr_nczarr
from tests.interruptions import InterruptedMapping
from tests.writes import RemoteMemoryStore
from xr_nczarr import ConflictError, MetadataError, NotFoundError, RefusedError, to_nczarr
from xr_nczarr.hierarchy import JOURNAL


def values(start, stop, sign=1, coordinate=True):
    n = np.arange(start, stop)
    dataset = xr.Dataset(
        {"a": (("t", "x"), sign * (n[:, None] * 10.0 + np.arange(1, 5))), "n": ("t", n)}
    )
    return dataset.assign_coords(t=n * 1.0) if coordinate else dataset


def read(objects, **options):
    with xr.open_dataset(RemoteMemoryStore(objects), engine="nczarr", **options) as dataset:
        return dataset.load()


def states(write, before):
    """Yield the objects after each change that `write` makes. The last change completes it."""
    for changes in range(1000):
        objects = dict(before)
        try:
            write(RemoteMemoryStore(InterruptedMapping(objects, changes)))
        except InterruptedError:
            yield objects
        else:
            yield objects
            return


ENCODING = {"a": {"chunks": (4, 2)}, "n": {"chunks": (4,)}}
LAYOUTS = [
    {"zarr_format": version, "dialect": dialect, "consolidated": consolidated}
    for version in (2, 3)
    for dialect in ("nczarr", "zarr")
    for consolidated in (True, False)
]


def create(target, layout, unlimited=None, **options):
    to_nczarr(
        values(0, 6, **options), target, encoding=ENCODING, unlimited_dims=unlimited, **layout
    )


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_interrupted_creation_leaves_no_readable_store_and_can_be_retried(layout):
    *cut, whole = states(lambda target: create(target, layout), {})
    assert len(cut) > 10
    for objects in cut:
        try:
            opened = read(objects)
        except NotFoundError:
            create(RemoteMemoryStore(objects), layout)
            assert objects == whole
        else:
            xr.testing.assert_identical(opened, values(0, 6))


@pytest.mark.parametrize("old", [2, 3])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_interrupted_replacement_leaves_old_or_new_dataset_or_no_store(layout, old):
    before, new = {}, values(0, 9, -1)
    create(RemoteMemoryStore(before), {"zarr_format": old})

    def write(target):
        to_nczarr(new, target, mode="w", encoding=ENCODING, **layout)

    *cut, whole = states(write, before)
    for objects in cut:
        try:
            opened = read(objects)
        except NotFoundError:
            pass
        else:
            assert opened.identical(values(0, 6)) or opened.identical(new)
        write(RemoteMemoryStore(objects))
        assert objects == whole


@pytest.mark.parametrize("changes", [1, 2, 5])
def test_error_for_interrupted_replacement_warns_of_data_loss(changes):
    before = {}
    create(RemoteMemoryStore(before), LAYOUTS[0])
    with pytest.raises(InterruptedError, match="no further change") as caught:
        to_nczarr(values(0, 9), RemoteMemoryStore(InterruptedMapping(before, changes)), mode="w")
    assert "no dataset" in caught.value.__notes__[0]


# Regression D62
@pytest.mark.parametrize(("unlimited", "coordinate"), [(None, True), ("t", False)])
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_interrupted_append_can_be_retried_or_abandoned(layout, unlimited, coordinate):
    before = {}
    create(RemoteMemoryStore(before), layout, unlimited, coordinate=coordinate)

    def append(target, start=6):
        more = values(start, start + 3, coordinate=coordinate)
        to_nczarr(more, target, append_dim="t")

    *cut, whole = states(append, before)
    old, new = (values(0, stop, coordinate=coordinate) for stop in (6, 9))
    assert any(JOURNAL in objects for objects in cut)
    for objects in cut:
        for options in ({}, {"consolidated": False}):
            opened = read(objects, **options)
            assert opened.identical(old) or opened.identical(new)
        again, other = dict(objects), dict(objects)
        append(RemoteMemoryStore(again))
        assert again == whole
        # Another append follows a complete one, or replaces an incomplete one.
        append(RemoteMemoryStore(other), 9)
        complete = all(objects.get(key) == data for key, data in whole.items())
        kept = 9 if complete else 6
        assert read(other, consolidated=False).n.values.tolist() == [*range(kept), 9, 10, 11]
        assert JOURNAL not in other


def test_interrupted_append_with_large_journal_can_be_retried():
    """The journal contains all changed documents, so it can be larger than each of them."""
    before, new = {}, values(0, 9)
    for name in ("a", "n"):  # two thirds of the limit each
        new[name].attrs["many"] = np.zeros(170_000, "i4")
    target = RemoteMemoryStore(before)
    old, more = new.isel(t=slice(6)), new.isel(t=slice(6, None))
    to_nczarr(old, target, zarr_format=3)

    def append(target):
        to_nczarr(more, target, append_dim="t")

    *cut, whole = states(append, before)
    *_, objects = (objects for objects in cut if JOURNAL in objects)
    assert objects["a/zarr.json"] != before["a/zarr.json"]
    opened = read(objects)
    assert opened.sizes["t"] in (6, 9)
    append(RemoteMemoryStore(objects))
    assert objects == whole


def named(*names):
    """Return a dataset with the strings `names`, and a number for each string."""
    n = np.arange(float(len(names)))
    return xr.Dataset({"name": ("t", np.array(names, object)), "n": ("t", n)})


@pytest.mark.parametrize("consolidated", [True, False])
@pytest.mark.parametrize("chunk", [2, 4])
@pytest.mark.parametrize("codec", [{}, {"zlib": True}], ids=str)
@pytest.mark.parametrize("layout", [{}, {"dialect": "universal"}, {"zarr_format": 3}], ids=str)
def test_interrupted_append_of_longer_strings_is_atomic(layout, codec, chunk, consolidated):
    before, old = {}, named("Oslo", "Rom", "")
    encoding = {"name": {**codec, "chunks": chunk, "_nczarr_maxstrlen": 4}}
    to_nczarr(
        old, RemoteMemoryStore(before), encoding=encoding, consolidated=consolidated, **layout
    )
    longer = named("Bergen", "é" * 9)

    def append(target):
        to_nczarr(longer, target, append_dim="t")

    *cut, whole = states(append, before)
    new = xr.concat([old, longer], "t")
    wider = [objects for objects in cut if JOURNAL in objects and "a" not in objects]
    assert len(wider) > 5
    for objects in cut:
        for options in ({}, {"consolidated": False}):
            opened = read(objects, **options)
            assert opened.identical(old) or opened.identical(new)
            (element,) = read(objects, **options).isel(t=[1]).name.values
            assert element == "Rom"
        again, other = dict(objects), dict(objects)
        append(RemoteMemoryStore(again))
        assert again == whole
        to_nczarr(xr.Dataset(attrs={"k": "v"}), RemoteMemoryStore(other), mode="a")
        assert JOURNAL not in other
        assert read(other, consolidated=False).drop_attrs().identical(opened.drop_attrs())


def test_region_writes_are_rejected_until_interrupted_append_is_resolved():
    before = {}
    to_nczarr(named("Oslo", "Rom"), RemoteMemoryStore(before))
    cut = states(lambda target: to_nczarr(named("Bergen"), target, append_dim="t"), before)
    interrupted = [objects for objects in cut if b'"chunks": true' in objects.get(JOURNAL, b"")]
    assert len(interrupted) > 2
    refusals = 0
    for objects in interrupted:
        try:
            to_nczarr(named("Ulm", "Rom"), RemoteMemoryStore(objects), region={"t": slice(0, 2)})
        except ConflictError as error:
            assert "was interrupted while replacing chunks" in str(error)  # noqa: PT017
            refusals += 1
            to_nczarr(xr.Dataset(attrs={"k": "v"}), RemoteMemoryStore(objects), mode="a")
            to_nczarr(named("Ulm", "Rom"), RemoteMemoryStore(objects), region={"t": slice(0, 2)})
        assert read(objects).name.values.tolist() == ["Ulm", "Rom"]
    assert refusals


def test_appending_longer_strings_makes_opened_variable_unreadable(tmp_path):
    for target in ({}, tmp_path / "a"):
        to_nczarr(named("Oslo", "Rom"), target)
        earlier = xr.open_dataset(target, engine="nczarr")
        to_nczarr(named("Bergen"), target, append_dim="t")
        for chosen in (earlier.name, earlier.name[1], earlier.name[1:]):
            with pytest.raises(xr_nczarr.ChunkError, match="expected 8"):
                chosen.values  # noqa: B018
        assert earlier.n.values.tolist() == [0, 1]


def test_append_is_rejected_if_journal_would_become_too_large(tmp_path):
    many = named(*[","] * 250_000)  # each comma counts as a value in a metadata document
    for target in (RemoteMemoryStore({}), tmp_path / "a"):
        to_nczarr(many, target)
        whole = dict(target.mapping) if isinstance(target, RemoteMemoryStore) else None
        if whole is None:
            to_nczarr(named("longer than that"), target, append_dim="t")
            assert xr.open_dataset(target, engine="nczarr").name[-1].item() == "longer than that"
            continue
        with pytest.raises(ConflictError, match="_nczarr_maxstrlen"):
            to_nczarr(named("longer than that"), target, append_dim="t")
        assert target.mapping == whole


def test_interrupted_overwrite_leaves_each_chunk_either_old_or_new():
    before = {}
    create(RemoteMemoryStore(before), {})
    new = values(0, 6, -1).drop_vars("t")
    *cut, _ = states(lambda target: to_nczarr(new, target, mode="r+"), before)
    for objects in cut:
        signs = np.sign(read(objects).a.values)
        for rows in (slice(0, 4), slice(4, 6)):
            for columns in (slice(0, 2), slice(2, 4)):
                assert len(set(signs[rows, columns].ravel())) == 1
        to_nczarr(new, RemoteMemoryStore(objects), mode="r+")
        np.testing.assert_array_equal(read(objects).a, new.a)


def test_recovery_from_interrupted_append_keeps_changes_by_other_programs():
    before = {}
    create(RemoteMemoryStore(before), {"consolidated": False})
    cut = states(lambda target: to_nczarr(values(6, 9), target, append_dim="t"), before)
    for objects in (objects for objects in cut if JOURNAL in objects):
        document = json.loads(objects["a/.zattrs"]) | {"other": "program"}
        objects[".zgroup"] = objects[".zgroup"] + b" "
        objects["a/.zattrs"] = json.dumps(document).encode()
        objects["n/.zarray"] = objects["n/.zarray"] + b" "
        kept = dict(objects)
        to_nczarr(xr.Dataset(attrs={"k": "v"}), RemoteMemoryStore(objects), mode="a")
        assert kept.pop(JOURNAL)
        assert objects.keys() == kept.keys()
        assert [key for key in kept if objects[key] != kept[key]] == [".zattrs"]


@pytest.mark.parametrize("journal", [b"[]", b"{", b'{"documents": [1], "appended": {}}'])
def test_writing_to_store_with_damaged_journal_raises_metadata_error(journal):
    store = {}
    create(store, {})
    store[JOURNAL] = journal
    with pytest.raises(MetadataError, match="nczarr_journal"):
        to_nczarr(values(6, 9), store, append_dim="t")
    assert read(store).identical(values(0, 6))


def test_target_that_is_not_a_store_is_replaced_only_if_overwrite_is_true():
    objects = {"precious": b"1"}
    for mode, error in (("w", RefusedError), ("w-", FileExistsError)):
        with pytest.raises(error, match=r"not (a|belong to a) Zarr store"):
            to_nczarr(values(0, 6), RemoteMemoryStore(objects), mode=mode)
        assert objects == {"precious": b"1"}
    to_nczarr(values(0, 6), RemoteMemoryStore(objects), mode="w", overwrite=True)
    assert "precious" not in objects
    xr.testing.assert_identical(read(objects), values(0, 6))


# Regression D59
@pytest.mark.parametrize("scheme", ["s3", "memory"])
@pytest.mark.parametrize("mode", ["w-", "w", "a"])
def test_second_concurrent_writer_to_object_store_is_rejected(s3_server, scheme, mode, tmp_path):
    target, options = f"memory:/{tmp_path}", {}
    if scheme == "s3":
        target = f"s3://{s3_server.bucket}/appended"
        options = {"storage_options": s3_server.storage_options}
    how = {"append_dim": "t"} if mode == "a" else {"mode": mode}
    first, whole = (values(6, 9), values(0, 9)) if mode == "a" else (values(3, 6), values(3, 6))
    if mode != "w-":
        to_nczarr(values(0, 6), target, encoding=ENCODING, **options)
    refused = []

    def write_concurrently(block):
        for other in ({"append_dim": "t"}, {}) if mode == "a" else ({},):
            with pytest.raises(ConflictError, match="another write") as info:
                to_nczarr(values(20, 22), target, **other, **options)
            refused.append(info.value)
        return block

    field = dask.array.from_array(first.a.values, chunks=-1)
    field = field.map_blocks(write_concurrently, meta=field)
    to_nczarr(first.assign(a=(("t", "x"), field)), target, **how, **options)
    assert refused
    with xr.open_dataset(target, engine="nczarr", **options) as opened:
        xr.testing.assert_identical(opened.load(), whole)
    to_nczarr(values(9, 12), target, append_dim="t", **options)


def test_killed_append_to_object_store_can_be_resumed(s3_server):
    target = f"s3://{s3_server.bucket}/killed"
    options = {"storage_options": s3_server.storage_options}
    to_nczarr(values(0, 6), target, encoding=ENCODING, **options)
    s3_server.fail = lambda request: 403 if request.method in ("DELETE", "POST") else None
    try:
        with pytest.raises(PermissionError):
            to_nczarr(values(6, 9), target, append_dim="t", **options)
    finally:
        s3_server.fail = None
    with pytest.raises(ConflictError, match="overwrite=True"):
        to_nczarr(values(9, 12), target, append_dim="t", **options)
    to_nczarr(values(6, 9), target, append_dim="t", **options)
    to_nczarr(values(9, 12), target, append_dim="t", **options)
    with xr.open_dataset(target, engine="nczarr", **options) as opened:
        xr.testing.assert_identical(opened.load(), values(0, 12))


@pytest.mark.parametrize(
    "layout", [*LAYOUTS, {"zarr_format": "3-draft", "dialect": "zarr"}], ids=str
)
def test_interrupted_group_replacement_leaves_old_or_new_group_or_nothing(layout):
    before, new = {}, values(0, 9, -1)
    create(RemoteMemoryStore(before), layout)
    to_nczarr(values(0, 6), RemoteMemoryStore(before), group="g", encoding=ENCODING)

    def write(target):
        to_nczarr(new, target, mode="w", group="g", encoding=ENCODING)

    *cut, whole = states(write, before)
    for objects in cut:
        assert read(objects).identical(values(0, 6))
        with contextlib.suppress(NotFoundError):
            opened = read(objects, group="g")
            assert opened.identical(values(0, 6)) or opened.identical(new)
        write(RemoteMemoryStore(objects))
        assert read(objects, group="g").identical(new)
    assert read(whole, group="g").identical(new)


def test_append_after_interrupted_creation_updates_consolidated_metadata():
    store = {}
    first, second = (xr.Dataset({"t": ("x", [float(n)])}) for n in (1, 2))
    xr_nczarr.to_nczarr(first, store)
    del store[".zmetadata"]  # killed before the last document
    store[".nczarr_unfinished"] = b"{}"
    xr_nczarr.to_nczarr(second, store, append_dim="x")
    opened = xr.open_dataset(store, engine="nczarr", consolidated=True)
    assert opened.t.values.tolist() == [1, 2]


def test_interrupted_addition_to_v3_draft_store_adds_no_visible_groups():
    # In the draft, a group exists if there is any metadata below its path.
    store = {}
    to_nczarr(values(0, 6), store, zarr_format="3-draft", dialect="zarr")
    added = xr.DataTree.from_dict({"/": xr.Dataset({"b": 1, "c": 2}), "/new/inner": values(0, 3)})

    def groups(objects):
        return {
            path: sorted(group.variables)
            for path, group in xr.open_groups(RemoteMemoryStore(objects), engine="nczarr").items()
        }

    def add(target):
        to_nczarr(added, target, mode="a")

    old = groups(store)
    *cut, whole = states(add, store)
    seen = []
    for objects in cut:
        seen.append(groups(objects))
        assert seen[-1] in (old, groups(whole))
        add(RemoteMemoryStore(objects))
        assert objects == whole
    assert seen[0] == old
    assert [*groups(whole)] == ["/", "/new", "/new/inner"]


def interrupted(write, before, changes):
    """Return the objects of a store after `write` has made only `changes` changes."""
    objects = dict(before)
    with contextlib.suppress(InterruptedError):
        write(InterruptedMapping(objects, changes))
    return objects


def test_interrupted_delayed_append_leaves_store_in_old_or_new_state():
    before = {}
    to_nczarr(values(0, 3), before, unlimited_dims=["t"])

    def append(store):
        to_nczarr(values(3, 5), store, append_dim="t", compute=False)

    complete = InterruptedMapping(dict(before))
    append(complete)
    for changes in range(len(complete.changes)):
        result = read(interrupted(append, before, changes))
        assert result.identical(read(before)) or result.identical(read(complete.objects))


def test_retried_append_with_additional_variable_is_rejected():
    before = {}
    to_nczarr(values(0, 3), before, unlimited_dims=["t"])

    def append(store):
        to_nczarr(values(3, 5), store, append_dim="t")

    complete = InterruptedMapping(dict(before))
    append(complete)
    objects = interrupted(append, before, len(complete.changes) - 1)
    assert JOURNAL in objects
    with pytest.raises(ConflictError, match="has already stored the new values"):
        to_nczarr(values(3, 5).assign(w=("y", [1.0])), objects, append_dim="t")
    append(objects)
    assert read(objects).identical(read(complete.objects))


def test_error_for_interrupted_group_replacement_warns_of_data_loss():
    objects = {}
    to_nczarr(values(0, 3), objects, group="g")
    with pytest.raises(InterruptedError) as caught:
        to_nczarr(values(0, 2), InterruptedMapping(objects, 6), group="g", mode="w")
    assert "old dataset, no dataset, or part of the new one" in "".join(caught.value.__notes__)
