"""Arguments with the same meaning as in `to_zarr`, and invalid arguments."""

import json
from enum import Enum

import netCDF4
import numpy as np
import pytest
import xarray as xr
import zarr
from zarr.core.chunk_key_encodings import DefaultChunkKeyEncoding, V2ChunkKeyEncoding

from tests.reading import read
from xr_nczarr import ConflictError, ExistsError, NotFoundError, copy, info, to_nczarr


@pytest.mark.parametrize("mode", ["a", "w", "r+"])
@pytest.mark.parametrize("group", ["g//h", "/g/h/", "//g///h"])
def test_extra_slashes_in_group_paths_are_ignored(group, mode):
    old = xr.Dataset({"v": ("x", np.arange(8))})
    store = {}
    to_nczarr(old, store, group="g/h", encoding={"v": {"chunks": 8}})
    with pytest.raises(ExistsError):
        to_nczarr(old, store, group=group)
    to_nczarr(old.chunk(x=2) + 100, store, group=group, mode=mode)
    for spelled in ("g/h", group):
        assert read(store, group=spelled).identical(old + 100)


@pytest.mark.parametrize("damaged", [False, True], ids=["readable", "damaged"])
@pytest.mark.parametrize("group", ["g/v", "g/v/below"])
@pytest.mark.parametrize("mode", ["w", "w-", "a", "r+"])
def test_group_at_or_under_variable_path_is_rejected(mode, group, damaged):
    store = {}
    to_nczarr(xr.Dataset({"v": ("x", [1.0])}), store, group="g", consolidated=False)
    if damaged:
        store["g/v/.zarray"] = b"{}"
    before = dict(store)
    with pytest.raises(ConflictError, match="/g/v is a variable, not a group"):
        to_nczarr(xr.Dataset({"w": 1}), store, group=group, mode=mode)
    assert store == before


@pytest.mark.parametrize(
    ("options", "error"),
    [({"mode": "r+"}, NotFoundError), ({"append_dim": "x"}, ConflictError)],
    ids=["mode r+", "append"],
)
def test_updating_or_appending_to_missing_group_is_rejected(options, error):
    store = {}
    dataset = xr.Dataset({"v": ("x", [1.0])})
    to_nczarr(dataset, store, group="g")
    with pytest.raises(error, match=r"unknown group '/h'.*mode='a'"):
        to_nczarr(dataset, store, group="h", **options)


def test_non_string_group_argument_is_rejected():
    with pytest.raises(ValueError, match="group must be a string or None, not 3"):
        to_nczarr(xr.Dataset(), {}, group=3)


@pytest.mark.parametrize("layout", [{}, {"zarr_format": 3}, {"dialect": "zarr"}])
@pytest.mark.parametrize("encoding", [{"_FillValue": -9999}, {"missing_value": 0, "dtype": "bool"}])
def test_numeric_fill_values_of_variables_stored_as_bool_are_rejected(encoding, layout):
    dataset = xr.Dataset({"v": ("x", [True, False])})
    with pytest.raises(ConflictError, match=r"dtype bool cannot represent.*variable v"):
        to_nczarr(dataset, {}, encoding={"v": encoding}, **layout)
    store = {}
    to_nczarr(dataset, store, encoding={"v": {"_FillValue": -1, "dtype": "i1"}}, **layout)
    assert read(store).v.values.tolist() == [1, 0]
    to_nczarr(dataset, store, encoding={"v": {"_FillValue": None}}, mode="w", **layout)
    assert read(store).identical(dataset)


def test_string_enum_members_in_attributes_are_stored_as_their_values():
    class Axis(str, Enum):  # noqa: UP042 (StrEnum has another str)
        LATITUDE = "Y"

    store = {}
    to_nczarr(xr.Dataset(attrs={"one": Axis.LATITUDE, "two": ["X", Axis.LATITUDE]}), store)
    assert read(store).attrs == {"one": "Y", "two": ["X", "Y"]}


