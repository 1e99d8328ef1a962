"""Targets of every kind, and the xarray functions that open them."""

import io
import json
import shutil
from pathlib import Path

import fsspec
import netCDF4
import numpy as np
import pytest
import xarray as xr

import xr_nczarr
from tests.stores import array_document, put, read_objects, sample, write_vintage, write_zip
from xr_nczarr import MetadataError, NotFoundError, StorageError, UnsupportedError

TEMPERATURE = np.arange(3 * 4 * 5, dtype="f4").reshape(3, 4, 5)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """Return a store from netcdf-c with an unlimited dimension, a group and deflated chunks."""
    path = tmp_path_factory.mktemp("stores") / "store.nczarr"
    with netCDF4.Dataset(f"file://{path}#mode=nczarr,file", "w") as file:
        file.title = "store"
        for name, size in (("time", None), ("y", 4), ("x", 5)):
            file.createDimension(name, size)
        for name, size in (("time", 3), ("y", 4)):
            file.createVariable(name, "f8", (name,))[:] = np.arange(size)
        options = {"zlib": True, "chunksizes": (1, 4, 5)}
        file.createVariable("t", "f4", ("time", "y", "x"), **options)[:] = TEMPERATURE
        group = file.createGroup("inner")
        group.createVariable("u", "i4", ("y",))[:] = np.arange(4)
    return path


def check(dataset):
    with dataset:
        assert dataset.attrs == {"title": "store"}
        assert dataset.encoding["unlimited_dims"] == {"time"}
        assert dataset.encoding["dialect"] == "nczarr-4.9.3"
        np.testing.assert_array_equal(dataset["t"].values, TEMPERATURE)
        assert dataset["t"].dims == ("time", "y", "x")


LOCAL_TARGETS = {
    "a path": str,
    "a Path": lambda path: path,
    "a file URL": lambda path: f"file://{path}",
    "an NCZarr URL": lambda path: f"file://{path}#mode=nczarr,file",
    "an NCZarr URL in pairs": lambda path: f"file://{path}#mode=nczarr&mode=file",
    "a URL for version 2": lambda path: f"file://{path}#mode=nczarr,file,v2",
    "a URL of pure Zarr": lambda path: f"file://{path}#mode=zarr",
    "a mapping": read_objects,
    "an fsspec mapper": lambda path: fsspec.get_mapper(str(path)),
}


@pytest.mark.parametrize("name", LOCAL_TARGETS)
def test_local_store_can_be_opened_through_paths_urls_and_mappings(name, stored):
    check(xr.open_dataset(LOCAL_TARGETS[name](stored), engine="nczarr"))


@pytest.mark.parametrize("prefix", ["", "store/"], ids=["keys at the root", "under one folder"])
@pytest.mark.parametrize("spell", ["{}", "file://{}#mode=nczarr,zip", "zip::file://{}"])
def test_zip_file_can_contain_store_at_root_or_in_folder(prefix, spell, stored, tmp_path):
    path = write_zip(tmp_path / "store.zip", read_objects(stored), prefix=prefix)
    target = spell.format(path)
    if target.startswith("zip::") and prefix:
        target = target.replace("zip::", f"zip://{prefix.rstrip('/')}::")
    check(xr.open_dataset(target, engine="nczarr"))


def test_store_in_fsspec_memory_filesystem_can_be_opened(stored):
    memory = fsspec.filesystem("memory")
    memory.pipe({f"/opening/store/{key}": data for key, data in read_objects(stored).items()})
    check(xr.open_dataset("memory://opening/store", engine="nczarr"))


@pytest.mark.parametrize("spell", ["{}/store", "simplecache::{}/store", "{}/store#mode=nczarr"])
def test_http_store_can_be_opened_without_directory_listing(spell, stored, http_server):
    shutil.copytree(stored, Path(http_server.root, "store"))
    check(xr.open_dataset(spell.format(http_server.url), engine="nczarr"))


