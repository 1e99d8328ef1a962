"""A broken variable does not prevent opening the other variables, in any kind of store."""

import json
import shutil
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from packaging.version import Version

import xr_nczarr
from tests.stores import array_document, put, read_objects
from xr_nczarr.errors import (
    ChunkError,
    MetadataError,
    MissingChunkError,
    StorageConnectionError,
    UnsupportedError,
)

ENCODING = {"time": {"chunks": (8,), "zlib": True}, "t": {"chunks": (8, 2)}}


@pytest.fixture
def store(tmp_path):
    """Return a store whose coordinate `time` has three chunks."""
    times = pd.date_range("2000-01-01", periods=24, freq="h")
    values = np.arange(48.0).reshape(24, 2)
    dataset = xr.Dataset({"t": (("time", "x"), values)}, {"time": times, "x": [1, 2]})
    xr_nczarr.to_nczarr(dataset, tmp_path / "store", encoding=ENCODING, consolidated=True)
    return tmp_path / "store"


def open_as_one(target, **options):
    nested = {"combine": "nested", "concat_dim": "time"}
    with xr.open_mfdataset([target], engine="nczarr", **nested, **options) as dataset:
        return dataset


OPENERS = {
    "open_dataset": lambda target, **options: xr.open_dataset(target, engine="nczarr", **options),
    "open_datatree": lambda target, **options: xr.open_datatree(
        target, engine="nczarr", **options
    ).to_dataset(),
    "open_groups": lambda target, **options: xr.open_groups(target, engine="nczarr", **options)[
        "/"
    ],
    "open_mfdataset": open_as_one,
}
each_opener = pytest.mark.parametrize("opener", OPENERS.values(), ids=OPENERS)


@pytest.fixture(params=["directory", "zip", "mapping", "http", "s3", "references"])
def served(request, tmp_path):
    """Return a function that serves a directory, and returns a target and its options."""

    def serve(folder):
        if request.param == "zip":
            return shutil.make_archive(str(tmp_path / "store"), "zip", folder), {}
        if request.param == "mapping":
            return read_objects(folder), {}
        if request.param == "http":
            server = request.getfixturevalue("http_server")
            shutil.copytree(folder, Path(server.root, "s"))
            return f"{server.url}/s", {}
        if request.param == "s3":
            server = request.getfixturevalue("s3_server")
            return server.upload(folder, "s"), {"storage_options": server.storage_options}
        if request.param == "references":
            xr_nczarr.references.write(folder, tmp_path / "s.json")
            return str(tmp_path / "s.json"), {}
        return str(folder), {}

    return serve


def change(store, name, **members):
    """Change attributes of a variable, both in its own document and in consolidated metadata."""
    consolidated = json.loads((store / ".zmetadata").read_text())
    consolidated["metadata"][f"{name}/.zattrs"] |= members
    (store / ".zmetadata").write_text(json.dumps(consolidated))
    path = store / name / ".zattrs"
    path.write_text(json.dumps(json.loads(path.read_text()) | members))


IMPOSSIBLE = {
    "units": {"units": "days since 2000-13-45"},
    "calendar": {"units": "days since 2000-01-01", "calendar": "nobody's"},
    "scale_factor": {"scale_factor": [1.0, 2.0, 3.0]},
    "add_offset": {"add_offset": [1, 2, 3]},
    "coordinates": {"coordinates": 5},
    "bounds": {"units": "days since 2000-01-01", "bounds": ["a", "b"]},
}


@each_opener
@pytest.mark.parametrize("attribute", IMPOSSIBLE)
def test_undecodable_variable_is_opened_without_decoding(attribute, opener, store):
    change(store, "t", **IMPOSSIBLE[attribute])
    message = f"^/t was not decoded: .*store, attribute {attribute}: xarray cannot"
    with pytest.warns(xr.SerializationWarning, match=message) as caught:
        dataset = opener(store)
    assert len(caught) == 1
    assert "drop_variables" in str(caught[0].message)
    np.testing.assert_array_equal(dataset.t, np.arange(48.0).reshape(24, 2))
    assert attribute in dataset.t.attrs
    assert sorted(dataset.xindexes) == ["time", "x"]
    assert dataset.time.dtype.kind == "M"


