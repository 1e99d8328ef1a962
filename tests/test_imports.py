"""The modules that a new process imports, and the accessor after any order of imports."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import xr_nczarr

HEAVY = ("numpy", "xarray", "pandas", "dask", "jinja2", "aiohttp", "s3fs", "pyarrow", "netCDF4")
HEAVY += ("zarr", "obstore", "icechunk", "xr_nczarr.references.opening")
COMMANDS = {
    "info": ("info",),
    "metadata": ("info", "--metadata"),
    "dump": ("dump",),
    "header": ("dump", "-h"),
    "verify": ("verify",),
    "readers": ("verify", "--readers"),
    "explain": ("explain", "--select", "x=1:3"),
    "upgrade": ("upgrade", "--dialect", "nczarr-4.8.1"),
    "consolidate": ("consolidate",),
}


def output_of(code, *arguments, folder=None):
    """Run Python code in a new interpreter in which warnings are errors."""
    root = str(Path(xr_nczarr.__file__).parents[1])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-W", "error", "-c", code, *map(str, arguments)]
    result = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=100,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def imported_by(code, *arguments):
    shown = f"\nimport sys; print(*(set({HEAVY!r}) & sys.modules.keys()))"
    return set(output_of(code + shown, *arguments).splitlines()[-1].split())


@pytest.fixture
def store(tmp_path):
    times = xr.date_range("2026-01-01", periods=4, unit="s")
    dataset = xr.Dataset(
        {"v": ("x", np.arange(4.0)), "name": ("x", list("abcd")), "t": ("x", times)}
    )
    xr_nczarr.to_nczarr(dataset, tmp_path / "store")
    return tmp_path / "store"


ACCESSORS = """
for each in (xarray.Dataset(), xarray.DataArray(1), xarray.DataTree()):
    assert "xr_nczarr methods" in repr(each.nczarr)
assert not [finder for finder in sys.meta_path if "xr_nczarr" in type(finder).__module__]
"""
ORDERS = {
    "xarray first": "import sys, xarray, xr_nczarr",
    "xr_nczarr first": "import sys, xr_nczarr; import xarray as xr; import xarray",
    "a name of xr_nczarr": "import sys\nfrom xr_nczarr import to_nczarr\nimport xarray",
    "a submodule of xarray": "import sys, xr_nczarr, xarray.core.dataset; import xarray",
    "import_module": "import sys, xr_nczarr, importlib\nxarray = importlib.import_module('xarray')",
    "xarray is looked up before": """
import sys, xr_nczarr, importlib.util
for _ in range(3):
    assert importlib.util.find_spec("xarray") is not None
assert "xarray" not in sys.modules
import xarray""",
    "both are reloaded": """
import sys, importlib, xr_nczarr
importlib.reload(xr_nczarr)
import xarray
importlib.reload(xarray)
importlib.reload(xr_nczarr)""",
    "threads": """
import sys, threading, importlib
start = threading.Barrier(8)
def load(name):
    start.wait()
    importlib.import_module(name)
names = ["xarray", "xr_nczarr"] * 4
threads = [threading.Thread(target=load, args=[name]) for name in names]
[thread.start() for thread in threads], [thread.join() for thread in threads]
import xarray""",
    "threads import xarray": """
import sys, threading, importlib, xr_nczarr
start = threading.Barrier(8)
def load():
    start.wait()
    import xarray
    assert xarray.Dataset.nczarr
threads = [threading.Thread(target=load) for _ in range(8)]
[thread.start() for thread in threads], [thread.join() for thread in threads]
import xarray""",
    "LazyLoader": """
import sys, importlib.util, xr_nczarr
spec = importlib.util.find_spec("xarray")
spec.loader = importlib.util.LazyLoader(spec.loader)
sys.modules["xarray"] = xarray = importlib.util.module_from_spec(spec)
spec.loader.exec_module(xarray)""",
}


@pytest.mark.parametrize("order", ORDERS)
def test_xarray_objects_have_accessor_regardless_of_import_order(order):
    output_of(ORDERS[order] + ACCESSORS)


def test_opened_dataset_has_accessor_even_if_xr_nczarr_is_not_imported(store):
    code = "import sys, xarray\nds = xarray.open_dataset(sys.argv[1], engine='nczarr')\n"
    output_of(code + "assert 'opened from' in repr(ds.nczarr)", store)


def test_accessor_is_registered_even_if_first_xarray_import_failed(tmp_path):
    folder = tmp_path / "xarray"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise ImportError('half installed')")
    code = """
