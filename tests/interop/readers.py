"""Measure which programs can read which stores, for every layout and every type of content.

``python -m tests.interop.readers`` measures this and writes the tables into the documentation.
`test_reader_tables` measures it again and compares the results. Each netCDF4 wheel contains one
release of netCDF-C, so ``NCZARR_NETCDF4`` can list Python interpreters that have other wheels
installed.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import tensorstore
import xarray as xr
import zarr

from xr_nczarr import NczarrError, to_nczarr

PAGE = Path(__file__).parents[2] / "docs/reference/readers.md"
LAYOUTS = {
    "2 `nczarr`": ("2", "nczarr"),
    "2 `universal`": ("2", "universal"),
    "2 `nczarr-4.8.1`": ("2", "nczarr-4.8.1"),
    "2 `zarr`": ("2", "zarr"),
    "3 `nczarr`": ("3", "nczarr"),
    "3 `zarr`": ("3", "zarr"),
    "3-draft `nczarr`": ("3-draft", "nczarr"),
    "3-draft `zarr`": ("3-draft", "zarr"),
    "1 `zarr`": ("1", "zarr"),
}
FIELD = np.arange(12, dtype="f4").reshape(3, 4) / 4
TEXTS = np.array(["a", "", "émile"], object)
LETTERS = np.array([b"ab", b"cd", b"ef"])
LATIN = np.array([b"ab", b"c\xe9", b"ef"])
ZLIB = {"zlib": True, "shuffle": False}
CONTENTS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "numbers": (("time", "x"), FIELD, {}),
    "integers": (("time", "x"), np.arange(12, dtype="i4").reshape(3, 4), {}),
    "zlib": (("time", "x"), FIELD, ZLIB),
    "zlib + shuffle": (("time", "x"), FIELD, ZLIB | {"shuffle": True}),
    "zstd": (("time", "x"), FIELD, {"compression": "zstd", "shuffle": False}),
    "blosc": (("time", "x"), FIELD, {"compression": "blosc_lz4"}),
    "fletcher32": (("time", "x"), FIELD, {"fletcher32": True}),
    "strings": (("time",), TEXTS, {}),
    "characters": (("time",), LETTERS, {}),
    "non-ASCII characters": (("time",), LATIN, {}),
    "a scalar": ((), np.float32(2.5), {}),
    "a group": (("time", "x"), FIELD, {}),
}
Reader = Callable[[Path, str], Any]
Stores = dict[tuple[str, str], tuple[Path, str]]
MARKS = ("<!-- measured -->", "<!-- end -->")
HEADER = "| Layout (Zarr version and dialect) | Not read | Wrong values |"
NOTHING = "–"
EVERYTHING = "everything"


def write(folder: Path, layout: str, content: str) -> tuple[Path, str]:
    """Write a variable with this content, and return the paths of the store and the variable."""
    dims, values, encoding = CONTENTS[content]
    zarr_format, dialect = LAYOUTS[layout]
    is_text = content in ("strings", "characters", "non-ASCII characters")
    encoding = {} if is_text else {"_FillValue": None, **encoding}
    if dims[1:]:
        encoding["chunks"] = (2, 4) if zarr_format != "1" else (3, 4)
    path = folder / "store"
    group = "g" if content == "a group" else None
    dataset = xr.Dataset({"v": (dims, values)})
    unlimited = ["time"] if dialect != "nczarr-4.8.1" and zarr_format != "1" else []
    options: dict[str, Any] = {"zarr_format": zarr_format, "dialect": dialect}
    to_nczarr(
        dataset,
        path,
        group=group,
        encoding={"v": encoding},
        unlimited_dims=[name for name in unlimited if name in dims],
        **options,
    )
    if zarr_format == "1":
        return path, ""
    return path, "g/v" if group else "v"


# ---- the readers: each returns the values of a variable, or raises -------------------------------


def by_netcdf4(path: Path, name: str) -> Any:
    with netCDF4.Dataset(f"file://{path}#mode=nczarr,file") as file:
        file.set_auto_maskandscale(False)
        values = np.asarray(file[name or "v"][...])
        return netCDF4.chartostring(values, "bytes") if values.dtype == "S1" else values


def by_netcdf4_of(python: str) -> Reader:
    """Return a reader that uses the netCDF4 of another Python interpreter."""
    program = """
import sys, json, netCDF4, numpy
with netCDF4.Dataset(sys.argv[1]) as root:
    root.set_auto_maskandscale(False)
    values = numpy.asarray(root[sys.argv[2]][...])
    characters = values.dtype == "S1"
    values = netCDF4.chartostring(values, "latin1") if characters else values
    print(json.dumps([characters, values.tolist()]))
