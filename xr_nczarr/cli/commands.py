"""Define a function for each subcommand.

Each function adds the arguments of its subcommand to a parser, and returns another function that
runs the subcommand. Running a subcommand returns the result to print, or None if there is nothing
to print. Slow imports are postponed until a subcommand runs.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import xr_nczarr
from xr_nczarr.cli.arguments import Parser, Run, UsageError, call, invalid_value, parse_names

_LEVELS = {"blosc": "clevel", "lz4": "acceleration"}
"""Mapping from codecs to the name of their compression-level parameter, if it is not ``level``."""
_WITHOUT_LEVEL = ("shuffle", "fletcher32", "crc32", "adler32")
_TARGET = ("target", "--storage-option", "--limit", "--option")
_SUBSET = ("-v", "--select", "--group", "--engine", "--assume-endian")


def dump(parser: Parser) -> Run:
    """Print a store as CDL, like ncdump; ncgen can recreate the dataset from the output."""
    parser.add_shared(*_TARGET)
    parser.add("-h", "print only the header", dest="header")
    for flag, name, what in (("-v", "variables", "VAR"), ("-g", "groups", "GROUP")):
        only = f"print only the values of these {name}"
        parser.add(flag, only, dest=name, type=parse_names, metavar=f"{what},...")
    parser.add("-n", "name of the dataset in the CDL", dest="name", metavar="NAME")
    digits = "significant digits of floats and doubles; by default as many as necessary"
    parser.add("-p", digits, dest="precision", type=_precision, metavar="FLOAT[,DOUBLE]")
    special = "print special attributes, which describe how values are stored"
    parser.add("-s", special, dest="special")
    parser.add("-c", "print only the values of coordinate variables", dest="coordinates")
    parser.add("-t", "print times as dates, which ncgen cannot read", dest="times")
    return lambda parsed: call(xr_nczarr.dump, parsed)


def info(parser: Parser) -> Run:
    """Describe a store: groups, dimensions, variables, chunks, codecs and sizes."""
    parser.add_shared(*_TARGET, "--json")
    about = "show only the metadata, without counting the stored chunks"
    parser.add("--metadata", about, dest="count_chunks", action="store_false")

    def run(parsed: argparse.Namespace) -> xr_nczarr.StoreInfo:
        result: xr_nczarr.StoreInfo = call(xr_nczarr.info, parsed)
        errors = [group.error for group in result.root.walk()]
        errors += [variable.error for variable in result.root.all_variables()]
        for error in filter(None, errors):
            error.remedy = parser.in_flags(error.remedy)
        return result

    return run


def explain(parser: Parser) -> Run:
    """Predict the number of requests, bytes and chunks needed to read a selection."""
    parser.add_shared(*_TARGET, "--json", "-v", "--select")
    return lambda parsed: call(xr_nczarr.explain, parsed, selection=parsed.select)


def verify(parser: Parser) -> Run:
    """Check all chunks and all metadata; the exit code is 1 if there are errors."""
    parser.add_shared(*_TARGET, "--json", "--quiet")
    sample = "read at most N random chunks of each array"
    parser.add("--sample", sample, type=_number, metavar="N")
    parser.add("--readers", "also report data that other programs would misread")

    def run(parsed: argparse.Namespace) -> xr_nczarr.Verification:
        result: xr_nczarr.Verification = call(xr_nczarr.verify, parsed)
        result.findings = [
            replace(finding, remedy=parser.in_flags(finding.remedy)) for finding in result.findings
        ]
        return result

    return run


def copy(parser: Parser) -> Run:
    """Copy a store, a netCDF file or any file that xarray can open; rerun to resume."""
    parser.add("source", "store, reference set or file", metavar="SOURCE")
    target = "path or URL of the new store, or a path ending in .nc for a netCDF file"
    parser.add("target", target, metavar="TARGET")
    parser.add_shared(*_SUBSET)
    version = "Zarr version (default: 2)"
    parser.add("--zarr-format", version, default="2", type=_version, metavar="VERSION")
    parser.add_shared("--dialect")
    chunks = "chunk length along each dimension"
    parser.add("--chunks", chunks, type=_lengths, metavar="DIM=N,...")
    codecs = (
        "codecs in encoding order, such as shuffle,zstd:3, or as JSON; 'none' disables all codecs"
    )
    parser.add("--codecs", codecs, type=_codecs, metavar="NAME[:LEVEL],...")
    level = "zlib level from 0 to 9; short for --codecs zlib:LEVEL"
    parser.add("--zlib", level, type=_number, metavar="LEVEL")
    parser.add("--shuffle", "shuffle bytes before zlib")
    parser.add("--skip-unsupported", "leave out whatever the target does not support")
    parser.add("--overwrite", "replace an existing store")
    parser.add_shared("--quiet", "--storage-option", "--target-option", "--limit", "--json")

    def run(parsed: argparse.Namespace) -> Any:
        if parsed.shuffle or parsed.zlib is not None:
            if parsed.codecs is not None:
                raise UsageError("--codecs cannot be combined with --zlib or --shuffle")
            words = ["shuffle"] * parsed.shuffle + [f"zlib:{parsed.zlib}"] * bool(parsed.zlib)
            parsed.codecs = _codecs(",".join(words) or "none")
        return call(xr_nczarr.copy, parsed)

    return run


def diff(parser: Parser) -> Run:
    """Compare two datasets; the exit code is 1 if they differ."""
    for name in ("first", "second"):
        parser.add(name, "store, reference set or file", metavar=name.upper())
    parser.add_shared(*_SUBSET)
    parser.add("--metadata", "compare only the metadata, not the values")
    parser.add("-s", "also compare how values are stored", dest="special")
    for name, what in (("rtol", "relative"), ("atol", "absolute")):
        about = f"{what} tolerance for numbers (default: 0)"
        parser.add(f"--{name}", about, type=float, default=0.0, metavar="X")
    parser.add_shared("--quiet", "--storage-option", "--second-option", "--limit", "--json")
    return lambda parsed: call(xr_nczarr.diff, parsed)


def upgrade(parser: Parser) -> Run:
    """Convert a store's NCZarr metadata to another layout in place, without touching the chunks."""
    parser.add("target", "path or URL of the store", metavar="STORE")
    parser.add_shared("--dialect")
    parser.add("--annotate", "add NCZarr metadata to a plain Zarr store")
    parser.add("--dry-run", "show the changes without making them")
    parser.add_shared("--quiet", "--storage-option", "--json")
    return lambda parsed: call(xr_nczarr.upgrade, parsed)


