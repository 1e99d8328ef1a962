"""xarray's own suites for its file formats, run with our engine and our writer.

What is left out stands at the end of each class, with the reason.
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
    pytest.skip("the suites of an older xarray are built otherwise", allow_module_level=True)
time_unit, use_dask = suites_fixtures.time_unit, suites_fixtures.use_dask

# The suites open what they wrote without closing it.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

RAW = {
    "mask_and_scale": False,
    "decode_times": False,
    "decode_coords": False,
    "concat_characters": False,
    "create_default_indexes": False,
}


class StoreOfPath(AbstractDataStore):
    """What xarray's suites call a store: variables put in and got out without decoding."""

    def __init__(self, path):
        self.path = path

    def store(self, variables, attributes, *args, **kwargs):
        xr_nczarr.to_nczarr(xr.Dataset(variables, attrs=attributes), self.path)

    def load(self):
        raw = xr.open_dataset(self.path, engine="nczarr", **RAW)
        return raw.variables, raw.attrs


class Nczarr:
    engine = "nczarr"
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

    # They expect a warning that dask's text is loaded; ours is written block by block.
    def test_string_object_warning(self, monkeypatch):
        monkeypatch.setattr(pytest, "warns", lambda *_, **__: contextlib.nullcontext())
        super().test_string_object_warning()

    def test_to_zarr_append_compute_false_roundtrip(self, monkeypatch):
        parent = super()
        if hasattr(parent, "test_to_zarr_append_compute_false_roundtrip"):
            monkeypatch.setattr(pytest, "warns", lambda *_, **__: contextlib.nullcontext())
            parent.test_to_zarr_append_compute_false_roundtrip()


class TestCFEncoded(Nczarr, suites.CFEncodedBase):
    pass


class TestNetCDF4(Nczarr, suites.NetCDF4Base):
    """The tests of netCDF4's suite that write and read by xarray alone."""

    # They make or read their files with netCDF4 or h5netcdf itself.
    test_open_group = test_open_subgroup = test_create_default_indexes = None
    test_encoding_enum__no_fill_value = test_encoding_enum__multiple_variable_with_enum = None
    test_encoding_enum__error_multiple_variable_with_changing_enum = None
    test_encoding_masked_arrays = None
    # It copies the file.
    test_refresh_from_disk = None
    # Bytes that are no text cannot be in JSON.
    test_byte_attrs = None
    # Our strings come out as objects, those of netCDF4 as fixed-width texts.
    test_encoding_kwarg_vlen_string = None


@pytest.mark.filterwarnings("ignore:variable .* has data in the form of a dask array")
class TestZarr(Nczarr, suites.ZarrBase):
    """zarr's suite with `to_zarr` and `open_zarr` being ours; some of it reads with zarr itself."""

    version_kwargs = {}  # noqa: RUF012

    @pytest.fixture(autouse=True)
    def _ours(self, monkeypatch):
        def to_zarr(dataset, store, mode=None, **options):
            mode = {} if mode is None else {"mode": mode}
            version = zarr.config.get("default_zarr_format")
            if version == 3 and options.get("consolidated") is None:
                options["consolidated"] = True  # zarr warns when it reads a store without
            return xr_nczarr.to_nczarr(
                dataset, store, dialect="zarr", zarr_format=version, **mode, **options
            )

        def open_zarr(store, chunks={}, **options):  # noqa: B006
            return xr.open_dataset(store, engine="nczarr", chunks=chunks, **options)

        monkeypatch.setattr(xr.Dataset, "to_zarr", to_zarr)
        monkeypatch.setattr(xr, "open_zarr", open_zarr)

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

    # They look for zarr's own objects and keys in the encoding, or into its ZarrStore.
    test_chunk_encoding = test_shard_encoding = test_compressor_encoding = None
    test_hidden_zarr_keys = test_dimension_names = None
    test_zarr_fill_value_in_encoding_on_read = None
    # Blocks that straddle chunks or shards are aligned, not refused.
    test_chunk_encoding_with_dask = test_shard_encoding_with_dask = None
    # Its texts: of an error, and of a warning that we have no reason for.
    test_non_existent_store = test_read_non_consolidated_warning = None
    # Longer strings can be appended to strings of variable length, and what overlaps is refused.
    test_append_string_length_mismatch_raises = None
    # Coordinates that differ are refused, not overwritten.
    test_append_with_append_dim_no_overwrite = None
    # JSON objects are read as their text: netCDF has no such attributes.
    test_attributes = None
    # The array's fill value is its _FillValue, as in netCDF; `fill_value` is an encoding of both
    # versions.
    test_zarr_fill_value_setting = None