"""

    def read(path: Path, name: str) -> Any:
        url = f"file://{path}#mode=nczarr,file"
        characters, values = json.loads(run(python, "-I", "-c", program, url, name or "v"))
        return np.array([item.encode("latin1") for item in values] if characters else values)

    return read


def by_ncdump(path: Path, name: str) -> Any:
    """Return the numbers or strings in the CDL that ncdump prints."""
    cdl = run("ncdump", "-v", name or "v", f"file://{path}#mode=nczarr,file")
    data = re.search(r"\n +v = *(.*?) ;", cdl.partition("data:")[2], re.S)
    assert data is not None
    words = [word.strip() for word in data[1].replace("\n", " ").split(",")]
    if words[0].startswith('"'):
        return np.array([json.loads(word) for word in words], object)
    return np.array(words, "f8")


def by_zarr(path: Path, name: str) -> Any:
    if not name:
        return zarr.open_array(path, mode="r")[...]
    return zarr.open_group(path, mode="r")[name][...]


def by_xarray(path: Path, name: str) -> Any:
    group = name.rpartition("/")[0] or None
    with xr.open_dataset(path, engine="zarr", group=group, chunks=None) as dataset:
        return dataset["v"].values


def by_zarrs(path: Path, name: str = "") -> Any:
    """Return the values that zarr-python reads with the codec pipeline of zarrs."""
    with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
        return zarr.open_array(path / name, mode="r")[...]


def by_tensorstore(path: Path, name: str = "") -> Any:
    driver = "zarr3" if (path / name / "zarr.json").exists() else "zarr"
    spec = {"driver": driver, "kvstore": {"driver": "file", "path": f"{path / name}/"}}
    return tensorstore.open(spec, read=True).result().read().result()


def by_gdal(path: Path, name: str) -> Any:
    """Return the values that GDAL's multidimensional interface prints."""
    url = f'ZARR:"{path}"'
    printed = json.loads(run("gdalmdiminfo", "-detailed", "-array", f"/{name or path.name}", url))
    return np.array(printed["values"])


def run(*command: str) -> str:
    # In this process, netCDF4 sets the plugin path to plugins that other programs cannot use.
    environment = {name: value for name, value in os.environ.items() if "PLUGIN" not in name}
    options: dict[str, Any] = {"capture_output": True, "text": True, "errors": "surrogateescape"}
    ended = subprocess.run(command, **options, env=environment, timeout=60, check=False)
    if ended.returncode:
        raise RuntimeError(ended.stderr or f"ended with {ended.returncode}")
    return ended.stdout


@cache
def _version_of(*command: str) -> str | None:
    """Return the version of a program, or None if it is not installed."""
    if shutil.which(command[0]) is None:
        return None
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    result = re.search(r"\d+\.\d+\.\d+", ended.stdout + ended.stderr)
    return result[0] if result else None


READERS: dict[str, tuple[Reader, Callable[[], str | None]]] = {
    "netCDF-C (ncdump)": (by_ncdump, lambda: _version_of("ncdump", "-?")),
    "netCDF-C (netCDF4)": (by_netcdf4, lambda: netCDF4.__netcdf4libversion__),
    "xarray's zarr engine": (by_xarray, lambda: version("xarray")),
    "zarr-python": (by_zarr, lambda: version("zarr")),
    "tensorstore": (by_tensorstore, lambda: version("tensorstore")),
    "GDAL": (by_gdal, lambda: _version_of("gdalinfo", "--version")),
}
for other in os.environ.get("NCZARR_NETCDF4", "").split():
    ask = "import netCDF4; print(netCDF4.__version__, netCDF4.__netcdf4libversion__)"
    wheel, release = run(other, "-I", "-c", ask).split()
    READERS[f"netCDF-C (netCDF4 {wheel})"] = (by_netcdf4_of(other), lambda release=release: release)


# ---- the results ---------------------------------------------------------------------------------


def verdict(reader: Reader, path: Path, name: str, expected: Any) -> str:
    """Return ``right`` or ``wrong`` for the values that a reader returns.

    Return ``refused`` if the reader raises an error.
    """
    try:
        result = np.asarray(reader(path, name))
    except Exception:  # readers raise errors of many classes
        return "refused"
    expected = np.asarray(expected)
    if result.dtype.kind in "OSUTV" or expected.dtype.kind in "OS":
        texts, meant = ([as_bytes(item) for item in a.ravel().tolist()] for a in (result, expected))
        # netCDF's own programs also show characters one by one.
        return "right" if texts == meant or b"".join(texts) == b"".join(meant) else "wrong"
    same = result.size == expected.size and np.array_equal(result.ravel(), expected.ravel())
    return "right" if same else "wrong"


