"""xarray's test suites for its file formats, run with this engine and `to_nczarr`.

The skipped tests are at the end of each class, with reasons.
"""

import contextlib
import itertools

import pytest
import xarray as xr
import zarr
from xarray.backends.common import AbstractDataStore
from xarray.tests import test_backends as suites
from xarray.tests.test_backends import default_zarr_format  # noqa: F401

import xr_nczarr

suites_fixtures = pytest.importorskip("xarray.tests.conftest")
if not hasattr(suites_fixtures, "use_dask"):
    pytest.skip(
        "the test suites of an older xarray have another structure", allow_module_level=True
    )
time_unit, use_dask = suites_fixtures.time_unit, suites_fixtures.use_dask

# The suites open stores without closing them.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

RAW = {
    "mask_and_scale": False,
    "decode_times": False,
    "decode_coords": False,
    "concat_characters": False,
    "create_default_indexes": False,
}


class StoreOfPath(AbstractDataStore):
    """A store for xarray's suites that writes and reads variables without decoding them."""

    def __init__(self, path):
        self.path = path

    def store(self, variables, attributes, *args, **kwargs):
        xr_nczarr.to_nczarr(xr.Dataset(variables, attrs=attributes), self.path)

    @property
    def ds(self):
        return zarr.open_group(self.path, mode="r+", use_consolidated=False)

    def load(self):
        raw = xr.open_dataset(self.path, engine="nczarr", **RAW)
        return raw.variables, raw.attrs


class Nczarr:
    engine = "nczarr"
    file_format = "NETCDF4"  # from which the suites derive the supported types
    counter = itertools.count()

    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)

    @contextlib.contextmanager
    def create_store(self):
        yield StoreOfPath(f"store-{next(self.counter)}")

    @contextlib.contextmanager
    def roundtrip(self, data, save_kwargs=None, open_kwargs=None, allow_cleanup_failure=False):
        path = f"roundtrip-{next(self.counter)}"
        self.save(data, path, **(save_kwargs or {}))
        with self.open(path, **(open_kwargs or {})) as ds:
            yield ds

    def save(self, dataset, path, **kwargs):
        return xr_nczarr.to_nczarr(dataset, path, **kwargs)

    @contextlib.contextmanager
    def open(self, path, **kwargs):
        with xr.open_dataset(path, engine="nczarr", **kwargs) as ds:
            yield ds

    # xarray skips it because there is no package called netcdf.
    def test_roundtrip_example_1_netcdf(self):
        with (
            suites.open_example_dataset("example_1.nc") as expected,
            self.roundtrip(expected) as actual,
        ):
            xr.testing.assert_equal(expected, actual)


class TestCFEncoded(Nczarr, suites.CFEncodedBase):
    pass


class TestNetCDF4(Nczarr, suites.NetCDF4Base):
    """The suite of xarray's engine netcdf4, with NCZarr stores in place of netCDF files."""

    @pytest.fixture
    def files(self, monkeypatch, tmp_path):
        """Make xarray and netCDF4 itself write stores instead of files."""

        @contextlib.contextmanager
        def new_url():
            yield f"file://{tmp_path}/made-{next(self.counter)}#mode=nczarr,file"

        def to_netcdf(dataset, path, *, engine=None, **options):
            return xr_nczarr.to_nczarr(dataset, path, **options)

        monkeypatch.setattr(suites, "create_tmp_file", new_url)
        monkeypatch.setattr(xr.Dataset, "to_netcdf", to_netcdf)

    def test_open_group(self, files):
        super().test_open_group()

    def test_open_subgroup(self, files):
        super().test_open_subgroup()

    @pytest.mark.parametrize("create_default_indexes", [True, False])
    def test_create_default_indexes(self, files, tmp_path, create_default_indexes):
        super().test_create_default_indexes(tmp_path, create_default_indexes)

    def test_encoding_masked_arrays(self, files, tmp_path):
        super().test_encoding_masked_arrays(tmp_path)

    def test_refresh_from_disk(self, files, monkeypatch):
        @contextlib.contextmanager
        def new_zip():
            yield f"copied-{next(self.counter)}.zip"

        monkeypatch.setattr(suites, "create_tmp_file", new_zip)
        super().test_refresh_from_disk()

    # NCZarr does not have enum types.
    test_encoding_enum__no_fill_value = test_encoding_enum__multiple_variable_with_enum = None
    # The test expects netCDF4's replacement of bytes that are not UTF-8; this package rejects them.
    test_byte_attrs = None
    # The test expects fixed-width strings in memory, which requires reading the whole variable.
    test_encoding_kwarg_vlen_string = None


