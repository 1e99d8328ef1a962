"""The layers and their imports, in the source files and in the documentation."""

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from xr_nczarr.formats import FORMATS

PACKAGE = Path(__file__).parent.parent / "xr_nczarr"
PAGE = PACKAGE.parent / "docs" / "architecture.md"

BELOW = ("netcdf", "codecs", "storage", "model")

# The layers that every layer may import.
FOR_ALL = {"errors", "locks", "progress"}

# Each layer, and the other layers that it may import. The page has the same table.
LAYERS = {
    "locks": set(),
    "progress": set(),
    "errors": set(),
    "model": set(),
    "formats": {"model"},
    "codecs": {"model"},
    "netcdf": {"formats", "model"},
    "storage": {"model"},
    "hierarchy": {"formats", "storage", "model"},
    "chunks": {"codecs", "storage", "model"},
    "references": {"hierarchy", "formats", "netcdf", "codecs", "storage", "model"},
    "options": {"chunks", "formats", "storage", "model"},
    "dataset": {"options", "references", "chunks", "hierarchy", "formats"} | {*BELOW} - {"codecs"},
    "backend": {"dataset", "options", "chunks", *BELOW},
    "encoding": {"backend", "hierarchy", "formats"} | {*BELOW} - {"storage"},
    "writing": {"encoding", "backend", "dataset", "options", "chunks", "hierarchy", "formats"}
    | {*BELOW},
    "tools": {"writing", "backend", "dataset", "options", "chunks", "hierarchy", "formats", *BELOW},
    "copying": {"tools", "writing", "encoding", "backend", "dataset", "options", "chunks"}
    | {"hierarchy", "formats", *BELOW},
    "accessor": {"tools", "writing", "backend"},
    "__init__": {"accessor", "copying", "tools", "writing", "references", "storage", "model"},
    "cli": {"__init__", "options", "formats"},
    "__main__": {"cli"},
}

# Libraries, and the layers that may use them. The page has the same table.
LIBRARIES = {
    "numcodecs": {"codecs"},
    "deflate": {"codecs"},
    "zstandard": {"codecs"},
    "zarr": {"codecs", "storage"},
    "obstore": {"storage"},
    "ml_dtypes": {"formats"},
    "fsspec": {"storage", "references"},
    "s3fs": {"storage"},
    "adlfs": {"storage"},
    "botocore": {"storage"},
    "aiohttp": {"storage"},
    "zipfile": {"storage"},
    "jinja2": {"references", "tools"},
    "pyarrow": {"references"},
    "fastparquet": {"references"},
    "xarray": {"accessor", "backend", "encoding", "writing", "copying", "tools", "cli"},
    "dask": {"accessor", "backend", "writing"},
    "asyncio": {"backend", "storage"},
    "netCDF4": {"copying"},
    "tqdm": {"progress"},
}

FILES = sorted(PACKAGE.rglob("*.py"))
ALIAS = re.compile(r"_?[A-Z][a-z]\w+")