def test_default_mode_depends_on_append_dim_and_region():
    dataset, store = xr.Dataset({"v": ("x", [1, 2])}), {}
    to_nczarr(dataset, store, mode=None)
    with pytest.raises(ExistsError):
        to_nczarr(dataset, store, mode=None)
    to_nczarr(dataset, store, mode=None, append_dim="x")
    to_nczarr(dataset * 10, store, mode=None, region={"x": slice(1, 3)})
    assert read(store).v.values.tolist() == [1, 10, 20, 2]
    for requested in ({"append_dim": "x"}, {"region": {"x": slice(0, 2)}}):
        for mode in ("w", "w-"):
            with pytest.raises(ValueError, match=r"cannot set .* unless mode='a'"):
                to_nczarr(dataset, store, mode=mode, **requested)
    assert read(store).v.values.tolist() == [1, 10, 20, 2]


@pytest.mark.parametrize("mode", ["w", "a", "r+"])
def test_encoding_for_variable_not_in_dataset_is_rejected(mode):
    dataset, store = xr.Dataset({"v": ("x", [1, 2])}), {}
    to_nczarr(dataset, store)
    before = dict(store)
    with pytest.raises(KeyError, match="encoding contains the variable 'V'"):
        to_nczarr(dataset, store, mode=mode, encoding={"V": {"dtype": "i2"}})
    assert store == before


def test_creating_store_with_unknown_append_dim_is_rejected():
    dataset, store = xr.Dataset({"v": ("x", [1, 2])}), {}
    with pytest.raises(ConflictError, match="append_dim='X' does not match any dimension"):
        to_nczarr(dataset, store, append_dim="X")
    assert not store
    to_nczarr(dataset, store, append_dim="x")
    assert read(store).identical(dataset)


@pytest.mark.parametrize(
    ("requested", "chunks"), [((-1, 2), (6, 2)), (-1, (6, 4)), ([2, -1], (2, 4))]
)
def test_chunk_size_of_minus_one_spans_dimension(requested, chunks):
    dataset, store = xr.Dataset({"v": (("y", "x"), np.ones((6, 4)))}), {}
    to_nczarr(dataset.chunk(y=4), store, encoding={"v": {"chunks": requested}})
    assert read(store).v.encoding["chunks"] == chunks
    assert read(store).identical(dataset)
    with pytest.raises(ConflictError, match="do not fit an array of shape"):
        to_nczarr(dataset, {}, encoding={"v": {"chunks": (-2, 2)}})


@pytest.mark.parametrize(
    ("dtype", "missing"),
    [
        (object, None),
        (np.dtypes.StringDType(na_object=None), None),
        (np.dtypes.StringDType(na_object=np.nan), np.nan),
    ],
)
@pytest.mark.parametrize("chunks", [None, 3])
@pytest.mark.parametrize("layout", [{}, {"zarr_format": 3}, {"dialect": "zarr"}])
@pytest.mark.filterwarnings("ignore:variable .* has data in the form of a dask array")
def test_missing_stringdtype_values_become_empty_strings(layout, chunks, dtype, missing):
    if dtype is not object and xr.__version__ < "2026.2":
        pytest.skip("this xarray finds no missing values in StringDType")
    text = np.array(["ä", missing, "nan"], dtype)
    dataset = xr.Dataset({"v": ("x", text), "same": ("y", text)})
    dataset = dataset.chunk(chunks) if chunks else dataset
    store = {}
    to_nczarr(dataset, store, **layout)
    assert read(store).v.values.tolist() == ["ä", "", "nan"]
    to_nczarr(dataset, store, append_dim="x")
    result = read(store)
    assert result.v.values.tolist() == 2 * ["ä", "", "nan"]
    assert result.same.values.tolist() == ["ä", "", "nan"]
    with pytest.raises(ConflictError, match="'same' does not have the append dimension"):
        to_nczarr(dataset.assign(same=dataset.same[::-1]), store, append_dim="x")


def test_error_for_unknown_encoding_key_suggests_similar_key():
    dataset = xr.Dataset({"v": ("x", [1.0])})
    with pytest.raises(ConflictError, match=r"\['zlb'\] \(variable v\)\. Did you mean zlib"):
        to_nczarr(dataset, {}, encoding={"v": {"zlb": True}})