def consolidate(parser: Parser) -> Run:
    """Write the consolidated metadata of a store."""
    parser.add("target", "path or URL of the store", metavar="STORE")
    parser.add_shared("--quiet", "--storage-option", "--json")
    return lambda parsed: call(xr_nczarr.consolidate, parsed)


def references(parser: Parser) -> Run:
    """Write a reference set for a store as JSON, or as parquet if the target ends in .parq."""
    parser.add("source", "path or URL of a store or reference set", metavar="STORE")
    parser.add("target", "file or directory to write", metavar="TARGET")
    parser.add(
        "--compact",
        "describe regularly spaced chunks with generators (gen). nczarr reads generators. "
        "fsspec and kerchunk read them only with simple_templates=False. VirtualiZarr does not "
        "read them. Programs that do not read generators treat these chunks as missing",
        dest="generators",
    )
    inline = "store chunks smaller than BYTES inline in the reference set"
    parser.add("--inline-below", inline, type=_number, default=0, metavar="BYTES")
    parser.add_shared("--quiet", "--storage-option", "--target-option", "--limit", "--json")

    return lambda parsed: call(xr_nczarr.references.write, parsed)


def demo(parser: Parser) -> Run:  # noqa: ARG001
    """Open a small store with xarray and compute a mean."""

    def run(_: argparse.Namespace) -> None:
        from importlib import resources

        import xarray as xr

        # This store was written by netCDF-C. Its temperatures are packed and compressed.
        shipped = resources.files(__package__) / "climate.zip"
        with (
            resources.as_file(shipped) as path,
            xr.open_dataset(path, engine="nczarr", chunks={}) as dataset,
        ):
            print(f"Opening a store that netCDF-C wrote: {path}\n")
            print(dataset)
            means = dataset["temperature"].mean(("lat", "lon")).compute()
            print("\nMean temperature of each day, computed by dask:")
            for time, value in zip(means["time"].values, means.values, strict=True):
                print(f"  {str(time)[:10]}  {value:.3f} {dataset['temperature'].attrs['units']}")

    return run


COMMANDS = {
    add.__name__: add
    for add in (dump, info, explain, verify, copy, diff, upgrade, consolidate, references, demo)
}


def _version(text: str) -> str:
    from xr_nczarr.formats import FORMATS

    if text not in FORMATS:
        versions = ", ".join(sorted(FORMATS))
        raise invalid_value(text, f"one of {versions}")
    return text


def _precision(text: str) -> tuple[int | None, int | None]:
    numbers = text.split(",")
    if len(numbers) > 2 or not all(item.isdecimal() and 1 <= int(item) <= 17 for item in numbers):
        raise invalid_value(text, "numbers from 1 to 17, such as 7,15")
    return int(numbers[0]), int(numbers[1]) if len(numbers) > 1 else None


def _number(text: str) -> int:
    if not text.isdecimal():
        raise invalid_value(text, "a non-negative integer")
    return int(text)


def _lengths(text: str) -> dict[str, int]:
    pairs = [[*map(str.strip, part.rpartition("=")[::2])] for part in text.split(",")]
    if not all(name and size.isdecimal() for name, size in pairs):
        raise invalid_value(text, "chunk lengths such as time=10,lat=180")
    return {name: int(size) for name, size in pairs}


def _codecs(text: str) -> Any:
    """Parse codecs such as ``shuffle,zstd:3``, or codec configurations in JSON."""
    import json

    if not text.startswith(("[", "{")):
        return [] if text == "none" else [_codec(word) for word in text.split(",")]
    try:
        return json.loads(text)
    except ValueError as error:
        expected = "codecs such as shuffle,zstd:3, or codec configurations in JSON"
        raise invalid_value(text, expected) from error


def _codec(word: str) -> dict[str, Any]:
    name, colon, level = word.strip().partition(":")
    if not name or (colon and (not level.isdecimal() or name in _WITHOUT_LEVEL)):
        expected = "a codec name, with a level if the codec has one, such as zstd:3"
        raise invalid_value(word, expected)
    return {"id": name} | ({_LEVELS.get(name, "level"): int(level)} if colon else {})
