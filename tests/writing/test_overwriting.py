"""What each mode keeps, replaces and rejects."""

import os

import numpy as np
import pytest
import xarray as xr

import xr_nczarr
from tests.reading import read
from tests.stores import read_objects
from tests.writes import assert_rejected, example, series
from xr_nczarr import ConflictError, ExistsError, NotFoundError, RefusedError, to_nczarr


# Regression D61
def test_mode_a_removes_nothing_from_existing_store(path):
    to_nczarr(series(0, 2), path)
    before = read_objects(path)
    url = f"file://{path}#mode=nczarr,file"
    to_nczarr(xr.Dataset({"b": ("y", [1, 2])}), url, mode="a")
    after = read_objects(path)
    changed = {".zattrs", ".zmetadata"}
    assert all(after[key] == data for key, data in before.items() if key not in changed)
    assert read(path).title == "series"
    assert read(url).b.values.tolist() == [1, 2]


def test_overwriting_coordinate_ignores_encoding_of_new_values(path):
    stored = xr.Dataset({"a": ("x", [1.0, 2.0])}, {"c": ("x", [1.5, 2.5])})
    to_nczarr(stored, path)
    changed = stored.rename(a="b").assign_coords(c=("x", [np.nan, 2.5]))
    changed.c.encoding = {"dtype": "i2"}
    to_nczarr(changed, path, mode="a")
    xr.testing.assert_identical(read(path), changed.assign(a=stored.a.variable))


@pytest.mark.parametrize("mode", ["a", "a-", "w", "w-", "r+"])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_replacing_variable_with_group_or_vice_versa_is_rejected(path, zarr_format, mode):
    tree = {"/": series(0, 2), "/g": xr.Dataset({"v": ("y", [1, 2])})}
    to_nczarr(xr.DataTree.from_dict(tree), path, zarr_format=zarr_format)
    before = read_objects(path)
    new = xr.Dataset({"g": ("y", [3, 4])})
    for group in ("a", "g/v", "g/v/deeper"):
        with pytest.raises(ConflictError, match=r"/(a|g/v) is a variable"):
            to_nczarr(new, path, mode=mode, group=group)
    below = xr.DataTree.from_dict({"/": xr.Dataset(), "/v": new})
    with pytest.raises(ConflictError, match="/g/v is a variable"):
        to_nczarr(below, path, mode="a", group="g")
    if mode.startswith("a"):
        with pytest.raises(ConflictError, match="/g is a group"):
            to_nczarr(new, path, mode=mode)
    assert read_objects(path) == before


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_consolidated_metadata_of_replaced_group_is_removed(path, zarr_format):
    variable = xr.Dataset({"v": ("y", [1, 2])})
    group = xr.DataTree.from_dict({"/": xr.Dataset(), "/v": variable})
    to_nczarr(series(0, 2), path, zarr_format=zarr_format, consolidated=True)
    for new, place in ((variable, "g"), (group, "g/v"), (variable, "g")):
        to_nczarr(new, path, mode="w", group="g")
        xr.testing.assert_identical(read(path, group=place, consolidated="check"), variable)


@pytest.mark.parametrize(("zarr_format", "document"), [(2, ".zgroup"), (3, "zarr.json")])
def test_mode_a_does_not_overwrite_group_with_unreadable_metadata(path, zarr_format, document):
    tree = {"/": series(0, 2), "/g": xr.Dataset({"v": ("y", [1, 2])}, attrs={"title": "g"})}
    tree = xr.DataTree.from_dict(tree)
    to_nczarr(tree, path, zarr_format=zarr_format, consolidated=False)
    with open(f"{path}/g/{document}", "w") as file:
        file.write('{"zarr_format": ')
    before = read_objects(f"{path}/g")
    new = xr.Dataset({"b": ("y", [3, 4])})
    to_nczarr(new, path, mode="a")
    to_nczarr(new, path, mode="a", group="h")
    assert read_objects(f"{path}/g") == before
    assert read(path).b.values.tolist() == read(path, group="h").b.values.tolist() == [3, 4]
    for group in ("g", "g/inner"):
        with pytest.raises(xr_nczarr.MetadataError, match=f"g/{document}"):
            to_nczarr(new, path, mode="a", group=group)
    assert read_objects(f"{path}/g") == before
    to_nczarr(new, path, mode="w", group="g")
    xr.testing.assert_identical(read(path, group="g"), new)