# ---- Names and attributes


def documents(target):
    """Return the attributes of all nodes of a store as JSON text, by path."""
    group = zarr.open_group(target, mode="r", use_consolidated=False)
    nodes = {"/": group, **dict(group.members())}
    return {path: json.dumps(dict(node.attrs), sort_keys=True) for path, node in nodes.items()}


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("name", ["lat/lon", "", ".", "..", "a\\b", "/", ".zarray"])
def test_dimensions_with_arbitrary_names_can_be_written_to_plain_zarr(tmp_path, name, version):
    dataset = xr.Dataset({"v": (("x", name), [[1, 2]]), "w": (name, [1, 2])}, {"x": [0]})
    dataset.to_zarr(tmp_path / "a", zarr_format=version, consolidated=False)
    to_nczarr(dataset, tmp_path / "b", zarr_format=version, dialect="zarr")
    assert documents(tmp_path / "a") == documents(tmp_path / "b")
    assert read(tmp_path / "b").identical(dataset)
    more = dataset.drop_vars("w").assign_coords(x=[1])
    to_nczarr(more, tmp_path / "b", append_dim="x")
    assert read(tmp_path / "b").v.shape == (2, 2)


@pytest.mark.parametrize("name", ["lat/lon", "", ".", "..", "a\0b"])
def test_nczarr_rejects_dimension_names_that_cannot_be_used_in_paths(name):
    with pytest.raises(
        ConflictError, match=r"(does not support a dimension named|in NCZarr names).*dialect='zarr'"
    ):
        to_nczarr(xr.Dataset({"v": (name, [1, 2])}), store := {})
    assert not store


def test_names_with_backslash_are_rejected_before_writing(tmp_path):
    with pytest.raises(ConflictError, match="Backslashes are not allowed in names"):
        to_nczarr(xr.Dataset({"a\\b": ("x", [1])}), tmp_path / "a")
    assert not (tmp_path / "a").exists()


ATTRIBUTES = [
    np.eye(2),
    np.array([5]),
    np.array(["a"]),
    np.array(5),
    np.array([]),
    np.array([[True, False]]),
    np.array(["a", None], object),
    np.float32(0.1),
    np.float16(0.1),
    np.int8(5),
    np.bool_(True),
    (1, 2),
    [[1, 0], [0, 1]],
    {"a": [1, {"b": None}]},
    {1: 2},
    True,
    None,
    float("inf"),
    2**70,
]


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("value", ATTRIBUTES, ids=repr)
def test_plain_zarr_attributes_equal_attributes_written_by_xarray(tmp_path, value, version):
    dataset = xr.Dataset({"v": ("x", [1], {"a": value})}, attrs={"a": value})
    dataset.to_zarr(tmp_path / "a", zarr_format=version, consolidated=False)
    to_nczarr(dataset, tmp_path / "b", zarr_format=version, dialect="zarr")
    assert documents(tmp_path / "a") == documents(tmp_path / "b")


def test_numpy_numbers_in_nested_attributes_become_json_numbers():
    store = {}
    to_nczarr(
        xr.Dataset(attrs={"a": [np.float32(0.5)], "b": {"c": np.arange(2)}}), store, dialect="zarr"
    )
    assert read(store).attrs == {"a": [0.5], "b": {"c": [0, 1]}}


def test_attribute_can_be_replaced_by_equal_value_of_other_json_type():
    store = {}
    to_nczarr(xr.Dataset(attrs={"a": 1, "b": 2}), store, dialect="zarr")
    to_nczarr(xr.Dataset(attrs={"a": True, "b": 2.0}), store, mode="a")
    assert json.dumps(read(store).attrs) == '{"a": true, "b": 2.0}'


RESERVED = {
    "_nczarr_mine": 1,
    "_nczarr_array": "text",
    "_NCZARR_ATTR": {"types": {}},
    "_NCProperties": "version=2",
    "_ARRAY_DIMENSIONS": ["y"],
    "_Codecs": "[]",
}


