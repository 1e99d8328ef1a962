"""The rooms and who may enter them: read from the files' own imports."""

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "xr_nczarr"

BELOW = ("codecs", "storage", "references", "model", "errors")

# Each room, and the rooms it may import from. `docs/architecture.md` shows the same table.
ROOMS = {
    "locks": set(),  # that all may enter
    "errors": set(),
    "model": {"errors"},
    "formats": {"model", "errors"},
    "codecs": {"model", "errors"},
    "references": {"model", "errors"},
    "netcdf": {"model", "errors"},
    "storage": {"references", "codecs", "model", "errors"},
    "hierarchy": {"formats", "storage", "model", "errors"},
    "chunks": {"codecs", "storage", "model", "errors"},
    "backend": {"netcdf", "hierarchy", "chunks", *BELOW},
    "writing": {"backend", "netcdf", "hierarchy", "chunks", *BELOW},
    "tools": {"writing", "backend", "netcdf", "hierarchy", "chunks", *BELOW},
    "cli": {"tools", "writing", "backend", "netcdf", "hierarchy", "chunks", *BELOW},
    "__init__": {"tools", "writing", "backend", "references", "model", "errors"},
    "__main__": {"cli"},
}

# Libraries, and the rooms that may use them.
LIBRARIES = {
    "numcodecs": {"codecs"},
    "deflate": {"codecs"},
    "zarr": {"codecs"},
    "ml_dtypes": {"formats"},
    "fsspec": {"storage"},
    "s3fs": {"storage"},
    "zipfile": {"storage"},
    "jinja2": {"references"},
    "xarray": {"backend", "writing", "tools", "cli"},
    "dask": {"backend", "writing"},
    "asyncio": {"backend"},
}


def room_of(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_run_one_way(path):
    room = room_of(path)
    for name in imports(path):
        if name.startswith("xr_nczarr."):
            other = name.split(".")[1]
            allowed = {room, "locks", *ROOMS[room]}
            assert other in allowed or other not in ROOMS, f"{room} → {other}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_library_stays_in_its_room(path):
    for name in imports(path):
        rooms = LIBRARIES.get(name.split(".")[0])
        assert rooms is None or room_of(path) in rooms, f"{name} belongs to {rooms}"


def test_one_module_knows_the_operating_system():
    asking = re.compile(r"sys\.platform|os\.name\b|fcntl|msvcrt|ctypes|(?:has|get)attr\(os\b")
    found = {str(path.relative_to(PACKAGE)) for path in FILES if asking.search(path.read_text())}
    # What forks and counts processors knows no files, and netcdf-c is no operating system.
    others = {"locks.py", "chunks/array.py", "tools/netcdf_c.py"}
    assert found == {"storage/system.py", *others}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_file_is_longer_than_500_lines(path):
    assert len(path.read_text().splitlines()) <= 500


@pytest.mark.parametrize("room", ["tools", "cli"])
def test_no_two_files_of_a_room_need_each_other(room):
    files = {f"xr_nczarr.{room}.{path.stem}": path for path in (PACKAGE / room).glob("*.py")}
    left = {name: files.keys() & set(imports(path)) for name, path in files.items()}
    while free := [name for name, needed in left.items() if not needed & left.keys()]:
        for name in free:
            del left[name]
    assert not left


def test_every_room_is_in_the_table():
    rooms = {room_of(path) for path in FILES}
    assert rooms <= set(ROOMS)


def test_the_architecture_page_shows_every_room():
    page = (PACKAGE.parent / "docs" / "architecture.md").read_text()
    for room in {room_of(path) for path in FILES} - {"__init__", "__main__"}:
        assert f"{room}" in page