def test_error_for_unlistable_http_store_suggests_consolidated_metadata(http_server, stored):
    shutil.copytree(stored, Path(http_server.root, "plain"))
    for file in Path(http_server.root, "plain").rglob(".zattrs"):
        file.write_text("{}")
    with pytest.raises(UnsupportedError, match=r"cannot be listed|cannot list") as caught:
        xr.open_dataset(f"{http_server.url}/plain", engine="nczarr")
    assert "Consolidate" in str(caught.value)


@pytest.mark.parametrize("fragment", ["", "#mode=nczarr,s3", "#mode=zarr,s3"])
def test_s3_store_can_be_opened(fragment, stored, s3_server):
    url = s3_server.upload(stored, "deep/store")
    options = s3_server.storage_options
    check(xr.open_dataset(url + fragment, engine="nczarr", storage_options=options))


@pytest.mark.parametrize("release", ["4.8.0", "4.10"])
def test_store_can_be_opened_without_s3_list_permission(release, tmp_path, s3_server):
    write_vintage(tmp_path / "store", sample(release), release)
    s3_server.restore({f"store/{k}": data for k, data in read_objects(tmp_path / "store").items()})
    url, options = f"{s3_server.url}/store", s3_server.storage_options
    s3_server.fail = lambda request: 403 if "list-type" in request.path else None
    opened = xr.open_groups(url, engine="nczarr", storage_options=options)
    expected = xr.open_groups(tmp_path / "store", engine="nczarr")
    assert opened.keys() == expected.keys()
    assert opened["/g"].identical(expected["/g"])
    assert "requests" in repr(xr_nczarr.explain(url, storage_options=options))


@pytest.mark.parametrize("client", ["fsspec", "obstore"])
def test_store_can_be_copied_and_referenced_without_s3_list_permission(
    client, stored, tmp_path, s3_server
):
    url = s3_server.upload(stored, "store")
    options = {**s3_server.storage_options, "client": client}
    listed = xr_nczarr.references.write(url, tmp_path / "listed.json", storage_options=options)
    s3_server.fail = lambda request: 403 if "list-type" in request.path else None
    xr_nczarr.copy(url, tmp_path / "copy", storage_options=options)
    check(xr.open_dataset(tmp_path / "copy", engine="nczarr"))
    written = xr_nczarr.references.write(url, tmp_path / "set.json", storage_options=options)
    assert written.references == listed.references
    remote = {"remote_options": s3_server.storage_options}
    check(xr.open_dataset(tmp_path / "set.json", engine="nczarr", storage_options=remote))
    with pytest.raises(xr_nczarr.AccessDeniedError, match=r"cannot be listed.* s3:ListBucket$"):
        xr_nczarr.to_nczarr(xr.Dataset(), f"{s3_server.url}/new", storage_options=options)


def test_s3_store_can_be_opened_through_https_url(stored, s3_server):
    s3_server.upload(stored, "store")
    url = f"{s3_server.endpoint}/{s3_server.bucket}/store#mode=nczarr,s3"
    check(xr.open_dataset(url, engine="nczarr", storage_options=s3_server.storage_options))


def test_opening_missing_store_raises_not_found_error(tmp_path, s3_server, http_server):
    for target, options in (
        (tmp_path / "nothing", {}),
        ({}, {}),
        ("memory://nothing", {}),
        (f"tar://x::file://{tmp_path}/nothing.tar", {}),
        (f"{s3_server.url}/nothing", {"storage_options": s3_server.storage_options}),
        (f"{http_server.url}/nothing", {}),
    ):
        with pytest.raises(NotFoundError):
            xr.open_dataset(target, engine="nczarr", **options)