@pytest.mark.parametrize("attribute", IMPOSSIBLE)
def test_undecodable_variables_can_be_rejected_or_skipped(attribute, store):
    change(store, "t", **IMPOSSIBLE[attribute])
    with pytest.raises(MetadataError, match=rf"attribute {attribute}: xarray .*variable /t") as c:
        xr.open_dataset(store, engine="nczarr", on_unsupported="raise")
    assert c.value.__cause__ is not None
    skipped = xr.open_dataset(store, engine="nczarr", on_unsupported="skip")
    assert sorted(skipped.variables) == ["time", "x"]


@pytest.mark.parametrize(
    "options",
    [
        {"decode_cf": False},
        {"decode_times": False},
        {"decode_times": {"t": False}},
        {"drop_variables": "t"},
    ],
    ids=str,
)
def test_disabling_decoding_avoids_warning_about_undecodable_variable(options, store):
    change(store, "t", **IMPOSSIBLE["units"])
    dataset = xr.open_dataset(store, engine="nczarr", **options)
    assert sorted(dataset.xindexes) == ["time", "x"]


@pytest.mark.parametrize("by_variable", [False, True])
def test_invalid_decoding_option_raises_xarray_error(store, by_variable):
    coder = xr.coders.CFDatetimeCoder()
    options = {"decode_times": {"t": coder} if by_variable else coder, "use_cftime": True}
    with pytest.raises(TypeError, match="Usage of 'use_cftime'"):
        xr.open_dataset(store, engine="nczarr", **options)


def test_coordinate_with_invalid_units_is_indexed_by_raw_values(store):
    change(store, "time", units="months since 2000-01-01")
    with pytest.warns(xr.SerializationWarning, match=r"^/time was not decoded: .*units"):
        dataset = xr.open_dataset(store, engine="nczarr")
    assert dataset.t.sel(time=3, x=1) == 6
    assert dataset.time.attrs["units"] == "months since 2000-01-01"
    with pytest.warns(xr.SerializationWarning, match="/time was not decoded"):
        joined = xr.open_mfdataset([store], engine="nczarr", combine="by_coords")
    assert sorted(joined.xindexes) == ["time", "x"]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_time_coordinate_with_missing_chunk_gets_no_index(number, store, served):
    (store / f"time/{number}").unlink()
    target, options = served(store)
    message = f"^/time was not decoded and has no index: .*time/{number}: the chunk is m"
    with pytest.warns(xr.SerializationWarning, match=message):
        dataset = xr.open_dataset(target, engine="nczarr", **options)
    assert list(dataset.xindexes) == ["x"]
    assert dataset.time.attrs["units"].startswith("hours since 2000-01-01")
    np.testing.assert_array_equal(dataset.t, np.arange(48.0).reshape(24, 2))
    with pytest.raises(
        MetadataError, match=f"time/{number}: the chunk is missing.*Write the missing chunk"
    ):
        xr.open_dataset(target, engine="nczarr", on_unsupported="raise", **options)


@pytest.mark.parametrize("attribute", IMPOSSIBLE)
def test_decoding_warning_names_attribute_even_if_chunk_is_missing(attribute, store):
    change(store, "t", **IMPOSSIBLE[attribute])
    (store / "t/0.0").unlink()
    with pytest.warns(xr.SerializationWarning, match=f"^/t .*attribute {attribute}: xarray cannot"):
        xr.open_dataset(store, engine="nczarr")


