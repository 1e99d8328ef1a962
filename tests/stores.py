"""Write stores with every writer and in every NCZarr layout, and return their content.

netcdf-c, ncgen, zarr-python and xarray write stores in their own layouts. Layouts that no installed
program still writes are written by hand, as described by the table `VINTAGES`. All functions that
write a store create its directory.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import netCDF4
import numcodecs
import numpy as np
import xarray as xr
import zarr
import zarr.dtype

FIXTURES = Path(__file__).parent / "fixtures"

# ---- the content of a store


class Size(int):
    """The size of an unlimited dimension. The size of a fixed dimension is a plain int."""


@dataclass
class Var:
    """A variable, with its values and with the full names of its dimensions.

    `values` are the values that a reader returns: arrays of ``S1`` for characters, and of
    ``object`` for strings. `fill` pads chunks and is written to `.zarray`.
    """

    dims: tuple[str, ...]
    values: np.ndarray
    attrs: dict[str, Any] = field(default_factory=dict)
    fill: Any = None
    chunks: tuple[int, ...] = ()
    codecs: tuple[dict[str, Any], ...] = ()
    written: bool = True


@dataclass
class Group:
    """A group, with the sizes of its own dimensions, and with its attributes.

    Variables and child groups are mapped by name.
    """

    dims: dict[str, int] = field(default_factory=dict)
    variables: dict[str, Var] = field(default_factory=dict)
    attrs: dict[str, Any] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)

    def walk(self, path: str = "/") -> Iterator[tuple[str, Group]]:
        """Yield this group and all its descendants with their paths."""
        yield path, self
        for name, child in self.groups.items():
            yield from child.walk(f"{path.rstrip('/')}/{name}")


def file_url(path: Path, mode: str = "nczarr") -> str:
    """Return the NCZarr URL of a directory."""
    return f"file://{path}#mode={mode},file"


def put(path: Path, documents: Mapping[str, Any]) -> Path:
    """Write documents under their keys. Values other than bytes and text are written as JSON."""
    for key, value in documents.items():
        target = path / key
        target.parent.mkdir(parents=True, exist_ok=True)
        data = value if isinstance(value, bytes | str) else json.dumps(value)
        target.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def read_objects(folder: str | os.PathLike[str]) -> dict[str, bytes]:
    """Return the content of each file in a folder by key."""
    return {key: Path(file).read_bytes() for key, file in files_below(folder)}


def files_below(folder: str | os.PathLike[str]) -> Iterator[tuple[str, str]]:
    """Yield the key and the path of each file in a folder."""
    root = os.fspath(folder)
    for parent, _, names in os.walk(root):
        for name in names:
            path = os.path.join(parent, name)
            yield os.path.relpath(path, root).replace(os.sep, "/"), path


def write_zip(
    target: Any,
    objects: Mapping[str, bytes | str],
    *,
    prefix: str = "",
    compression: int = zipfile.ZIP_STORED,
) -> Any:
    """Write a zip file, and return `target`.

    `target` is a path or an open file. All keys are in the folder `prefix`, if it is passed.
    """
    with zipfile.ZipFile(target, "w", compression) as file:
        for key, data in objects.items():
            file.writestr(prefix + key, data)
    return target


def array_document(shape: Iterable[int], dtype: Any = "<i4", **members: Any) -> dict[str, Any]:
    """Return the content of a `.zarray` for an array of one uncompressed chunk.

    `members` replaces or adds members.
    """
    document = {"zarr_format": 2, "shape": [*shape], "dtype": dtype, "chunks": [*shape]}
    document |= {"fill_value": None, "order": "C", "compressor": None, "filters": None}
    return document | members


def write_consolidated(path: Path, sizes: Mapping[str, int]) -> str:
    """Write only consolidated metadata, for arrays of these sizes with chunks of 10 numbers."""
    documents: dict[str, Any] = {".zgroup": {"zarr_format": 2}}
    for name, size in sizes.items():
        group = name.rpartition("/")[0]
        documents |= {f"{group}/.zgroup": {"zarr_format": 2}} if group else {}
        documents[f"{name}/.zattrs"] = {"_ARRAY_DIMENSIONS": ["t"], "long_name": name}
        documents[f"{name}/.zarray"] = array_document([size], "<f4", chunks=[10], fill_value=0)
    consolidated = {"zarr_consolidated_format": 1, "metadata": documents}
    return str(put(path, {".zgroup": {"zarr_format": 2}, ".zmetadata": consolidated}))


# ---- codecs, written independently of the package


def shuffled(data: bytes, size: int) -> bytes:
    """Apply HDF5's shuffle, which leaves an incomplete element at the end unchanged."""
    whole = len(data) // size * size
    return np.frombuffer(data[:whole], "u1").reshape(-1, size).T.tobytes() + data[whole:]