@pytest.mark.parametrize("protocol", ["zip", "tar"])
def test_error_for_damaged_archive_includes_its_name(tmp_path, protocol):
    (tmp_path / "damaged").write_bytes(b"not an archive")
    url = f"{protocol}://x::file://{tmp_path}/damaged"
    with pytest.raises(StorageError, match=rf"^{protocol}://x::file://.*damaged: "):
        xr.open_dataset(url, engine="nczarr")
    references = {
        ".zgroup": '{"zarr_format": 2}',
        "x/.zarray": json.dumps(array_document((4,))),
        "x/0": [f"{protocol}://x::file://{tmp_path}/damaged", 0, 16],
    }
    with pytest.raises(StorageError, match=r"x/0"):
        xr.open_dataset(references, engine="nczarr").load()


def test_url_fragment_that_contradicts_store_is_rejected(stored, tmp_path):
    archive = write_zip(tmp_path / "store.zip", read_objects(stored))
    for url in (f"file://{stored}#mode=nczarr,zip", f"file://{archive}#mode=nczarr,file"):
        with pytest.raises((ValueError, OSError), match=r"zip|directory"):
            xr.open_dataset(url, engine="nczarr")
    with pytest.raises((ValueError, OSError)):
        xr.open_dataset(f"file://{stored}#mode=nczarr,file,v3", engine="nczarr")
    with pytest.raises(ValueError, match="nonsense"):
        xr.open_dataset(f"file://{stored}#mode=nczarr,nonsense", engine="nczarr")


def test_xarray_guesses_nczarr_engine_only_from_nczarr_metadata_or_url(stored, tmp_path):
    check(xr.open_dataset(stored))
    guess = xr.backends.list_engines()["nczarr"].guess_can_open
    url = f"file://{stored}#mode=nczarr,file"
    assert guess(url)
    if not xr.backends.list_engines()["netcdf4"].guess_can_open(url):  # true until 2025.11
        check(xr.open_dataset(url))
    xr.Dataset({"a": ("x", [1])}).to_zarr(tmp_path / "plain.zarr", zarr_format=2)
    assert not guess(tmp_path / "plain.zarr")
    for other in ("s3://bucket/key", "https://127.0.0.1:1/x", tmp_path / "no", io.BytesIO(b""), {}):
        assert not guess(other)


def test_groups_can_be_opened_individually_or_as_datatree(stored):
    with xr.open_dataset(stored, engine="nczarr", group="inner") as inner:
        np.testing.assert_array_equal(inner["u"].values, np.arange(4))
        assert inner["u"].dims == ("y",)
    groups = xr.open_groups(stored, engine="nczarr")
    assert list(groups) == ["/", "/inner"]
    tree = xr.open_datatree(stored, engine="nczarr", chunks={})
    assert tree["inner/u"].chunks == ((4,),)
    np.testing.assert_array_equal(tree["inner/u"].values, np.arange(4))
    with pytest.raises(NotFoundError, match="nowhere"):
        xr.open_dataset(stored, engine="nczarr", group="nowhere")


def test_open_mfdataset_concatenates_stores(stored, tmp_path):
    shutil.copytree(stored, tmp_path / "second")
    with xr.open_mfdataset(
        [stored, tmp_path / "second"], engine="nczarr", combine="nested", concat_dim="time"
    ) as dataset:
        np.testing.assert_array_equal(dataset["t"].values, np.concatenate([TEMPERATURE] * 2))


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        (None, None),
        ({}, ((1, 1, 1), (4,), (5,))),
        ("auto", ((3,), (4,), (5,))),
        ({"time": 2, "x": 5}, ((2, 1), (4,), (5,))),
    ],
)
def test_chunks_argument_determines_dask_chunks(chunks, expected, stored):
    with xr.open_dataset(stored, engine="nczarr", chunks=chunks) as dataset:
        assert dataset["t"].chunks == expected
        np.testing.assert_array_equal(dataset["t"].values, TEMPERATURE)