# Regression D69
def test_overwriting_store_removes_all_old_objects(path):
    to_nczarr(series(0, 9), path, encoding={"a": {"chunks": (1, 1)}, "n": {"chunks": (2,)}})
    to_nczarr(series(0, 2)[["n"]], path, mode="w")
    other = path + "-fresh"
    to_nczarr(series(0, 2)[["n"]], other)
    assert read_objects(path) == read_objects(other)


# Regression D69
def test_overwriting_mapping_removes_all_old_objects():
    store, fresh = {}, {}
    to_nczarr(series(0, 9), store, encoding={"a": {"chunks": (1, 1)}})
    to_nczarr(series(0, 2), store, mode="w")
    to_nczarr(series(0, 2), fresh)
    assert store == fresh


@pytest.mark.parametrize("dialect", ["nczarr", "zarr"])
def test_group_does_not_inherit_root_dimension_that_its_parent_redefines(path, dialect):
    for group, size in (("/", 2), ("a", 3), ("a/b", 2)):
        to_nczarr(xr.Dataset({"v": ("x", [0] * size)}), path, group=group, dialect=dialect)
    opened = xr.open_groups(path, engine="nczarr")
    assert opened["/a/b"].sizes == read(path, group="a/b").sizes == {"x": 2}


# Empty folders of removed chunks once remained, so chunks of the same names were not writable.
def test_array_can_be_replaced_even_if_empty_chunk_folders_remain():
    for dims in (("x", "y", "z"), ("x",), (), ("x", "y")):
        dataset = xr.Dataset({"v": (dims, np.ones((2,) * len(dims)))})
        to_nczarr(dataset, "memory://empty-folders", mode="w", zarr_format=3)
        assert read("memory://empty-folders").identical(dataset)


# The group was once not found, so a new group with its name replaced it.
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_group_below_missing_group_can_be_read_but_not_replaced(tmp_path, zarr_format):
    dataset = xr.Dataset({"v": ("x", [1.5, 2.5])})
    options = {"zarr_format": zarr_format, "consolidated": False}
    dataset.to_zarr(tmp_path, group="a/b", **options)
    (tmp_path / ("a/.zgroup" if zarr_format == 2 else "a/zarr.json")).unlink()
    (tmp_path / "a/.zattrs").unlink(missing_ok=True)
    for mode in ("w-", "w", "a"):
        with pytest.raises(ExistsError, match="one of its ancestors has no metadata"):
            to_nczarr(dataset + 1, tmp_path, group="a/b", mode=mode)
    with pytest.raises(ExistsError, match="the group '/a/b' exists"):
        to_nczarr(dataset, tmp_path, group="a/b/c", mode="a")
    for store in (str(tmp_path), f"file://{tmp_path}"):
        opened = xr.open_dataset(store, group="a/b", engine="nczarr")
        xr.testing.assert_identical(opened.load(), dataset)


# Modes --------------------------------------------------------------------------------------


def test_mode_w_does_not_replace_directory_that_is_not_a_store(path):
    os.makedirs(path)
    with open(f"{path}/precious", "w") as file:
        file.write("text")
    with pytest.raises(RefusedError, match="would remove"):
        to_nczarr(example(), path, mode="w")
    with pytest.raises(ExistsError):
        to_nczarr(example(), path)
    assert os.listdir(path) == ["precious"]


def test_mode_w_replaces_damaged_store(path):
    to_nczarr(example(), path)
    with open(f"{path}/.zmetadata", "w") as file:
        file.write("{")
    to_nczarr(example(0, 2), path, mode="w")
    xr.testing.assert_identical(read(path), example(0, 2))


def test_mode_w_on_group_keeps_other_groups(path):
    root = xr.Dataset({"k": 1})
    tree = xr.DataTree.from_dict({"/": root, "/a1/b": example(), "/a1/c": example(0, 2)})
    to_nczarr(tree, path)
    with pytest.raises(ExistsError):
        to_nczarr(example(0, 3), path, group="a1/b")
    to_nczarr(example(0, 3), path, group="a1/b", mode="w")
    xr.testing.assert_identical(read(path, group="a1/b", consolidated="check"), example(0, 3))
    xr.testing.assert_identical(read(path, group="a1/c"), example(0, 2))
    xr.testing.assert_identical(read(path), root)