def encoded(data: bytes, codecs: Iterable[Mapping[str, Any]], size: int) -> bytes:
    """Encode with netcdf-c's filters. The shuffle filter uses `size` instead of its parameter."""
    for codec in codecs:
        if codec["id"] == "shuffle":
            data = shuffled(data, size)
        elif codec["id"] == "zlib":
            data = zlib.compress(data, int(codec["level"]))
        else:
            data = bytes(numcodecs.get_codec(dict(codec)).encode(data))
    return data


# ---- by hand: the layouts of old releases


@dataclass(frozen=True)
class Vintage:
    """The form of the annotations that one release of netcdf-c writes.

    `place` is where groups and arrays store them: in separate objects, in members of their
    documents, or in attributes.
    """

    place: Literal["objects", "members", "attributes"]
    names: tuple[str, str, str, str]
    words: tuple[str, str, str, str] = ("dims", "vars", "dimrefs", "groups")
    char: str = ">S1"
    strings: bool = True
    filters: bool = True
    unlimited: bool = False
    xarray: Literal["never", "root", "always"] = "root"
    quoted_nan: bool = True
    bare_text: bool = True
    textual_levels: bool = True


_OBJECTS = (".nczarr", ".nczgroup", ".nczvar", ".nczattr")
_LOWER = ("_nczarr_superblock", "_nczarr_group", "_nczarr_array", "_nczarr_attr")
_UPPER = tuple(name.upper() for name in _LOWER)
_LONG = ("dimensions", "arrays", "dimension_references", "groups")
_OLD: dict[str, Any] = {"char": "<U1", "strings": False, "quoted_nan": False, "bare_text": False}
_NEW: dict[str, Any] = {"words": _LONG, "unlimited": True}
VINTAGES = {
    "4.8.0": Vintage("objects", _OBJECTS, filters=False, xarray="never", **_OLD),
    "4.8.1": Vintage("members", _UPPER, filters=False, xarray="never", **_OLD),
    "4.9.0": Vintage("members", _UPPER, **_OLD),
    "4.9.2": Vintage("members", _LOWER),
    "4.9.3": Vintage("attributes", _LOWER, **_NEW),
    "4.10": Vintage("attributes", _LOWER, xarray="always", textual_levels=False, **_NEW),
    "dev": Vintage("attributes", (*_LOWER[:3], "_nczarr_attrs"), xarray="always", **_NEW),
}

_NETCDF_TYPES = ["i1", "S1", "i2", "i4", "f4", "f8", "u1", "u2", "u4", "i8", "u8"]
_NC_TYPES = {kind: number for number, kind in enumerate(_NETCDF_TYPES, 1)}


class Bare(str):
    """Text that is written into JSON documents without quotes."""