@pytest.mark.parametrize("dialect", ["nczarr", "zarr"])
@pytest.mark.parametrize("name", RESERVED)
def test_error_for_reserved_attribute_includes_attribute_name(name, dialect):
    value, store = RESERVED[name], {}
    for dataset in (
        xr.Dataset({"v": ("x", [1], {name: value})}),
        xr.Dataset({"v": ("x", [1])}, attrs={name: value}),
    ):
        with pytest.raises(ConflictError, match=f"'{name}' is reserved"):
            to_nczarr(dataset, store, dialect=dialect)
    assert not store
    to_nczarr(xr.Dataset({"v": ("x", [1])}), store, dialect=dialect)
    with pytest.raises(ConflictError, match=f"'{name}' is reserved"):
        to_nczarr(xr.Dataset(attrs={name: value}), store, mode="a")


@pytest.mark.parametrize("dialect", ["nczarr", "zarr"])
@pytest.mark.parametrize("version", [2, 3])
def test_annotations_shown_by_zarr_engine_are_not_written(tmp_path, version, dialect):
    dataset = xr.Dataset({"v": (("y", "x"), [[1, 2]], {"units": "m"})}, attrs={"title": "t"})
    to_nczarr(dataset, tmp_path / "a", zarr_format=version)
    group = zarr.open_group(tmp_path / "a", mode="r+", use_consolidated=False)
    # netcdf-c also writes this attribute in version 3.
    group["v"].attrs["_ARRAY_DIMENSIONS"] = ["y", "x"]
    with xr.open_dataset(tmp_path / "a", engine="zarr", consolidated=False) as shown:
        assert ("_nczarr_array" in shown.v.attrs) == (version == 3)
        shown = shown.drop_encoding()
        for part in (shown, shown.isel(y=0), shown.transpose("x", "y")):
            to_nczarr(part, target := {}, dialect=dialect)
            assert read(target).v.attrs == {"units": "m"}
            assert read(target).v.dims == part.v.dims
    again = xr.open_dataset(tmp_path / "a", engine="nczarr", consolidated=False)
    to_nczarr(again, target := {}, dialect=dialect)
    copy(tmp_path / "a", copied := {}, dialect=dialect)
    assert read(target).identical(dataset)
    assert read(copied).identical(dataset)


def test_attributes_without_netcdf_type_are_logged_once(caplog):
    attributes = {"flag": True, "none": None, "deep": {"a": 1}, "empty": [], "n": 5, "text": "a"}
    dataset = xr.Dataset({"v": ("x", [1], {"flags": np.array([True])})}, attrs=attributes)
    to_nczarr(dataset, store := {})
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("xr_nczarr.writing.builder", "WARNING")
    assert record.getMessage().endswith(
        ": flag of / (bool as ubyte), none of / (NoneType as text), deep of / (dict as text),"
        " empty of / (list as double), flags of /v (ndarray as ubyte)"
    )
    result = read(store).attrs
    assert (result["flag"], result["none"], result["deep"]) == (1, "null", '{"a": 1}')
    assert (result["flag"].dtype, result["empty"].dtype) == ("uint8", "float64")
    caplog.clear()
    to_nczarr(xr.Dataset(attrs=attributes | {"new": {"b": 2}}), store, mode="a")
    (record,) = caplog.records
    assert record.getMessage().endswith(": new of / (dict as text)")
    caplog.clear()
    to_nczarr(dataset, {}, dialect="zarr")
    to_nczarr(dataset.drop_attrs(), {})
    assert not caplog.records


def test_netcdf_c_reads_added_dict_attribute_as_json(tmp_path):
    to_nczarr(xr.Dataset({"v": ("x", [1])}), tmp_path / "a")
    to_nczarr(xr.Dataset(attrs={"deep": {"a": 1}}), tmp_path / "a", mode="a")
    with netCDF4.Dataset(f"file://{tmp_path}/a#mode=nczarr,file") as dataset:
        assert json.loads(dataset.deep) == {"a": 1}


# ---- Names of chunks