def test_xarray_decoding_options_take_effect(tmp_path):
    url = f"file://{tmp_path}/s#mode=nczarr,file"
    with netCDF4.Dataset(url, "w") as file:
        file.createDimension("n", 3)
        file.createDimension("letters", 2)
        packed = file.createVariable("packed", "i2", ("n",), fill_value=-1)
        packed.set_auto_maskandscale(False)
        packed.setncatts({"scale_factor": np.float32(0.5), "coordinates": "when"})
        packed[:] = [1, -1, 3]
        when = file.createVariable("when", "i4", ("n",))
        when.units = "hours since 2001-01-01"
        when[:] = [0, 1, 2]
        file.createVariable("word", "S1", ("n", "letters"))[:] = np.array(
            [[b"a", b"b"], [b"c", b"d"], [b"e", b"f"]]
        )

    def opened(**options):
        return xr.open_dataset(url, engine="nczarr", **options)

    plain = opened()
    np.testing.assert_array_equal(plain["packed"], np.array([0.5, np.nan, 1.5], "f4"))
    assert plain["packed"].dtype == "f4"
    assert plain["when"].dtype.kind == "M"
    assert set(plain.coords) == {"when"}
    assert plain["word"].values.tolist() == [b"ab", b"cd", b"ef"]
    assert opened(mask_and_scale=False)["packed"].values.tolist() == [1, -1, 3]
    assert opened(decode_times=False)["when"].dtype == "i4"
    assert opened(concat_characters=False)["word"].shape == (3, 2)
    assert opened(decode_coords=False)["packed"].attrs["coordinates"] == "when"
    assert "packed" not in opened(drop_variables="packed")
    assert opened(decode_cf=False)["packed"].attrs["scale_factor"] == np.float32(0.5)
    with pytest.raises(TypeError, match="nonsense"):
        opened(nonsense=1)
    with pytest.raises(ValueError, match="on_unsupported"):
        opened(on_unsupported="perhaps")
    for threads in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match="threads"):
            opened(threads=threads)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("use_zarr_fill_value_as_mask", "False"),
        ("limits", 3),
        ("limits", {"max_nodes": "many"}),
        ("limits", {"max_chunk_bytes": "2"}),
        ("storage_options", 1),
        ("codecs", ["mine"]),
    ],
)
def test_option_of_wrong_type_is_rejected(option, value):
    store = {".zgroup": b'{"zarr_format": 2}'}
    with pytest.raises(ValueError, match=f"{option.rstrip('s')}.*, not "):
        xr.open_dataset(store, engine="nczarr", **{option: value})


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("missing_status", 404),
        ("missing_status", "404"),
        ("retry", 3),
        ("retry", {"attempts": 0}),
        ("retry", {"attempts": "3"}),
        ("retry", {"timeout_seconds": "3"}),
    ],
    ids=str,
)
def test_storage_option_of_wrong_type_is_rejected(option, value, tmp_path):
    with pytest.raises(ValueError, match=f"{option}.* must be .*, not "):
        xr.open_dataset(tmp_path, engine="nczarr", storage_options={option: value})


def test_numpy_scalars_are_accepted_as_option_values():
    store = {".zgroup": b'{"zarr_format": 2}'}
    limits = {"max_nodes": np.int64(7), "max_chunk_bytes": 1e9}
    options = {"use_zarr_fill_value_as_mask": np.False_, "limits": limits}
    assert not xr.open_dataset(store, engine="nczarr", **options).variables


def test_loading_unnamed_variable_with_unknown_codec_raises_unsupported_error(tmp_path):
    document = array_document((3,), compressor={"id": "nobody's"})
    put(tmp_path / "s", {".zgroup": {"zarr_format": 2}, "__values__/.zarray": document})
    nameless = xr.open_dataset(tmp_path / "s", engine="nczarr")[None]
    with pytest.raises(UnsupportedError, match="nobody's"):
        nameless.load()