@pytest.mark.parametrize("number", [0, 1, 2])
def test_time_coordinate_with_damaged_chunk_gets_no_index(number, store, served):
    path = store / f"time/{number}"
    path.write_bytes(path.read_bytes()[:-3])
    target, options = served(store)
    message = f"^/time was not decoded and has no index: .*time/{number}, codec zlib"
    with pytest.warns(xr.SerializationWarning, match=message):
        dataset = xr.open_dataset(target, engine="nczarr", **options)
    assert list(dataset.xindexes) == ["x"]
    whole = [at for at in range(24) if at // 8 != number]
    assert dataset.time[whole].values.tolist() == whole
    with pytest.raises(ChunkError, match=f"time/{number}"):
        dataset.time.load()
    with pytest.raises(ChunkError, match=f"time/{number}"):
        xr.open_dataset(target, engine="nczarr", on_unsupported="raise", **options)


@each_opener
def test_unreadable_coordinate_gets_no_index(opener, store):
    document = json.loads((store / "x/.zarray").read_text()) | {"compressor": {"id": "nobody's"}}
    (store / "x/.zarray").write_text(json.dumps(document))
    with pytest.warns(xr.SerializationWarning, match=r"^/x has no index: .*nobody's"):
        dataset = opener(store, consolidated=False)
    assert list(dataset.xindexes) == ["time"]
    with pytest.raises(UnsupportedError, match="nobody's"):
        dataset.x.load()


def test_coordinate_with_missing_chunks_is_indexed_by_default(store):
    (store / "x/0").unlink()
    assert sorted(xr.open_dataset(store, engine="nczarr").xindexes) == ["time", "x"]
    with pytest.warns(xr.SerializationWarning, match="^/x was not decoded and has no index: .*x/0"):
        dataset = xr.open_dataset(store, engine="nczarr", missing_chunks="raise")
    assert list(dataset.xindexes) == ["time"]
    with pytest.raises(MissingChunkError, match="x/0"):
        dataset.x.load()


def test_broken_variable_does_not_affect_other_groups(tmp_path):
    child = xr.Dataset({"a": ("y", [1.0, 2.0])}, {"y": [3, 4]})
    tree = xr.DataTree.from_dict({"/": child.rename(y="x"), "/g": child})
    xr_nczarr.to_nczarr(tree, tmp_path / "s")
    (tmp_path / "s/g/y/0").write_bytes(b"cut")
    with pytest.warns(xr.SerializationWarning, match="^/g/y was not decoded and has no index"):
        opened = xr.open_datatree(tmp_path / "s", engine="nczarr")
    assert list(opened.xindexes) == ["x"]
    assert "y" not in opened["g"].xindexes
    assert opened["g/a"].values.tolist() == [1, 2]


def test_bounds_with_invalid_units_do_not_prevent_time_decoding(tmp_path):
    bounds = np.array([[0, 1e300]])
    dataset = xr.Dataset(
        {"bounds": (("t", "two"), bounds), "other": ("two", [1, 2])},
        {"t": ("t", [0.0], {"units": "days since 2000-01-01", "bounds": "bounds"})},
    )
    xr_nczarr.to_nczarr(dataset, tmp_path / "s")
    with pytest.warns(xr.SerializationWarning, match="^/bounds was not decoded"):
        opened = xr.open_dataset(tmp_path / "s", engine="nczarr")
    assert opened.t.dtype.kind == "M"
    np.testing.assert_array_equal(opened.bounds, bounds)
    assert "units" not in opened.bounds.attrs


def test_invalid_attributes_of_dropped_variable_are_ignored(store):
    change(store, "t", **IMPOSSIBLE["bounds"])
    dataset = xr.open_dataset(store, engine="nczarr", drop_variables="t")
    assert sorted(dataset.variables) == ["time", "x"]


def test_character_array_is_decoded_although_another_array_is_unreadable(tmp_path):
    members = {".zgroup": {"zarr_format": 2}}
    for name, codec in (("good", None), ("bad", {"id": "nobody's"})):
        members[f"{name}/.zarray"] = array_document((2, 3), "|S1", compressor=codec)
        members[f"{name}/.zattrs"] = {"_ARRAY_DIMENSIONS": ["x", "length"]}
        members[f"{name}/0.0"] = b"abcdef"
    opened = xr.open_dataset(put(tmp_path / "s", members), engine="nczarr", consolidated=False)
    assert opened.good.values.tolist() == [b"abc", b"def"]


def test_scalar_with_same_name_as_dimension_is_dropped_with_warning(tmp_path):
    members = {".zgroup": {"zarr_format": 2}}
    members |= {"a/.zarray": array_document((4,)), "a/.zattrs": {"_ARRAY_DIMENSIONS": ["x"]}}
    members |= {"x/.zarray": array_document(()), "x/.zattrs": {"_ARRAY_DIMENSIONS": []}}
    store = put(tmp_path / "s", members)
    with pytest.warns(xr.SerializationWarning, match=r"^/x is left out: .*scalar.*\(variable /x\)"):
        assert list(xr.open_dataset(store, engine="nczarr").variables) == ["a"]
    with pytest.raises(MetadataError, match="the scalar variable has the same name as a dimension"):
        xr.open_dataset(store, engine="nczarr", on_unsupported="raise")
    for options in ({"on_unsupported": "skip"}, {"drop_variables": "x"}):
        assert list(xr.open_dataset(store, engine="nczarr", **options).variables) == ["a"]
    assert list(xr.open_dataset(store, engine="nczarr", drop_variables="a").variables) == ["x"]


def test_array_too_large_for_numpy_can_be_dropped(store):
    document = json.loads((store / "x/.zarray").read_text()) | {"shape": [1 << 62]}
    put(store, {"y/.zarray": document, "y/.zattrs": {"_ARRAY_DIMENSIONS": ["y"]}})
    options = {"consolidated": False, "drop_variables": "y"}
    dataset = xr.open_dataset(store, engine="nczarr", **options)
    assert sorted(dataset.xindexes) == ["time", "x"]


def test_warnings_point_to_line_of_calling_code(store):
    change(store, "t", **IMPOSSIBLE["units"])
    for opener in (xr.open_dataset, xr.open_datatree, xr.open_groups):
        with pytest.warns(xr.SerializationWarning) as caught:
            opener(store, engine="nczarr")
        assert caught[0].filename == __file__


def test_decoding_warning_can_be_turned_into_error(store):
    change(store, "t", **IMPOSSIBLE["units"])
    with pytest.raises(xr.SerializationWarning, match=r"^/t was not decoded"):
        xr.open_dataset(store, engine="nczarr")


def test_failed_connection_does_not_mark_variable_as_broken(store, http_server):
    shutil.copytree(store, Path(http_server.root, "s"))
    http_server.fault("reset", path="*/time/0", times=None)
    options = {"storage_options": {"retry": {"attempts": 1}}, "chunks": {}}
    with pytest.raises(StorageConnectionError, match="time/0"):
        xr.open_dataset(f"{http_server.url}/s", engine="nczarr", **options)


@pytest.mark.parametrize("opener", [xr.open_dataset, xr.open_datatree, xr.open_groups])
def test_coordinates_are_not_read_if_no_default_indexes_are_created(opener, store, http_server):
    shutil.copytree(store, Path(http_server.root, "s"))
    opener(
        f"{http_server.url}/s", engine="nczarr", create_default_indexes=False, decode_times=False
    )
    assert not [request.path for request in http_server.requests if request.path[-1].isdigit()]


def test_coordinate_indexes_equal_those_created_by_zarr_engine(tmp_path):
    dataset = xr.Dataset(
        coords={
            "date": xr.date_range("2000-01-01", periods=3, calendar="360_day", use_cftime=True),
            "flag": ("flag", [False, True]),
            "step": ("step", pd.to_timedelta([1, 2], "h")),
            "packed": ("packed", [0.5, 1.0, 1.5]),
        }
    )
    packing = {"packed": {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -9}}
    dataset.to_zarr(tmp_path / "s", zarr_format=2, encoding=packing, consolidated=False)
    decoding = {"decode_timedelta": True}
    opened = xr.open_dataset(tmp_path / "s", engine="nczarr", **decoding)
    with xr.open_dataset(tmp_path / "s", engine="zarr", consolidated=False, **decoding) as expected:
        for name in dataset.coords:
            assert opened.indexes[name].dtype == expected.indexes[name].dtype
            assert opened.indexes[name].equals(expected.indexes[name])
            assert opened[name].attrs == expected[name].attrs


def test_each_broken_variable_causes_one_warning():
    members = {".zgroup": b'{"zarr_format": 2}'}
    array = json.dumps(array_document((1,))).encode()
    attributes = IMPOSSIBLE["units"] | {"_ARRAY_DIMENSIONS": ["x"]}
    for number in range(200):
        members[f"v{number}/.zarray"] = array
        members[f"v{number}/.zattrs"] = json.dumps(attributes).encode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dataset = xr.open_dataset(members, engine="nczarr")
    assert len(dataset) == len(caught) == 200


def test_damaged_chunk_is_not_read_again_to_explain_failure(http_server):
    """xarray reads the first time. If this fails, the chunk is not read again to find out why."""
    document = array_document((4,), dtype="<i8", compressor={"id": "zlib", "level": 1})
    attributes = {"_ARRAY_DIMENSIONS": ["x"], "units": "days since 2000-01-01"}
    members = {
        ".zgroup": '{"zarr_format": 2}',
        ".zmetadata": json.dumps(
            {
                "zarr_consolidated_format": 1,
                "metadata": {
                    ".zgroup": {"zarr_format": 2},
                    "v/.zarray": document,
                    "v/.zattrs": attributes,
                },
            }
        ),
        "v/0": b"not zlib",
    }
    put(Path(http_server.root), {"s/" + key: value for key, value in members.items()})
    with pytest.warns(xr.SerializationWarning, match="v was not decoded"):
        xr.open_dataset(f"{http_server.url}/s", engine="nczarr")
    # xarray 2025.7 replaces the error with one that does not name the variable.
    reads = 1 if Version(xr.__version__) >= Version("2025.8") else 2
    assert len(http_server.requests_for("*/v/0")) == reads


# Groups


@pytest.fixture(params=[2, 3])
def tree(request):
    """Return a store with a damaged group document, and the key of that document."""
    store = {}
    groups = {"/": xr.Dataset({"v": ("x", [1, 2])}), "/g": xr.Dataset({"w": ("x", [3, 4])})}
    xr_nczarr.to_nczarr(
        xr.DataTree.from_dict(groups), store, zarr_format=request.param, consolidated=False
    )
    key = {2: "g/.zgroup", 3: "g/zarr.json"}[request.param]
    store[key] = b"{"
    return store, key


def test_opening_group_with_damaged_metadata_raises_error(tree):
    store, key = tree
    for function in (xr.open_dataset, xr.open_datatree):
        with pytest.raises(MetadataError, match=f"mapping: {key}: the document is not valid JSON"):
            function(store, engine="nczarr", group="g")
    with pytest.raises(MetadataError, match=key):
        xr.open_datatree(store, engine="nczarr", on_unsupported="raise")


def test_damaged_group_metadata_does_not_affect_other_groups(tree, caplog):
    store, key = tree
    opened = xr.open_datatree(store, engine="nczarr")
    assert opened["v"].values.tolist() == [1, 2]
    assert f"mapping: {key}: the document is not valid JSON" in caplog.text


@pytest.mark.parametrize("damage", ["damaged", "missing"])
def test_unreadable_group_is_reported(tree, damage):
    store, key = tree
    if damage == "missing":
        del store[key]
    problems = {"damaged": f"{key}: the document is not", "missing": "the group /g is listed"}
    problem = problems[damage]
    (reason,) = xr_nczarr.dump(store).left_out
    assert reason.startswith(f"/g is left out: {problem}")
    assert f"// {reason}" in str(xr_nczarr.dump(store))
    assert problem in " ".join(str(xr_nczarr.info(store)).split())
    assert len(xr_nczarr.verify(store).findings) == 1
    for function in (lambda: xr_nczarr.copy(store, {}), lambda: xr_nczarr.upgrade(store)):
        with pytest.raises(xr_nczarr.NczarrError, match=problem):
            function()