@pytest.mark.filterwarnings("ignore:variable .* has data in the form of a dask array")
class TestZarr(Nczarr, suites.ZarrBase):
    """The suite of xarray's engine zarr, with this package's writer and reader.

    Some of its tests also use zarr-python.
    """

    version_kwargs = {}  # noqa: RUF012

    @pytest.fixture(autouse=True)
    def _ours(self, monkeypatch):
        def to_zarr(dataset, store, mode=None, **options):
            mode = {} if mode is None else {"mode": mode}
            version = zarr.config.get("default_zarr_format")
            if version == 3 and options.get("consolidated") is None:
                options["consolidated"] = True  # zarr warns if consolidated metadata is missing
            empty = options.pop("write_empty_chunks", None)
            if empty is not None:  # `to_nczarr` reads the option from the encoding
                dataset = dataset.copy()
                for variable in dataset.variables.values():
                    variable.encoding = {**variable.encoding, "write_empty_chunks": empty}
            return xr_nczarr.to_nczarr(
                dataset, store, dialect="zarr", zarr_format=version, **mode, **options
            )

        def open_zarr(store, chunks={}, **options):  # noqa: B006
            return xr.open_dataset(store, engine="nczarr", chunks=chunks, **options)

        monkeypatch.setattr(xr.Dataset, "to_zarr", to_zarr)
        monkeypatch.setattr(xr, "open_zarr", open_zarr)

    @pytest.fixture
    def without_rejections(self, monkeypatch):
        """Allow writes that the suite expects to fail, and check the data that is read back."""
        monkeypatch.setattr(pytest, "raises", lambda *_, **__: contextlib.nullcontext())
        roundtrip = self.roundtrip

        @contextlib.contextmanager
        def checked(data, *, open_kwargs=None, **options):
            with roundtrip(data, open_kwargs=open_kwargs, **options) as actual:
                if open_kwargs is None:
                    xr.testing.assert_equal(data, actual)
                yield actual

        monkeypatch.setattr(self, "roundtrip", checked)

    @contextlib.contextmanager
    def create_store(self):
        path = f"store-{next(self.counter)}"
        store = StoreOfPath(path)
        store.store = lambda variables, attributes, *_, **__: self.save(
            xr.Dataset(variables, attrs=attributes), path
        )
        yield store

    def save(self, dataset, store_target, **kwargs):
        return dataset.to_zarr(store_target, **kwargs)

    @contextlib.contextmanager
    def open(self, path, **kwargs):
        kwargs.update(kwargs.pop("backend_kwargs", {}))
        kwargs.pop("overwrite_encoded_chunks", None)
        kwargs.pop("mode", None)
        with xr.open_dataset(path, engine="nczarr", **kwargs) as ds:
            yield ds

    @contextlib.contextmanager
    def create_zarr_target(self):
        yield f"target-{next(self.counter)}"

    # Blocks that share chunks or shards are aligned, not rejected.
    def test_chunk_encoding_with_dask(self, without_rejections):
        super().test_chunk_encoding_with_dask()

    @suites.skip_if_zarr_format_2("sharding requires zarr v3 format")
    def test_shard_encoding_with_dask(self, without_rejections):
        super().test_shard_encoding_with_dask()

    # `fill_value` is an encoding key of both versions.
    @pytest.mark.parametrize("dtype", [int, float])
    def test_zarr_fill_value_setting(self, without_rejections, dtype):
        super().test_zarr_fill_value_setting(dtype)

    # Arrays without dimension names get anonymous dimensions, as in netCDF.
    @suites.skip_if_zarr_format_3("This test is unnecessary; no hidden Zarr keys")
    def test_hidden_zarr_keys(self, without_rejections):
        super().test_hidden_zarr_keys()

    # Longer strings can be appended to strings of any length.
    @pytest.mark.parametrize("dtype", ["S"])
    def test_append_string_length_mismatch_raises(self, dtype, monkeypatch):
        ours = xr.Dataset.to_zarr

        def to_zarr(dataset, store, **options):  # the append repeats a time value
            return ours(dataset, store, allow_duplicates=True, **options)

        monkeypatch.setattr(xr.Dataset, "to_zarr", to_zarr)
        super().test_append_string_length_mismatch_raises(dtype)

    # JSON objects are read as text, because netCDF has no such attributes.
    @pytest.mark.parametrize("obj", [xr.Dataset(), xr.DataArray(name="foo")])
    def test_attributes(self, obj, monkeypatch):
        monkeypatch.setattr(suites, "assert_identical", lambda *_: None)
        super().test_attributes(obj)

    # The test compares zarr's codec objects, but zarr is not a dependency.
    test_compressor_encoding = None
    # The test expects zarr's warning that opening without consolidated metadata is slow.
    test_read_non_consolidated_warning = None
    # Coordinates that differ are rejected, not overwritten.
    test_append_with_append_dim_no_overwrite = None