def test_consolidated_metadata_can_be_ignored_checked_or_required(tmp_path):
    url = f"file://{tmp_path}/s#mode=nczarr,file"
    with netCDF4.Dataset(url + ",consolidated", "w") as file:
        file.createDimension("x", None)
        file.createVariable("v", "i4", ("x",))[:] = [1, 2]
    assert xr_nczarr.info(url).consolidated
    assert not xr_nczarr.info(url, consolidated=False).consolidated
    assert xr_nczarr.info(url, consolidated="check").consolidated
    (tmp_path / "s" / "v" / ".zarray").write_text(
        (tmp_path / "s" / "v" / ".zarray").read_text().replace("[2]", "[5]")
    )
    with pytest.raises(MetadataError, match=r"v/\.zarray.*stale"):
        xr_nczarr.info(url, consolidated="check")
    (tmp_path / "s" / ".zmetadata").unlink()
    with pytest.raises(NotFoundError, match="zmetadata"):
        xr_nczarr.info(url, consolidated=True)


def test_info_repr_shows_store_contents(stored):
    text = repr(xr_nczarr.info(stored))
    assert "NCZarr metadata of netCDF-C 4.9.3 or later" in text
    assert "time 3 unlimited" in text
    assert "float32 t(time, y, x)  1×4×5   shuffle zlib" in text
    assert "group /inner" in text


@pytest.mark.parametrize("consolidated", [None, True, "check"])
def test_v3_metadata_is_preferred_even_if_v2_metadata_is_consolidated(tmp_path, consolidated):
    for zarr_format in (2, 3):
        part = tmp_path / str(zarr_format)
        xr_nczarr.to_nczarr(
            xr.Dataset({"v": ("x", [zarr_format])}),
            part,
            zarr_format=zarr_format,
            consolidated=True,
        )
        put(tmp_path / "both", read_objects(part))
    read = xr.open_dataset(tmp_path / "both", engine="nczarr", consolidated=consolidated)
    assert read.encoding["zarr_format"] == "3"
    assert read["v"] == 3


# Regression D20
def test_info_includes_note_about_arrays_without_fill_value(tmp_path):
    url = f"file://{tmp_path}/s#mode=nczarr,file"
    with netCDF4.Dataset(url, "w") as file:
        file.createDimension("x", 4)
        file.createVariable("unfilled", "i4", ("x",), chunksizes=(2,), fill_value=False)[:2] = 1
        file.createVariable("filled", "i4", ("x",))[:] = 1
    picture = repr(xr_nczarr.info(url))
    assert "note: without a fill value, missing chunks are read as zero (unfilled)" in picture


def test_dropped_variables_still_affect_decoding_of_other_variables(tmp_path):
    url = f"file://{tmp_path}/s#mode=nczarr,file"
    with netCDF4.Dataset(url, "w") as file:
        for name in ("t", "two", "letters"):
            file.createDimension(name, 2)
        time = file.createVariable("t", "f8", ("t",))
        time.setncatts({"units": "days since 2000-01-01", "bounds": "bounds"})
        time[:] = [0, 1]
        file.createVariable("bounds", "f8", ("t", "two"))[:] = [[0, 1], [1, 2]]
        file.createVariable("word", "S1", ("t", "letters"))[:] = np.array([[b"a", b"b"]] * 2)
        file.createVariable("number", "i4", ("letters",))[:] = [3, 4]
    options = {"drop_variables": ["t", "number"], "decode_coords": "all"}
    opened = xr.open_dataset(url, engine="nczarr", **options)
    with xr.open_dataset(url, engine="netcdf4", **options) as expected:
        xr.testing.assert_identical(opened, expected.load())
    assert (opened.bounds.dtype.kind, opened.word.dims) == ("M", ("t", "letters"))
    bounded = xr.open_dataset(url, engine="nczarr", drop_variables="bounds", decode_coords="all")
    assert bounded.t.encoding["bounds"] == "bounds"