def layer_of(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def tree_of(path):
    return ast.parse(path.read_text())


def imports(path):
    """Yield the name of every import, including imports within functions and by `import_module`."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
            ("import_module", "__import__")
        ):
            yield from called(path, node.args[0])


def called(path, name):
    """Yield the modules that a call of `import_module` can import.

    If the argument is not a constant, the file must be an `__init__.py` with a table of modules.
    """
    if isinstance(name, ast.Constant):
        yield name.value
        return
    assert path.name == "__init__.py", f"{path}: imports {ast.unparse(name)}"
    for node in tree_of(path).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_LAZY":
            yield from (f"xr_nczarr.{module}" for module in ast.literal_eval(node.value))


def layers_in(name):
    """Return the layers to which an imported name belongs.

    A name that an `__init__.py` re-exports also belongs to the layer that defines it.
    """
    package, *parts = name.split(".")
    if package != "xr_nczarr":
        return set()
    if not parts:
        return {"__init__"}
    file = PACKAGE.joinpath(*parts)
    if file.is_dir() or file.with_suffix(".py").exists():
        return {parts[0]}
    holder = file.parent / "__init__.py" if file.parent.is_dir() else file.parent.with_suffix(".py")
    layers = {"__init__"} if holder.parent == PACKAGE and len(parts) == 1 else {parts[0]}
    for node in tree_of(holder).body:
        if isinstance(node, ast.ImportFrom):
            names = [alias.asname or alias.name for alias in node.names]
            if parts[-1] in names:
                layers |= layers_in(f"{node.module}.{parts[-1]}")
    return layers


def test_layers_import_only_lower_layers():
    offenders = [
        (str(path), name)
        for path in FILES
        for name in imports(path)
        if layers_in(name) - LAYERS[layer_of(path)] - {layer_of(path)} - FOR_ALL
    ]
    assert not offenders


def test_layer_table_lists_only_imported_layers():
    imported = {layer: set() for layer in LAYERS}
    for path in FILES:
        imported[layer_of(path)].update(*map(layers_in, imports(path)))
    assert {layer: below - imported[layer] for layer, below in LAYERS.items()} == {
        layer: set() for layer in LAYERS
    }


def test_layers_have_no_circular_dependencies():
    left = {layer: below & LAYERS.keys() for layer, below in LAYERS.items()}
    while free := [layer for layer, below in left.items() if not below & left.keys()]:
        for layer in free:
            del left[layer]
    assert not left


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import xr_nczarr", {"__init__"}),
        ("from xr_nczarr import to_nczarr", {"__init__"}),
        ("from xr_nczarr import references", {"references"}),
        ("from xr_nczarr.chunks.array import Store", {"chunks", "storage"}),
        ("def f():\n    from xr_nczarr.tools import cdl", {"tools"}),
        ("import_module('xr_nczarr.tools.cdl')", {"tools"}),
    ],
    ids=["bare", "from the package", "a package", "re-exported", "in a function", "import_module"],
)
def test_architecture_check_detects_every_kind_of_import(tmp_path, source, expected):
    path = tmp_path / "module.py"
    path.write_text(source)
    assert set().union(*map(layers_in, imports(path))) == expected


def test_libraries_are_imported_only_in_their_layers():
    offenders = [
        (str(path), name)
        for path in FILES
        for name in imports(path)
        if layer_of(path) not in LIBRARIES.get(name.split(".")[0], LAYERS)
    ]
    assert not offenders


def compared_versions(path):
    for node in ast.walk(tree_of(path)):
        operands = []
        if isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "startswith":
            operands = node.args
        for operand in operands:
            items = getattr(operand, "elts", [operand])
            yield from (item.value for item in items if getattr(item, "value", None) in FORMATS)


def test_zarr_versions_are_compared_only_in_formats_layer():
    offenders = [
        (str(path), version)
        for path in FILES
        if layer_of(path) != "formats"
        for version in compared_versions(path)
    ]
    assert not offenders


def test_storage_layer_mentions_reference_sets_only_to_parse_their_urls():
    known = re.compile(r"\breference:|[\"']reference[\"']|reference_\w|Reference[A-Z]|kerchunk")
    files = [path for path in FILES if layer_of(path) == "storage"]
    assert [path.name for path in files if known.search(path.read_text())] == ["location.py"]


def test_modules_of_zarr_versions_are_imported_only_in_formats_layer():
    versions = re.compile(r"xr_nczarr\.formats\.v[0-9]")
    offenders = [
        (str(path), name)
        for path in FILES
        if layer_of(path) != "formats"
        for name in imports(path)
        if versions.match(name)
    ]
    assert not offenders


def test_only_one_storage_module_depends_on_operating_system():
    asking = re.compile(r"sys\.platform|os\.name\b|fcntl|msvcrt|ctypes|(?:has|get)attr\(os\b")
    result = {str(path.relative_to(PACKAGE)) for path in FILES if asking.search(path.read_text())}
    # Other modules use `os` for forks and processor counts, and `ctypes` for netcdf-c.
    others = {"locks.py", "chunks/array.py"}
    others |= {f"copying/netcdf_{name}.py" for name in ("c", "input", "output")}
    assert result == {"storage/system.py", *others}


def test_no_package_file_exceeds_500_lines():
    assert not [str(path) for path in FILES if len(path.read_text().splitlines()) > 500]


def test_names_of_classes_and_type_aliases_are_unique():
    names = [
        (node.name, str(path))
        for path in FILES
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ClassDef)
    ]
    # The same alias may be defined in several modules.
    names += {
        (ast.unparse(node.targets[0]), ast.unparse(node.value))
        for path in FILES
        for node in tree_of(path).body
        if isinstance(node, ast.Assign) and ALIAS.fullmatch(ast.unparse(node.targets[0]))
    }
    repeated = {name for name, number in Counter(name for name, _ in names).items() if number > 1}
    assert repeated == set()


def test_names_of_package_files_are_unique():
    names = Counter(path.name for path in FILES if path.name != "__init__.py")
    assert {name for name, number in names.items() if number > 1} == set()


@pytest.mark.parametrize("layer", sorted({layer_of(path) for path in FILES} - {"__init__"}))
def test_files_within_layer_have_no_circular_imports(layer):
    files = {f"xr_nczarr.{layer}.{path.stem}": path for path in (PACKAGE / layer).glob("*.py")}
    left = {
        name: {
            other
            for other in files
            if any(f"{item}.".startswith(f"{other}.") for item in imports(path))
        }
        for name, path in files.items()
    }
    while free := [name for name, needed in left.items() if not needed & left.keys()]:
        for name in free:
            del left[name]
    assert not left


def test_layer_table_lists_every_layer():
    assert {layer_of(path) for path in FILES} == set(LAYERS)


def table_of(heading):
    """Return the rows of the table below a heading of the page, without the header row."""
    section = PAGE.read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    cells = [[re.findall(r"`(\w+)`", cell) for cell in row] for row in rows[2:]]
    return {name: set(layers) for names, layers in cells for name in names}


def test_tables_on_architecture_page_match_code():
    assert table_of("Allowed imports") == LAYERS
    assert table_of("Libraries of each layer") == LIBRARIES


def test_architecture_page_lists_each_layer_above_the_layers_that_it_imports():
    table = PAGE.read_text().partition("| --- | --- | --- |\n")[2].partition("\n\n")[0]
    rows = [re.findall(r"`(\w+)(?:/|\.py)`", row.split("|")[1]) for row in table.splitlines()]
    heights = {layer: -number for number, layers in enumerate(rows) for layer in layers}
    assert heights.keys() == LAYERS.keys() - {"__init__", "__main__"}
    for layer in heights.keys() - {"cli"}:  # which imports the package as users do
        assert all(heights[lower] <= heights[layer] for lower in LAYERS[layer])