def test_mode_r_plus_changes_values_but_not_metadata(path):
    with pytest.raises(NotFoundError):
        to_nczarr(example(), path, mode="r+")
    to_nczarr(example(), path)
    before = {name: os.stat(f"{path}/{name}").st_mtime_ns for name in (".zattrs", ".zmetadata")}
    to_nczarr(-example().assign_attrs(new=1).drop_vars("t"), path, mode="r+")
    assert before == {name: os.stat(f"{path}/{name}").st_mtime_ns for name in before}
    xr.testing.assert_identical(read(path).drop_vars("t"), -example().drop_vars("t"))


def test_mode_a_minus_leaves_variables_without_append_dimension_unchanged(path):
    to_nczarr(example().assign(k=1), path)
    to_nczarr(example(8, 9).assign(k=2), path, append_dim="t", mode="a-")
    xr.testing.assert_identical(read(path), example(0, 9).assign(k=1))


@pytest.mark.parametrize("options", [{"append_dim": "t"}, {"region": "auto"}])
def test_mode_w_with_append_dim_or_region_is_rejected(path, options):
    with pytest.raises(ValueError, match="cannot set"):
        to_nczarr(example(), path, mode="w", **options)


def test_appended_dataset_must_contain_append_dimension(path):
    to_nczarr(example(), path)
    problem = "no variable in the dataset has the dimension 't'"
    assert_rejected(path, problem, xr.Dataset({"k": 1}), append_dim="t")


def test_empty_selection_can_be_written_with_auto_region(path):
    to_nczarr(example(), path)
    to_nczarr(example().isel(t=[]), path, region="auto")
    xr.testing.assert_identical(read(path), example())


def _days(start, stop, value):
    """Return a tree whose groups inherit the coordinate `time` from the root."""
    values = np.full(stop - start, value)
    return xr.DataTree.from_dict(
        {
            "/": xr.Dataset(coords={"time": np.arange(start, stop) * 10}),
            "/a": xr.Dataset({"t": ("time", values)}),
            "/a/b": xr.Dataset({"q": ("time", values)}),
        }
    )


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("region", ["auto", {"time": "auto"}], ids=str)
def test_auto_region_uses_coordinates_inherited_in_tree(path, region, zarr_format):
    to_nczarr(_days(0, 6, 0.0), path, zarr_format=zarr_format)
    to_nczarr(_days(2, 4, 1.0), path, region=region)
    tree = xr.open_datatree(path, engine="nczarr")
    assert tree["/a/t"].values.tolist() == [0, 0, 1, 1, 0, 0]
    assert tree["/a/b/q"].values.tolist() == [0, 0, 1, 1, 0, 0]


@pytest.mark.parametrize("as_written", [lambda node: node, lambda node: node.to_dataset()])
def test_auto_region_in_group_uses_coordinates_stored_in_parent_group(path, as_written):
    to_nczarr(_days(0, 6, 0.0), path)
    to_nczarr(as_written(_days(3, 5, 1.0)["/a"]), path, group="/a", region="auto")
    stored = xr.open_datatree(path, engine="nczarr")["/a/t"]
    assert stored.values.tolist() == [0, 0, 0, 1, 1, 0]


def test_auto_region_is_rejected_for_part_of_dimension_without_coordinate(path):
    bare, dated = example().drop_vars("t"), example()
    to_nczarr(bare, path)
    assert_rejected(path, "because the store has no coordinate t", dated[{"t": [3]}], region="auto")
    to_nczarr(dated, path, mode="w")
    assert_rejected(path, "the dataset has no coordinate t", bare[{"t": [3]}], region="auto")
    to_nczarr(bare + 1, path, region={"t": "auto"})
    xr.testing.assert_identical(read(path), dated + 1)


def test_auto_region_ignores_coordinate_of_parent_dimension_with_same_name(path):
    to_nczarr(xr.Dataset(coords={"t": [3, 4]}), path)
    to_nczarr(example().drop_vars("t"), path, group="g", mode="a")
    part = example()[{"t": [3]}]
    assert_rejected(path, "the store has no coordinate t", part, group="g", region="auto")


def test_region_of_tree_can_contain_groups_without_variables(path):
    to_nczarr(_days(0, 6, 0.0), path)
    part = xr.DataTree.from_dict({"/a/b": xr.Dataset({"q": ("time", [1.0, 1.0])})})
    to_nczarr(part, path, region={"time": slice(1, 3)})
    tree = xr.open_datatree(path, engine="nczarr")
    assert tree["/a/b/q"].values.tolist() == [0, 1, 1, 0, 0, 0]
    assert not tree["/a/t"].values.any()