import sys, xr_nczarr
sys.path.insert(0, sys.argv[1])
try:
    import xarray
except ImportError as error:
    assert str(error) == "half installed"
sys.path.remove(sys.argv[1])
import xarray
"""
    output_of(code + ACCESSORS, tmp_path)


def test_info_works_without_xarray(store):
    code = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("xarray", "dask", "pandas", "jinja2"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
import xr_nczarr
print(xr_nczarr.info(sys.argv[1]))
"""
    assert "v(x)" in output_of(code, store)


def test_importing_xr_nczarr_imports_no_heavy_dependencies():
    assert imported_by("import xr_nczarr") == set()


def test_importing_xr_nczarr_makes_references_module_available():
    output_of("import xr_nczarr; xr_nczarr.references.write, xr_nczarr.references.expand")


@pytest.mark.parametrize("module", ["xr_nczarr", "xr_nczarr.backend.entrypoint"])
def test_importing_engine_does_not_import_layers_that_read_stores(module):
    """xarray imports the entry points of all engines, no matter which engine is used."""
    layers = {f"xr_nczarr.{name}" for name in ("storage", "chunks", "hierarchy", "references")}
    code = f"import sys, xarray, {module}; print(*({layers} & sys.modules.keys()))"
    assert output_of(code).strip() == ""


def test_help_option_imports_no_heavy_dependencies():
    code = """
from xr_nczarr.cli.main import main
try:
    main(["--help"])
except SystemExit:
    pass
"""
    assert imported_by(code) == set()


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_import_neither_xarray_nor_dask(command, store):
    name, *arguments = COMMANDS[command]
    code = "import sys\nfrom xr_nczarr.cli.main import main\nassert main(sys.argv[1:]) == 0"
    assert imported_by(code, name, store, *arguments) == {"numpy"}


def test_commands_on_reference_set_do_not_import_jinja2(store, tmp_path):
    xr_nczarr.references.write(store, tmp_path / "set.json")
    code = "import sys\nfrom xr_nczarr.cli.main import main\nassert main(sys.argv[1:]) == 0"
    expected = {"numpy", "xr_nczarr.references.opening"}
    assert imported_by(code, "info", tmp_path / "set.json") == expected


def test_opening_dataset_imports_only_libraries_imported_by_xarray(store):
    # xarray itself imports dask when it decodes times, and when it makes an index. The engines of
    # other packages can import zarr.
    code = "import sys, xarray\nds = xarray.open_dataset(sys.argv[1], engine='nczarr'"
    expected = imported_by("import xarray; xarray.backends.list_engines()")
    assert "dask" not in expected
    assert imported_by(code + ", decode_times=False)", store) == expected
    assert imported_by(code + ", decode_times=False).load()", store) == expected


def test_opening_dataset_with_chunks_argument_imports_dask(store):
    code = "import sys, xarray\nds = xarray.open_dataset(sys.argv[1], engine='nczarr', chunks={})"
    assert "dask" in imported_by(code + "\nassert ds.v.data.sum().compute() == 6", store)


def test_explain_returns_same_result_with_and_without_xarray(store):
    code = "import sys, json, xr_nczarr\n{}print(json.dumps(xr_nczarr.explain({}).as_dict()))"
    plain = output_of(code.format("", "sys.argv[1]"), store)
    opened = "xarray.open_dataset(sys.argv[1], engine='nczarr', decode_cf=False)"
    lazy = output_of(code.format("import xarray\n", opened), store)
    by_name = [
        {reading["name"]: reading for reading in json.loads(text)["readings"]}
        for text in (plain, lazy)
    ]
    assert by_name[0].keys() == {"v", "name", "t"}
    assert by_name[0] == by_name[1]