def as_bytes(value: Any) -> bytes:
    data = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogateescape")
    return data.rstrip(b"\0")


def write_all(folder: Path) -> Stores:
    """Write each content in each layout that can represent the content."""
    stores: Stores = {}
    for number, (layout, content) in enumerate(itertools.product(LAYOUTS, CONTENTS)):
        with contextlib.suppress(NczarrError):
            stores[layout, content] = write(folder / str(number), layout, content)
    return stores


def measured(reader: str, stores: Stores) -> list[str]:
    """Return the rows of a reader's table. Layouts with equal results share a row."""
    function, _ = READERS[reader]
    read: dict[str, dict[str, str]] = {layout: {} for layout in LAYOUTS}
    for (layout, content), (path, name) in stores.items():
        verdicts = read[layout]
        if verdicts.get("numbers") != "refused":  # the reader cannot read the layout at all
            verdicts[content] = verdict(function, path, name, CONTENTS[content][1])
    alike: dict[tuple[str, str], list[str]] = {}
    for layout, verdicts in read.items():
        alike.setdefault(summary(verdicts), []).append(layout)
    return [f"| {', '.join(layouts)} | {' | '.join(cells)} |" for cells, layouts in alike.items()]


def summary(verdicts: dict[str, str]) -> tuple[str, str]:
    """Return two table cells: the contents that are not read, and those that are read wrongly."""
    if set(verdicts.values()) == {"refused"}:
        return EVERYTHING, NOTHING
    refused, wrong = (
        ", ".join(name for name, value in verdicts.items() if value == word) or NOTHING
        for word in ("refused", "wrong")
    )
    return refused, wrong if wrong == NOTHING else f"**{wrong}**"


def section(reader: str, stores: Stores) -> str:
    """Return the section of the page that describes one reader."""
    head = [f"## {reader} {READERS[reader][1]()}", "", HEADER, "| --- | --- | --- |"]
    return "\n".join([*head, *measured(reader, stores)]) + "\n"


def sections(page: str) -> dict[str, str]:
    """Return the sections of the page by their headings."""
    begin, end = (page.index(mark) for mark in MARKS)
    return {part.partition("\n")[0]: part for part in re.findall("## [^#]*", page[begin:end])}


def matrix(parts: dict[str, str]) -> str:
    """Return a table of readers and layouts that summarizes the sections of the page."""
    verdicts = {
        heading.removeprefix("## "): {
            layout: (refused, wrong)
            for layouts, refused, wrong in re.findall(r"^\| (.*) \| (.*) \| (.*) \|$", part, re.M)
            for layout in layouts.split(", ")
        }
        for heading, part in parts.items()
    }
    columns = [
        layout for layout in LAYOUTS if any(r[layout][0] != EVERYTHING for r in verdicts.values())
    ]
    unread = [layout for layout in LAYOUTS if layout not in columns]
    lines = [
        ":::{table}\n:class: matrix\n",
        f"| | {' | '.join(columns)} |",
        "| --- |" + " --- |" * len(columns),
        *(
            f"| {reader} | {' | '.join(badge(*cells[layout]) for layout in columns)} |"
            for reader, cells in verdicts.items()
        ),
    ]
    return "\n".join(
        [
            *lines,
            ":::",
            "",
            f"None of these programs can open these layouts: {', '.join(unread)}.",
            "",
        ]
    )


def badge(refused: str, wrong: str) -> str:
    """Return the markup of a colored word that summarizes how a reader reads a layout."""
    if wrong != NOTHING:
        return "{bdg-danger}`some wrong`"
    words = {NOTHING: "{bdg-success}`all`", EVERYTHING: "{bdg-secondary}`none`"}
    return words.get(refused, "{bdg-warning}`some`")


def main() -> None:
    """Measure all installed readers, and replace their sections on the page."""
    page = PAGE.read_text()
    parts = sections(page)
    with tempfile.TemporaryDirectory() as folder:
        stores = write_all(Path(folder))
        for reader in READERS:
            if READERS[reader][1]() is not None:
                part = section(reader, stores)
                parts = {
                    head: other
                    for head, other in parts.items()
                    if not head.startswith(f"## {reader} ")
                }
                parts[part.partition("\n")[0]] = part + "\n"
    PAGE.write_text(with_parts(page, parts))


def with_parts(page: str, parts: dict[str, str]) -> str:
    """Return the page with these sections, and a summary of them, between its two marks."""
    begin, end = (page.index(mark) for mark in MARKS)
    ordered = {head: parts[head] for head in sorted(parts, key=str.casefold)}
    new = [MARKS[0], "\n\n", matrix(ordered), "\n", *ordered.values()]
    return "".join([page[:begin], *new, page[end:]])


if __name__ == "__main__":
    main()