def spell(value: Any, quoted_nan: bool = True) -> str:
    """Return a value as JSON text in netcdf-c's notation."""
    if isinstance(value, Bare):
        return str(value)
    if isinstance(value, dict):
        pairs = (f"{spell(k)}: {spell(v, quoted_nan)}" for k, v in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(spell(item, quoted_nan) for item in value) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        text = {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
        return f'"{text}"' if quoted_nan else text
    return json.dumps(value, ensure_ascii=False)


def _is_json_like(text: str) -> bool:
    # These are the texts in the tests that netcdf-c's lenient parser accepts as JSON.
    return text[:1] in tuple("0123456789+-[{") or text in ("nan", "TRUE")


def _attribute(value: Any, vintage: Vintage) -> tuple[Any, str]:
    """Return an attribute as JSON, and the type that is recorded for it."""
    numbered = vintage.place == "objects"
    if isinstance(value, str):
        bare = vintage.bare_text and _is_json_like(value)
        return (Bare(value) if bare else value), "2" if numbered else vintage.char
    if isinstance(value, list):
        return value, "|S128"
    array = np.asarray(value)
    items = array.ravel().tolist()
    single = len(items) == 1 and not numbered
    kind = array.dtype.str[1:]
    typed = str(_NC_TYPES[kind]) if numbered else array.dtype.newbyteorder("<").str
    return (items[0] if single else items), typed.replace("|", "<")


def write_vintage(path: Path, content: Group, release: str) -> Path:
    """Write a store in the layout of a netcdf-c release."""
    vintage = VINTAGES[release]
    documents: dict[str, Any] = {}
    for group_path, group in content.walk():
        prefix = group_path.strip("/") + "/" if group_path != "/" else ""
        notes = _group_notes(group, group_path == "/", vintage, release)
        documents |= _node(prefix + ".zgroup", {"zarr_format": 2}, group.attrs, notes, vintage)
        for name, variable in group.variables.items():
            where = f"{prefix}{name}/"
            document, note, chunks = _array(variable, vintage, release)
            notes = {vintage.names[2]: {vintage.words[2]: [*variable.dims], **note}}
            in_root = not prefix and all(dim.strip("/") in content.dims for dim in variable.dims)
            if vintage.xarray == "always" or (vintage.xarray == "root" and in_root):
                scalar = [] if vintage.char == "<U1" else ["_scalar_"]
                short = [dim.rpartition("/")[2] for dim in variable.dims]
                notes["_ARRAY_DIMENSIONS"] = short or scalar
            documents |= _node(where + ".zarray", document, variable.attrs, notes, vintage)
            documents |= {where + key: chunk for key, chunk in chunks.items()}
    spelled = {
        key: value if isinstance(value, bytes) else spell(value, vintage.quoted_nan)
        for key, value in documents.items()
    }
    return put(path, spelled)


def _group_notes(group: Group, is_root: bool, vintage: Vintage, release: str) -> dict[str, Any]:
    """Return the annotations of a group. For the root, the superblock comes first."""
    notes: dict[str, Any] = {vintage.names[0]: {"version": "2.0.0"}} if is_root else {}
    if is_root and vintage.place == "objects":
        notes[vintage.names[0]] = {"zarr_format": 2, "nczarr_version": "1.0.0"}
    sizes: dict[str, Any] = {name: int(size) for name, size in group.dims.items()}
    for name, size in group.dims.items():
        unlimited = isinstance(size, Size)
        if vintage.unlimited and (unlimited or release == "dev"):
            sizes[name] = {"size": int(size), "unlimited": int(unlimited)}
    dims, arrays, _, groups = vintage.words
    return notes | {
        vintage.names[1]: {dims: sizes, arrays: [*group.variables], groups: [*group.groups]}
    }


def _node(
    key: str, document: dict, attrs: dict, notes: dict[str, Any], vintage: Vintage
) -> dict[str, Any]:
    """Return the documents of a node, with its annotations where the release stores them."""
    prefix = key[: key.rindex("/") + 1] if "/" in key else ""
    spelled = {name: _attribute(value, vintage) for name, value in attrs.items()}
    values = {name: value for name, (value, _) in spelled.items()}
    types = {name: kind for name, (_, kind) in spelled.items()}
    if "_ARRAY_DIMENSIONS" in notes:
        values["_ARRAY_DIMENSIONS"] = notes.pop("_ARRAY_DIMENSIONS")
    type_name = vintage.names[3]
    documents: dict[str, Any] = {}
    if vintage.place == "objects":
        documents = {prefix + name: note for name, note in notes.items()}
        documents |= {prefix + type_name: {"types": types}} if types else {}
    elif vintage.place == "members":
        document = document | notes
        values[type_name] = {"types": types} if types else {}
    else:
        types |= dict.fromkeys([*notes, type_name], "|J0")
        values |= notes | {type_name: {"types": types}}
    documents |= {prefix + ".zattrs": values} if values else {}
    return {key: document} | documents


def _array(variable: Var, vintage: Vintage, release: str) -> tuple[dict, dict, dict[str, bytes]]:
    """Return the `.zarray` of a variable, its annotation, and its chunks."""
    values = variable.values
    scalar = values.ndim == 0
    type_name, stored = values.dtype.str.replace("|", "<"), values
    if values.dtype == "S1":
        type_name = vintage.char
    elif values.dtype == object:
        stored = np.array([str(item).encode() for item in values.ravel()], "S128")
        stored, type_name = stored.reshape(values.shape), "|S128"
    stored = stored.reshape(1) if scalar else stored
    chunks = variable.chunks or stored.shape
    fill = variable.fill
    document = array_document(stored.shape, type_name, chunks=[*chunks])
    codecs = list(variable.codecs) if vintage.filters else []
    if vintage.textual_levels:
        codecs = [{k: str(v) for k, v in codec.items()} for codec in codecs]
    document["compressor"] = codecs[-1] if codecs else None
    document["filters"] = codecs[:-1] or None
    document["fill_value"] = [fill] if release == "4.8.0" and fill is not None else fill
    if release == "4.8.0" and fill is None:
        del document["fill_value"]
    note: dict[str, Any] = {"storage": "chunked"}
    if scalar:
        old = vintage.char == "<U1"
        note = {"storage": "scalar"} if old else {"scalar": 1, "storage": "chunked"}
    size = 8 if values.dtype == object else stored.dtype.itemsize
    written = _chunks(stored, chunks, fill) if variable.written else {}
    return document, note, {key: encoded(c, codecs, size) for key, c in written.items()}


def _chunks(values: np.ndarray, shape: tuple[int, ...], fill: Any) -> dict[str, bytes]:
    """Yield the complete chunks of an array, padded with `fill`."""
    result = {}
    counts = [-(-size // chunk) for size, chunk in zip(values.shape, shape, strict=True)]
    for index in np.ndindex(*counts):
        corner = tuple(slice(i * n, (i + 1) * n) for i, n in zip(index, shape, strict=True))
        part = values[corner]
        chunk = np.full(shape, fill if fill not in (None, "") else 0, values.dtype)
        chunk[tuple(map(slice, part.shape))] = part
        result[".".join(map(str, index))] = chunk.tobytes()
    return result


def sample(release: str) -> Group:
    """Return a group with all kinds of content that a release can store."""
    vintage = VINTAGES[release]
    texts = {"title": "a title", "accent": 'é \\ "q"', "empty": "", "two": "line\nfeed\ttab"}
    texts |= {"t001": "001", "tjson": '{"a": 1}', "tlist": "[0.,0.,1.]", "tnan": "nan"}
    numbers: dict[str, Any] = {
        f"a_{kind}": np.dtype(kind).type(n + 1) for n, kind in enumerate(_NC_TYPES) if kind != "S1"
    }
    numbers["many"] = np.array([1.5, np.nan, np.inf, -np.inf], "f4")
    numbers["shorts"] = np.array([1, -2], "i2")
    time = np.arange(3, dtype="f8")
    root = Group({"time": Size(3) if vintage.unlimited else 3, "x": 4, "len": 5}, attrs=texts)
    root.variables["time"] = Var(("/time",), time, {"units": "days since 2000-01-01"}, 9.96921e36)
    for kind in _NC_TYPES:
        if kind != "S1":
            root.variables[f"v_{kind}"] = Var(("/x",), np.arange(4).astype(kind), numbers, 0)
    root.variables["empty"] = Var(("/time", "/x"), np.full((3, 4), 7, "i2"), fill=7, written=False)
    filters = ({"id": "shuffle", "elementsize": 0}, {"id": "zlib", "level": 4})
    field_ = np.arange(12, dtype="f4").reshape(3, 4)
    root.variables["field"] = Var(("/time", "/x"), field_, {}, -1, (2, 3), filters)
    packed: dict[str, Any] = {"_FillValue": np.int16(-1), "scale_factor": np.float64(0.1)}
    shorts = np.array([1, -1, 3, 4], "i2")
    checksum = (*filters, {"id": "fletcher32"})
    root.variables["packed"] = Var(("/x",), shorts, packed, -1, (), checksum)
    root.variables["big"] = Var(("/x",), np.arange(4, dtype=">i4"), {}, 0)
    root.variables["scalar"] = Var((), np.array(3.5), {"units": "m"}, 0)
    holes = np.array([1, np.nan, 3, 4])
    root.variables["holes"] = Var(("/x",), holes, {"_FillValue": np.float64("nan")}, np.nan)
    letters = np.array([*"abcdefgh klmnopqrst "], "S1").reshape(4, 5)
    root.variables["letters"] = Var(("/x", "/len"), letters, {}, "")
    if vintage.strings:
        words = np.array(["a", "", "émile", "zz"], object)
        root.variables["words"] = Var(("/x",), words, {"s": ["one", "two"]}, "", (3,), filters)
    inner = Group({"x": 2, "z": 3}, attrs={"n": np.int32(1)})
    inner.variables["own"] = Var(("/g/x", "/g/z"), np.arange(6.0).reshape(2, 3), {}, 0)
    inner.variables["mixed"] = Var(("/time", "/g/x"), np.arange(6).reshape(3, 2), {}, 0, (1, 2))
    deep = Group(variables={"below": Var(("/g/z", "/time"), np.ones((3, 3), "u1"), {}, 0)})
    inner.groups["deep"] = deep
    root.groups["g"] = inner
    return root


# ---- by netcdf-c

COMPRESSIONS: dict[str, dict[str, Any]] = {
    "shuffled": {"compression": "zlib", "complevel": 4, "shuffle": True},
    "plain_zlib": {"compression": "zlib", "complevel": 1, "shuffle": False},
    "checked": {"fletcher32": True},
    "checked_zlib": {"compression": "zlib", "shuffle": True, "fletcher32": True},
    "bz2": {"compression": "bzip2", "complevel": 3},
    "zstd": {"compression": "zstd", "complevel": 3},
    "blosc_lz4": {"compression": "blosc_lz4", "blosc_shuffle": 1},
    "blosc_zstd": {"compression": "blosc_zstd", "blosc_shuffle": 2},
    "shuffled_zstd": {"compression": "zstd", "shuffle": True},
}


def write_netcdf_c(path: Path, mode: str = "nczarr") -> Path:
    """Write a store with all kinds of content that netcdf-c 4.10 can store in this mode."""
    annotated = mode.startswith("nczarr") and "noxarray" not in mode
    with netCDF4.Dataset(file_url(path, mode), "w") as root:
        _write_attributes(root, annotated)
        for name, size in {"time": None, "x": 4, "len": 5, "big": 500, "never": None}.items():
            root.createDimension(name, size)

        def add(group: Any, name: str, kind: Any, dims: Any, values: Any, **options: Any) -> Any:
            variable = group.createVariable(name, kind, dims, **options)
            variable.set_auto_maskandscale(False)
            if values is not None:
                variable[...] = values
            return variable

        for kind in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8"):
            _write_attributes(add(root, f"v_{kind}", kind, ("x",), [0, 1, 2, 100]), annotated)
            add(root, f"padded_{kind}", kind, ("time", "x"), None, chunksizes=(2, 3))
            root[f"padded_{kind}"][:3] = np.arange(12).reshape(3, 4)
            if kind[1] > "1":
                add(root, f"big_{kind}", f">{kind}", ("x",), [0, 1, 2, 100], endian="big")
            add(root, f"never_{kind}", kind, ("time", "x"), None)
        for name, options in COMPRESSIONS.items():
            add(root, name, "f4", ("big",), np.arange(500) // 7, chunksizes=(200,), **options)
        add(root, "scalar", "f8", (), 3.5).units = "m"
        add(root, "whole", "i4", (), 7)
        letters = np.array([*"abcdefgh klmnopqrst "], "S1").reshape(4, 5)
        add(root, "letters", "S1", ("x", "len"), letters)
        add(root, "letter", "S1", (), np.array(b"q", "S1"))
        add(root, "none_yet", "f8", ("never", "x"), None)
        add(root, "filled", "f4", ("x",), None, fill_value=-9.0)[0] = 1
        add(root, "nan_filled", "f4", ("x",), None, fill_value=np.nan)[0] = 1
        add(root, "no_fill", "i4", ("x",), [1, 2, 3, 4], fill_value=False)
        packed = add(root, "packed", "i2", ("x",), [1, -1, 3, 4], fill_value=-1)
        packed.scale_factor, packed.add_offset = 0.1, 10.0
        if annotated:
            words = np.array(["a", "", "émile", "zz"], object)
            add(root, "words", str, ("x",), words)
            shuffled_words = add(root, "shuffled_words", str, ("big",), None, compression="zlib")
            shuffled_words[:] = np.array([f"word {n}" for n in range(500)], object)
            short = root.createVariable("short_words", str, ("x",))
            short.setncattr("_nczarr_maxstrlen", np.int32(11))
            short[:] = words
        inner = root.createGroup("g")
        inner.createDimension("y", 2)
        add(inner, "own", "f8", ("y", "x"), np.arange(8).reshape(2, 4))
        _write_attributes(inner, annotated)
        deep = inner.createGroup("deep")
        deep.createDimension("x", 2)
        add(deep, "hiding", "i2", ("time", "x"), np.arange(6).reshape(3, 2), compression="zlib")
    return path


def _write_attributes(target: Any, annotated: bool) -> None:
    for number, kind in enumerate(("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8")):
        target.setncattr(f"a_{kind}", np.dtype(kind).type(number))
        target.setncattr(f"many_{kind}", np.array([1, 2], kind))
    largest = {"i8": np.int64(2**63 - 1), "u8": np.uint64(2**64 - 1), "nan": np.float32("nan")}
    target.setncatts(largest | {"infinite": np.array([np.inf, -np.inf])})
    target.setncatts({"text": "é \\ text", "blank": "", "lines": "a\nb\tc", "json": '{"a": 1}'})
    if annotated:
        target.setncattr_string("strings", ["one", "two"])


def read_with_netcdf4(dataset: Any) -> Group:
    """Return the content that netCDF4 reads from an open dataset or group."""
    result = Group(attrs=_read_attributes(dataset))
    for name, dimension in dataset.dimensions.items():
        size = dimension.size
        result.dims[name] = Size(size) if dimension.isunlimited() else size
    for name, variable in dataset.variables.items():
        variable.set_auto_maskandscale(False)
        variable.set_auto_chartostring(False)
        values = np.asarray(variable[...])
        if values.dtype == "f8":
            # netcdf-c reads its own default fill value back with six digits.
            values[values == 9.96921e36] = netCDF4.default_fillvals["f8"]
        result.variables[name] = Var(variable.dimensions, values, _read_attributes(variable))
    result.groups = {name: read_with_netcdf4(child) for name, child in dataset.groups.items()}
    return result


def _read_attributes(target: Any) -> dict[str, Any]:
    # Virtual attributes, and annotations that this netcdf-c does not know. No user wrote them.
    return {
        name: target.getncattr(name)
        for name in target.ncattrs()
        if not name.lower().startswith("_nczarr")
    }


def write_with_ncgen(path: Path, cdl: str, options: str = "") -> Path:
    """Write a store from a CDL file with Debian's ncgen 4.9.0."""
    url = file_url(path, f"nczarr{options}")
    command = ["ncgen", "-4", "-lb", "-o", url, str(FIXTURES / "cdl" / cdl)]
    subprocess.run(command, check=True, timeout=60)
    return path


has_ncgen = shutil.which("ncgen") is not None


# ---- by zarr-python and xarray


@dataclass
class Stored:
    """An array, and the options with which zarr-python stores it."""

    values: np.ndarray
    options: dict[str, Any] = field(default_factory=dict)


def _codecs(*configurations: Any, compressor: Any = None) -> dict[str, Any]:
    return {"filters": list(configurations) or None, "compressors": compressor}


_N = numcodecs
_FLOATS, _INTS = np.arange(20.0).reshape(4, 5), np.arange(20, dtype="i4").reshape(4, 5)
_RECORDS = np.array([(1, 2.5, b"a"), (2, 3.5, b"")], [("a", "<i4"), ("b", ">f8"), ("c", "S3")])
_DTYPES = (
    "b1 i1 u1 <i2 >i2 <u4 >u4 <i8 >u8 <f2 >f2 <f4 >f4 <f8 >f8 <c8 >c16 S5 <U3 >U3"
    " <M8[ns] >M8[s] <m8[ms]"
)
ZARR_ARRAYS = {
    **{kind: Stored((np.arange(20) % 7).astype(kind).reshape(4, 5)) for kind in _DTYPES.split()},
    "void": Stored(np.array([b"ab", b"cd", b"", b"x"], "S4").astype("V4")),
    "records": Stored(_RECORDS),
    "texts": Stored(np.array(["a", "é", "", "longer"], object), {"dtype": str}),
    "bytes": Stored(
        np.array([b"a", b"", b"\x00\xff"], object), {"dtype": zarr.dtype.VariableLengthBytes()}
    ),
    "fortran": Stored(_FLOATS, {"order": "F"}),
    "fortran_big": Stored(_INTS.astype(">i4"), {"order": "F"}),
    "nested": Stored(_INTS, {"chunk_key_encoding": {"name": "v2", "separator": "/"}}),
    "scalar": Stored(np.array(3.5)),
    "scalar_text": Stored(np.array("é", "U1")),
    "empty": Stored(np.zeros((0, 3), "f4"), {"chunks": (2, 2)}),
    "roomy": Stored(_INTS, {"chunks": (100, 3)}),
    "nan": Stored(np.array([1.0, np.nan, np.inf, 0.0]), {"fill_value": np.nan}),
    "gzip": Stored(_INTS, _codecs(compressor=_N.GZip(1))),
    "bz2": Stored(_INTS, _codecs(compressor=_N.BZ2(1))),
    "lzma": Stored(_INTS, _codecs(compressor=_N.LZMA())),
    "lz4": Stored(_INTS, _codecs(compressor=_N.LZ4())),
    "zstd": Stored(_INTS, _codecs(compressor=_N.Zstd(3))),
    "blosc": Stored(_INTS, _codecs(compressor=_N.Blosc("lz4hc", 5, _N.Blosc.BITSHUFFLE))),
    "shuffle": Stored(_INTS, _codecs(_N.Shuffle(4), compressor=_N.Zlib(1))),
    "delta": Stored(_INTS, _codecs(_N.Delta("i4", "i2"), compressor=_N.Zlib(1))),
    "scaled": Stored(
        _FLOATS, _codecs(_N.FixedScaleOffset(5, 10, "f8", "i2"), _N.Delta("i2"), compressor=None)
    ),
    "rounded": Stored(_FLOATS, _codecs(_N.BitRound(6), compressor=_N.LZ4())),
    "quantized": Stored(_FLOATS, _codecs(_N.Quantize(2, "f8"))),
    "bits": Stored(np.arange(12).reshape(3, 4) % 3 == 0, _codecs(_N.PackBits())),
    "retyped": Stored(_FLOATS, _codecs(_N.AsType("f4", "f8"))),
    "crc32": Stored(_INTS, _codecs(compressor=_N.CRC32())),
    "adler32": Stored(_INTS, _codecs(compressor=_N.Adler32())),
    "lookup3": Stored(_INTS, _codecs(compressor=_N.JenkinsLookup3())),
    "fletcher32": Stored(_INTS, _codecs(compressor=_N.Fletcher32())),
}


def write_with_zarr_python(path: Path) -> Path:
    """Write a plain Zarr v2 group with every dtype, every codec, and partial edge chunks."""
    group = zarr.open_group(path, mode="w", zarr_format=2, attributes={"title": "plain"})
    for name, stored in ZARR_ARRAYS.items():
        values, options = stored.values, stored.options
        chunks = tuple(max(1, size - 1) for size in values.shape)
        arguments = {"dtype": values.dtype, "chunks": chunks, "compressors": None, **options}
        array = group.create_array(name, shape=values.shape, **arguments)
        if values.size:
            array[...] = values
        array.attrs["_ARRAY_DIMENSIONS"] = [f"{name}_{axis}" for axis in range(values.ndim)]
        array.attrs["n"] = 5
    return path


def cf_dataset() -> xr.Dataset:
    """Return a typical dataset: times, coordinates, text, masked and packed data."""
    time = np.datetime64("2000-01-01", "ns") + np.arange(5).astype("m8[D]")
    values = np.arange(20.0).reshape(5, 4)
    values[1, 2] = np.nan
    variables = {
        "temperature": (("time", "x"), values.astype("f4"), {"units": "K"}),
        "packed": (("time", "x"), values, {"long_name": "packed"}),
        "count": (("x",), np.arange(4), {"flag_values": [1, 2]}),
        "station": (("x",), np.array(["a", "", "émile", "zz"], object)),
        "code": (("x",), np.array([b"ab", b"", b"c", b"xyz"])),
        "label": (("x",), np.array(["é", "", "ab", "c"])),
        "valid": (("x",), np.array([True, False, True, True])),
        "lag": (("x",), np.arange(4).astype("m8[h]").astype("m8[ns]")),
        "crs": ((), np.int32(3), {"name": "x", "parameters": [1.5, 2.5]}),
    }
    coords = {"time": time, "x": [1.5, 2.5, 3.5, 4.5], "height": 2.0, "area": ("x", np.ones(4))}
    dataset = xr.Dataset(variables, coords, {"title": "a title", "history": "none"})
    dataset["packed"].encoding = {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -1}
    return dataset