CHUNK_KEYS = [
    (2, {"name": "v2", "separator": "/"}),
    (2, {"name": "v2", "separator": "."}),
    (2, V2ChunkKeyEncoding("/")),
    (3, {"name": "v2", "separator": "."}),
    (3, {"name": "v2", "configuration": {"separator": "/"}}),
    (3, {"name": "default"}),
    (3, {"name": "default", "separator": "."}),
    (3, DefaultChunkKeyEncoding(".")),
    (3, V2ChunkKeyEncoding(".")),
]


@pytest.mark.parametrize("dialect", ["zarr", "nczarr"])
@pytest.mark.parametrize(("version", "keys"), CHUNK_KEYS, ids=repr)
def test_requested_chunk_key_encoding_yields_same_keys_as_in_xarray(
    tmp_path, version, keys, dialect
):
    dataset = xr.Dataset({"v": (("y", "x"), [[1.0, 2], [3, 4]])})
    encoding = {"v": {"chunk_key_encoding": keys, "chunks": (1, 2)}}
    dataset.to_zarr(tmp_path / "a", zarr_format=version, encoding=encoding, consolidated=False)
    to_nczarr(dataset, tmp_path / "b", zarr_format=version, dialect=dialect, encoding=encoding)
    names = [
        {str(path.relative_to(tmp_path / name)) for path in (tmp_path / name / "v").rglob("*")}
        for name in "ab"
    ]
    assert names[0] == names[1]
    to_nczarr(dataset, tmp_path / "b", append_dim="y")
    assert read(tmp_path / "b").v.values.tolist() == [[1, 2], [3, 4]] * 2


@pytest.mark.parametrize(
    ("version", "keys"),
    [(2, {"name": "default"}), (3, {"name": "fanout"}), (3, {"name": "v2", "separator": "-"}),
     ("3-draft", {"name": "default"}), (1, {"name": "v2"})],
    ids=repr,
)  # fmt: skip
def test_chunk_key_encodings_unsupported_by_zarr_version_are_rejected(version, keys):
    with pytest.raises(ConflictError, match="does not support chunk_key_encoding"):
        to_nczarr(
            xr.Dataset({"v": ("x", [1])}),
            {},
            zarr_format=version,
            encoding={"v": {"chunk_key_encoding": keys}},
        )


# ---- Order


@pytest.mark.parametrize(
    ("layout", "consolidated"),
    [
        ({}, None),
        ({}, False),
        ({"zarr_format": 3}, False),
        ({"zarr_format": 3}, True),
        ({"zarr_format": "3-draft"}, False),
        ({"dialect": "universal"}, False),
        ({"dialect": "nczarr-4.8.1"}, False),
        ({"dialect": "nczarr-4.9.1"}, False),
        ({"dialect": "zarr"}, True),
        ({"dialect": "zarr", "zarr_format": 3}, True),
    ],
    ids=repr,
)
def test_variables_dimensions_and_attributes_keep_their_order(tmp_path, layout, consolidated):
    raw = xr.Dataset(
        {
            "z": (("q", "b"), np.zeros((2, 3)), {"units": "m", "_FillValue": -1.0, "a": "x"}),
            "q": ("q", [2, 1]),
            "c": ("b", [1, 2, 3]),
            "b": ("b", [1, 2, 3]),
            "a": ((), 1),
        },
        attrs={"z": "1", "b": "2", "a": "3"},
    )
    to_nczarr(raw, tmp_path / "a", consolidated=consolidated, **layout)
    raw.to_netcdf(tmp_path / "a.nc")
    for options in ({}, {"decode_cf": False}):
        result = xr.open_dataset(tmp_path / "a", engine="nczarr", **options)
        with xr.open_dataset(tmp_path / "a.nc", engine="netcdf4", **options) as expected:
            assert list(result.variables) == list(expected.variables)
            assert list(result.sizes) == list(expected.sizes)
            assert list(result.attrs) == list(expected.attrs)
    assert list(result.z.attrs) == ["units", "_FillValue", "a"]
    group = info(tmp_path / "a").root
    assert list(group.variables) == list(raw.variables)
    assert list(group.dimensions) == ["q", "b"]


