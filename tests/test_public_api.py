"""The public names and signatures: a change here is a change for users, and for the changelog."""

import doctest
import inspect
import pickle
import subprocess
import sys

import pytest

import xr_nczarr
from xr_nczarr.backend.entrypoint import DECODE_DEFAULTS
from xr_nczarr.options import OPEN_OPTIONS


def test_the_public_names_are_these():
    assert sorted(xr_nczarr.__all__) == [
        "AccessDeniedError",
        "ChunkError",
        "ConflictError",
        "ExistsError",
        "LimitError",
        "MetadataError",
        "MissingChunkError",
        "NczarrError",
        "NotFoundError",
        "Overview",
        "ReferenceSetError",
        "RefusedError",
        "StorageConnectionError",
        "StorageError",
        "StorageTimeoutError",
        "UnsupportedError",
        "consolidate",
        "copy",
        "dump",
        "explain",
        "info",
        "open_hierarchy",
        "references",
        "to_nczarr",
        "upgrade",
        "verify",
    ]
    for name in xr_nczarr.__all__:
        assert inspect.getdoc(getattr(xr_nczarr, name))


def test_the_public_names_are_completed_and_helped_before_they_are_imported():
    code = "import xr_nczarr; assert {*xr_nczarr.__all__} <= {*dir(xr_nczarr)}"
    code += "; import pydoc; page = pydoc.plain(pydoc.render_doc(xr_nczarr))"
    code += "; assert 'to_nczarr(obj' in ''.join(page.split())"  # Python 3.13 folds signatures
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("name", xr_nczarr.__all__)
def test_the_examples_of_the_public_functions_are_true(name):
    found = doctest.DocTestFinder(recurse=False).find(getattr(xr_nczarr, name), name)
    for example in found:
        assert doctest.DocTestRunner().run(example).failed == 0


@pytest.mark.parametrize("name", [name for name in xr_nczarr.__all__ if name.endswith("Error")])
def test_an_error_travels_to_another_process_with_all_that_it_says(name):
    fields = {"remedy": "r", "store": "s", "key": "k", "place": "p", "variable": "/v"}
    error = getattr(xr_nczarr, name)("problem", chunk=(1, 2), **fields)
    error.problem = "another"
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (str(again), vars(again)) == (str(error), vars(error))


def test_the_options_of_opening_are_these():
    assert OPEN_OPTIONS == (
        "group",
        "storage_options",
        "missing_status",
        "retry",
        "consolidated",
        "zarr_format",
        "on_unsupported",
        "missing_chunks",
        "use_zarr_fill_value_as_mask",
        "data_type_fallback",
        "assume_endian",
        "codecs",
        "allow_pickle",
        "follow_symlinks",
        "trust",
        "threads",
        "max_chunk_bytes",
        "max_item_bytes",
        "max_metadata_bytes",
        "max_consolidated_bytes",
        "max_nodes",
        "max_depth",
        "max_references",
        "max_index_bytes",
    )
    assert tuple(DECODE_DEFAULTS) == (
        "mask_and_scale",
        "decode_times",
        "concat_characters",
        "decode_coords",
        "drop_variables",
        "use_cftime",
        "decode_timedelta",
    )


def test_the_signature_of_writing_is_this():
    assert list(inspect.signature(xr_nczarr.to_nczarr).parameters)[:21] == [
        "obj",
        "target",
        "mode",
        "group",
        "encoding",
        "unlimited_dims",
        "compute",
        "consolidated",
        "append_dim",
        "region",
        "safe_chunks",
        "align_chunks",
        "write_empty_chunks",
        "zarr_format",
        "dialect",
        "storage_options",
        "progress",
        "chunkmanager_store_kwargs",
        "sync",
        "atomic",
        "allow_duplicates",
    ]


def test_importing_the_package_imports_neither_zarr_nor_dask():
    code = "import sys, xr_nczarr; print([n for n in ('zarr', 'dask') if n in sys.modules])"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "imports",
    [
        "import xr_nczarr; import xarray as xr",
        "import xarray as xr; import xr_nczarr",
        "from xr_nczarr import to_nczarr; import xarray as xr",
        "import xr_nczarr.errors; import xarray as xr",
    ],
)
def test_the_accessor_is_there_whatever_is_imported_first(imports):
    code = f"{imports}; ds = xr.Dataset({{'a': 1}}); store = {{}}; ds.nczarr.to_nczarr(store)"
    code += "; xr.DataTree(ds).nczarr, ds.a.nczarr; assert '.zgroup' in store"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_functions_for_reference_sets_are_there_after_importing_the_package():
    code = "import xr_nczarr; xr_nczarr.references.write, xr_nczarr.references.expand"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("module", ["xr_nczarr", "xr_nczarr.backend.entrypoint"])
def test_importing_the_engine_imports_nothing_that_reads(module):
    """xarray imports the entry points of all engines, whichever it is asked for."""
    rooms = [f"xr_nczarr.{room}" for room in ("storage", "chunks", "hierarchy", "references")]
    code = f"import sys, xarray, {module}; print([n for n in {rooms} if n in sys.modules])"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert run.stdout.strip() == "[]"
