"""Targets of every form, and the parts of their URLs."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.dirfs import DirFileSystem

from tests.reading import open_store
from tests.servers import S3Server
from xr_nczarr.errors import ConflictError, MetadataError, NotFoundError, UnsupportedError
from xr_nczarr.storage import (
    LocalStore,
    Location,
    MemoryStore,
    RemoteStore,
    ZipStore,
    parse_target,
)

S3 = {"client_kwargs": {"region_name": "eu-west-1"}}


@pytest.mark.parametrize(
    ("target", "location"),
    [
        ("/d/x.zarr", Location("/d/x.zarr")),
        (Path("/d/x.zarr"), Location("/d/x.zarr")),
        (b"/d/x.zarr", Location("")),
        ("file:///d/x.zarr", Location("/d/x.zarr")),
        ("file://localhost/d/x.zarr", Location("/d/x.zarr")),
        ("file:///d/a%20b", Location("/d/a b")),
        ("/d/a%20b", Location("/d/a%20b")),
        ("/d/run#3.zarr", Location("/d/run#3.zarr")),
        ("file:///d/x#mode=nczarr,zip", Location("/d/x", "zip", "nczarr")),
        ("/d/x#mode=zarr,file,v2", Location("/d/x", "file", "zarr", "2")),
        ("/d/x#nczarr&mode=file", Location("/d/x", "file", "nczarr")),
        ("/d/x#mode=XARRAY", Location("/d/x", None, "zarr", xarray=True)),
        ("/d/x#mode=noxarray,v3", Location("/d/x", None, "zarr", "3", xarray=False)),
        ("/d/x#mode=nczarr,noxarray", Location("/d/x", None, "nczarr", xarray=False)),
        ("/d/x#mode=nczarr&mode=consolidated", Location("/d/x", None, "nczarr", consolidated=True)),
        ("s3://b/k", Location("s3://b/k")),
        (
            "s3://b/k#mode=nczarr,s3&awsprofile=me",
            Location("s3://b/k", "s3", "nczarr", storage_options={"profile": "me"}),
        ),
        (
            "https://s3.eu-west-1.amazonaws.com/b/k#mode=nczarr,s3",
            Location("s3://b/k", "s3", "nczarr", storage_options=S3),
        ),
        (
            "https://b.s3.eu-west-1.amazonaws.com/k/l#mode=zarr,s3",
            Location("s3://b/k/l", "s3", "zarr", storage_options=S3),
        ),
        ("s3://s3.eu-west-1.amazonaws.com/b/k", Location("s3://b/k", storage_options=S3)),
        ("https://s3.amazonaws.com/b/k#mode=s3", Location("s3://b/k", "s3")),
        (
            "http://h:9000/b/k#mode=s3",
            Location("s3://b/k", "s3", storage_options={"endpoint_url": "http://h:9000"}),
        ),
        (
            "https://s3.eu-west-1.amazonaws.com/b/k",
            Location("https://s3.eu-west-1.amazonaws.com/b/k"),
        ),
        ("zip::s3://b/k.zip#mode=nczarr", Location("zip::s3://b/k.zip", None, "nczarr")),
        (
            "https://s3.amazonaws.com:9000/b/k#mode=s3",
            Location(
                "s3://b/k",
                "s3",
                storage_options={"endpoint_url": "https://s3.amazonaws.com:9000"},
            ),
        ),
        ("simplecache::https://h/x", Location("simplecache::https://h/x")),
        ("memory://x#mode=zarr", Location("memory://x", None, "zarr")),
        ("data:x", Location(f"{os.getcwd()}/data:x")),
        ("own_protocol://x", Location("own_protocol://x")),
        ("2026-01-01T00:00.zarr", Location(f"{os.getcwd()}/2026-01-01T00:00.zarr")),
        ({}, Location("")),
        ("reference://", Location(is_reference_set=True)),
        (
            "reference://g/h/#mode=zarr",
            Location(format="zarr", is_reference_set=True, group="g/h"),
        ),
        ("reference::/d/r.json", Location("/d/r.json", is_reference_set=True)),
        (
            "reference://g::s3://b/r.json#mode=s3&awsprofile=me",
            Location(
                "s3://b/r.json",
                "s3",
                is_reference_set=True,
                group="g",
                storage_options={"profile": "me"},
            ),
        ),
    ],
)
def test_targets_are_parsed_into_locations(target: Any, location: Location) -> None:
    assert parse_target(target) == location


@pytest.mark.parametrize("target", ["~/d/x.zarr#mode=zarr", Path("~/d/x.zarr"), "~/d#1/x.zarr"])
def test_leading_tilde_is_expanded_to_home_directory(
    target: str | Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "d#1" / "x.zarr").mkdir(parents=True)
    expected = str(target).replace("~", str(tmp_path)).removesuffix("#mode=zarr")
    assert parse_target(target).url == expected
    assert parse_target("d/~").url.endswith("/d/~")


def test_relative_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        parse_target("x.zarr").url == parse_target("file://x.zarr").url == str(tmp_path / "x.zarr")
    )


def test_number_sign_in_existing_path_is_part_of_file_name(tmp_path: Path) -> None:
    (tmp_path / "x#mode=zip").mkdir()
    assert parse_target(tmp_path / "x#mode=zip") == Location(str(tmp_path / "x#mode=zip"))
    assert isinstance(open_store(tmp_path / "x#mode=zip"), LocalStore)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("/x#mode=nczar", r"unknown mode 'nczar'.*Use one of these modes: nczarr, zarr, file"),
        ("https://me:secret@h/x?sig=s#bytes", r"https://\*\*\*@h/x\?\*\*\*.*unknown mode 'bytes'"),
        ("/x#mode=zarr&colour=red", r"unknown key 'colour'.*awsprofile"),
        ("/x#mode=file,zip", "contains the contradictory modes file and zip"),
        ("/x#mode=nczarr,zarr", "contains the contradictory modes nczarr and zarr"),
        ("/x#mode=v2,v3", "contains the contradictory modes v2 and v3"),
        ("/x#mode=xarray,noxarray", "contains the contradictory modes xarray and noxarray"),
        ("/x#mode=nczarr&awsprofile=me", "awsprofile', which applies only to S3 URLs"),
        ("https://h/x#aws.profile=me", "aws.profile', which applies only to S3 URLs"),
        ("simplecache::s3://b/x#awsprofile=me", "applies only to S3 URLs.*storage option"),
        ("", "is empty"),
        ("#mode=nczarr", "is empty"),
    ],
)
def test_error_for_invalid_url_suggests_fix(url: str, message: str) -> None:
    with pytest.raises(MetadataError, match=message) as caught:
        parse_target(url)
    assert "secret" not in str(caught.value)


def test_displayed_urls_hide_secrets() -> None:
    for url in ("https://me:pw@h/x?token=pw", "simplecache::https://me:pw@h/x?token=pw"):
        store = open_store(url)
        assert "pw" not in store.name
        assert "pw" not in repr(store)


def test_opening_store_detects_its_kind(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "anything", "w") as file:
        file.writestr(".zgroup", "{}")
    (tmp_path / "looks.zip").mkdir()
    assert isinstance(open_store(tmp_path / "anything"), ZipStore)
    assert isinstance(open_store(tmp_path / "looks.zip"), LocalStore)
    assert isinstance(open_store({}), MemoryStore)
    mapper = fsspec.get_mapper("memory://mapped")
    mapper["a/0"] = b"1"
    assert list(open_store(mapper).fetch(["a/0", "a/1"])) == [b"1", None]
    store = open_store("zip::https://h/file")
    assert isinstance(store, ZipStore)
    assert open_store(store) is store
    assert isinstance(open_store("s3://b/k", must_exist=False), RemoteStore)


def test_local_mapper_is_opened_as_local_store(tmp_path: Path) -> None:
    """fsspec overwrites files in place, so a killed write would leave a partial file."""
    for mapper in (
        fsspec.get_mapper(f"{tmp_path}/one#two"),
        fsspec.FSMap("one#two", DirFileSystem(str(tmp_path), fsspec.filesystem("file"))),
    ):
        store = open_store(mapper, must_exist=False)
        assert isinstance(store, LocalStore)
        assert store.root == f"{tmp_path}/one#two"
        store.put([("a/0", b"1")])


def test_store_can_be_created_through_fsspec_dir_filesystem(tmp_path: Path) -> None:
    filesystem = DirFileSystem(str(tmp_path), fsspec.filesystem("memory"))
    store = open_store(fsspec.FSMap("made", filesystem), must_exist=False)
    store.put([("a/0", b"1")])
    assert list(store.list_names("a/")) == [["0"], []]
    assert fsspec.filesystem("memory").cat(f"{tmp_path}/made/a/0") == b"1"


def test_error_for_contradictory_fragment_includes_store_kind(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    zipfile.ZipFile(tmp_path / "z", "w").close()
    with pytest.raises(ConflictError, match=r"the path is a directory.*mode=zip.*mode=file"):
        open_store(f"file://{tmp_path}/d#mode=nczarr,zip")
    with pytest.raises(ConflictError, match=r"the path is a zip file.*mode=file"):
        open_store(f"file://{tmp_path}/z#mode=nczarr,file", must_exist=False)


def test_opening_missing_path_raises_not_found_error(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="the path does not exist"):
        open_store(tmp_path / "no")
    assert isinstance(open_store(tmp_path / "no.zip", must_exist=False), ZipStore)
    assert isinstance(open_store(f"{tmp_path}/no#mode=zip", must_exist=False), ZipStore)
    assert isinstance(open_store(tmp_path / "no", must_exist=False), LocalStore)


def test_unsupported_targets_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "x.nc").write_bytes(b"\x89HDF\r\n\x1a\n")
    os.mkfifo(tmp_path / "pipe")
    for target in (tmp_path / "x.nc", tmp_path / "pipe", 3, None, "gopher://x", "abfs://c@a/x"):
        with pytest.raises(UnsupportedError):
            open_store(target)
    with pytest.raises(UnsupportedError, match="an fsspec mapper"):
        open_store(object())


def test_storage_options_take_precedence_over_url(s3_server: S3Server) -> None:
    s3_server.fail = lambda request: b"1"
    url = "https://s3.eu-west-1.amazonaws.com/bucket/k"
    keys = {"key": "testing", "secret": "testing"}
    for options, signed in [({"anon": True}, ""), (keys, "/eu-west-1/s3/")]:
        options = {**options, "client_kwargs": {"endpoint_url": s3_server.endpoint}}
        store = open_store(f"{url}#mode=s3", storage_options=options)
        assert [bytes(data or b"") for data in store.fetch(["x"])] == [b"1"]
        (request,) = s3_server.requests_for("/bucket/k/x")
        signature = request.headers.get("Authorization", "")
        assert signed in signature
        assert bool(signature) == bool(signed)
        s3_server.clear()


@pytest.mark.parametrize("first", ["filecache", "filecache://", "blockcache"])
@pytest.mark.parametrize("second", ["filecache", "simplecache://"])
def test_file_or_block_cache_cannot_precede_another_cache_in_chained_url(
    first: str, second: str
) -> None:
    with pytest.raises(UnsupportedError, match=r"cannot precede another cache.*Leave out one"):
        open_store(f"{first}::{second}::https://h/x")
    open_store(f"simplecache::{second}::https://h/x")