def test_variables_and_groups_follow_netcdf_c_order(tmp_path):
    url = f"file://{tmp_path}/a#mode=nczarr,file"
    with netCDF4.Dataset(url, "w") as dataset:
        dataset.createDimension("y", 2)
        dataset.createDimension("x", 2)
        for name in ("z", "m", "a"):
            dataset.createVariable(name, "i4", ("y", "x"))
        group = dataset.createGroup("g")
        dataset.createGroup("b")
        group.createVariable("w", "i4")
        group.createVariable("d", "i4")
    tree = xr.open_datatree(tmp_path / "a", engine="nczarr")
    assert list(tree.to_dataset().variables) == ["z", "m", "a"]
    assert list(tree.children) == ["g", "b"]
    assert list(tree["g"].to_dataset().variables) == ["w", "d"]


def test_error_for_repeated_coordinate_in_append_includes_store_name(tmp_path):
    days = xr.Dataset({"t": ("time", [1.0, 2.0])}, {"time": [10, 20]})
    to_nczarr(days, tmp_path / "s")
    with pytest.raises(ConflictError, match="s: coordinate time already contains the value 10"):
        to_nczarr(days, tmp_path / "s", append_dim="time")


def test_auto_region_is_rejected_if_stored_coordinate_has_duplicates(tmp_path):
    days = xr.Dataset({"t": ("time", [1.0, 2.0])}, {"time": [10, 10]})
    to_nczarr(days, tmp_path / "s")
    with pytest.raises(ConflictError, match="contains the value 10 more than once") as error:
        to_nczarr(days[{"time": [0]}], tmp_path / "s", region="auto")
    remedy = "Pass integer positions instead, such as region={'time': slice(0, 10)}"
    assert error.value.remedy == remedy


@pytest.mark.parametrize(
    ("unlimited", "problem"),
    [
        (["zz"], r"unlimited_dims contains \['zz'\], but the DataTree has only .*\['x', 'z'\]"),
        ("zz", r"unlimited_dims contains \['zz'\]"),
        ({"/g": ["zz"]}, r"\['zz'\], but group /g has only the dimensions \['x', 'z'\]"),
        ({"/h": ["z"]}, r"contains groups that are not in the DataTree: \['/h'\]"),
    ],
    ids=["list", "string", "dimension", "group"],
)
def test_unknown_unlimited_dimensions_of_datatree_are_rejected(unlimited, problem):
    group = xr.Dataset({"b": ("z", [1])})
    tree = xr.DataTree.from_dict({"/": xr.Dataset({"a": ("x", [1])}), "/g": group})
    with pytest.raises(ValueError, match=problem):
        to_nczarr(tree, {}, unlimited_dims=unlimited)


@pytest.mark.parametrize("unlimited", [["z"], "z", {"/g": ["z", "x"], "/": None}], ids=str)
def test_unlimited_dimensions_of_datatree_can_be_in_any_group(unlimited):
    group = xr.Dataset({"b": ("z", [1])})
    tree = xr.DataTree.from_dict({"/": xr.Dataset({"a": ("x", [1])}), "/g": group})
    to_nczarr(tree, store := {}, unlimited_dims=unlimited)
    assert xr.open_dataset(store, engine="nczarr", group="g").encoding["unlimited_dims"] == {"z"}


@pytest.mark.parametrize("unlimited", [{"/c": ["t"]}, {"/c": "t", "/": None}], ids=str)
@pytest.mark.parametrize("inherits", [True, False], ids=["coordinate", "dimension"])
def test_dimension_made_unlimited_in_child_group_is_unlimited_in_parent(unlimited, inherits):
    root = xr.Dataset({"a": ("x", [1])}, coords={"t": [0, 1]} if inherits else None)
    root["r"] = ("t", [3, 4])
    root.encoding["unlimited_dims"] = {"x"}
    tree = xr.DataTree.from_dict({"/": root, "/c": xr.Dataset({"b": ("t", [1, 2])})})
    to_nczarr(tree, store := {}, unlimited_dims=unlimited)
    for group, names in (("/", {"t", "x"}), ("c", {"t"})):
        opened = xr.open_dataset(store, engine="nczarr", group=group)
        assert opened.encoding["unlimited_dims"] == names
