"""Stores on web servers that send index pages, or send web pages in place of missing objects."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import fsspec
import netCDF4
import numpy as np
import pytest
import xarray as xr

import xr_nczarr
from tests.reading import RAW, open_store, read
from tests.references.test_web_servers import with_ranges
from tests.servers import LOGIN_PAGE, HttpServer, IndexServer
from tests.stores import file_url, put, sample, write_vintage
from xr_nczarr import NotFoundError, StorageError, UnsupportedError
from xr_nczarr.storage.checked_http import names_in_index

PAGE = b"<!doctype html>\n<html><head><title>Data portal</title></head><body></body></html>"


def tree():
    """Return variables in the root and in groups with unusual names."""
    dataset = xr.Dataset({"v": ("x", [1.0, 2.0])}, {"x": [5, 6]}, {"title": "t"})
    return xr.DataTree.from_dict({"/": dataset, "/g": dataset, "/g/h h%": dataset})


@pytest.fixture(params=[2, 3], ids=["v2", "v3"])
def served(request, tmp_path):
    """Return a folder with the store ``data set``, which has no consolidated metadata."""
    target = tmp_path / "stores" / "data set"
    tree().to_zarr(target, zarr_format=request.param, consolidated=False)
    return tmp_path / "stores"


def opened(url, **options):
    return xr.open_datatree(url, engine="nczarr", **options).load()


# Index pages -------------------------------------------------------------------------------------


@pytest.mark.parametrize("hidden", [False, True], ids=["python", "nginx"])
@pytest.mark.parametrize("spell", ["{}/data%20set", "{}/data set/", "simplecache::{}/data%20set"])
def test_stores_are_found_through_index_pages_of_web_servers(served, hidden, spell):
    with IndexServer(served, hidden=hidden) as server:
        dataset = opened(spell.format(server.url))
        assert dataset.identical(tree())
        paths = {request.path for request in server.requests}
        assert all(path.startswith("/data%20set/") for path in paths)


def test_nczarr_and_zarr_engines_read_store_with_index_pages_identically(tmp_path):
    dataset = tree().to_dataset()
    dataset.to_zarr(tmp_path / "store", zarr_format=2, consolidated=False)
    with IndexServer(tmp_path) as server:
        result = [
            xr.open_dataset(f"{server.url}/store", engine=engine, **options).load()
            for engine, options in (("nczarr", {}), ("zarr", {"consolidated": False}))
        ]
    assert result[0].identical(result[1])


def test_store_at_root_of_web_server_is_found(tmp_path):
    write_vintage(tmp_path / "store", sample("4.8.0"), "4.8.0")
    with IndexServer(tmp_path / "store", hidden=True) as server:
        dataset = xr.open_dataset(server.url, engine="nczarr")
        assert dataset.identical(xr.open_dataset(tmp_path / "store", engine="nczarr"))


def test_opening_store_requests_nonexistent_folder_once(served):
    with IndexServer(served) as server:
        opened(f"{server.url}/data set")
        nothing = [request for request in server.requests if "/nothing-" in request.path]
        assert len(nothing) == 1


@pytest.mark.parametrize("status", [401, 403, 404, 405, 500])
def test_error_response_for_directory_is_not_treated_as_index_page(http_server, served, status):
    os.rename(served / "data set", f"{http_server.root}/store")
    http_server.fault("status", path="*/", status=status, times=None)
    kind = UnsupportedError if status < 500 else StorageError
    with pytest.raises(kind, match="Consolidate the metadata" if status < 500 else "500"):
        opened(f"{http_server.url}/store", storage_options={"retry": {"attempts": 1}})


def test_pages_of_web_portals_are_not_mistaken_for_index_pages(served, http_server):
    """The page of a portal has another title, or is also sent for a folder that cannot exist."""
    for page in (PAGE, b"<html><title>Index of /data set/</title><a href='g/'>g</a></html>"):
        http_server.fallback = page
        link = Path(http_server.root, "data set")
        if not link.exists():
            link.symlink_to(served / "data set")
        with pytest.raises(UnsupportedError, match="no index pages"):
            opened(f"{http_server.url}/data set")
    (served / "data set" / "index.html").write_bytes(PAGE)
    with IndexServer(served) as server, pytest.raises(UnsupportedError, match="no index pages"):
        opened(f"{server.url}/data set")


URL = "https://host/data/a%20b/"
ROWS = '<a href="v/">v/</a> <a href="zarr.json">zarr.json</a>'
SERVERS = {
    "python": f"<title>Directory listing for /data/a b/</title><ul><li>{ROWS}</ul>",
    "nginx": f'<title>Index of /data/a b/</title><pre><a href="../">../</a>{ROWS}</pre>',
    "apache": "<title>Index of /data/a b</title><h1>Index of /data/a b</h1>"
    f'<a href="?C=N;O=D">Name</a><a href="/data/">Parent Directory</a>{ROWS}',
    "lighttpd": f'<title>Index of /data/a b/</title><h2>Index</h2><a href="../">..</a>/{ROWS}',
    "iis": '<title>host - /data/a b/</title><A HREF="/data/">[To Parent Directory]</A>'
    '<A HREF="/data/a%20b/v/">v</A><A HREF="/data/a%20b/zarr.json">zarr.json</A>',
    "tomcat": "<title>Directory Listing For [/data/a b/]</title>"
    '<a href="/data/a%20b/v/">v/</a><a href="/data/a%20b/zarr.json">zarr.json</a>',
    "behind a proxy": f"<title>Index of /inside/a b/</title>{ROWS}",
    "whole links": '<title>Index of /data/a b/</title><a href="https://host/data/a%20b/v/">v</a>'
    '<a href="//host/data/a%20b/zarr.json">zarr.json</a>',
}


@pytest.mark.parametrize("page", SERVERS.values(), ids=SERVERS)
def test_index_pages_of_common_servers_are_parsed(page):
    assert names_in_index(page.encode(), URL) == ["v/", "zarr.json"]


@pytest.mark.parametrize(
    "link",
    [
        "../other/",
        "/",
        "/data/",
        "/data/a%20b/",
        "/data/a%20bc/",
        "https://elsewhere/data/a%20b/v/",
        "//elsewhere/data/a%20b/v/",
        "v/w/",
        "v%2Fw",
        "..%2F",
        "%2E%2E/",
        ".",
        "?C=N",
        "v?C=N",
        "v#top",
        "#top",
        "mailto:me@host",
        "javascript:go()",
        "http://[",
        "",
    ],
)
def test_links_from_index_page_to_other_folders_are_ignored(link):
    page = f'<title>Index of /data/a b/</title><a href="{link}">x</a><a href="t/">t</a>'
    assert names_in_index(page.encode(), URL) == ["t/"]


@pytest.mark.parametrize(
    "page",
    [
        "",
        "plain text",
        f"<title>My data</title>{ROWS}",
        f"<title>a b</title>{ROWS}",
        f"<title>Index of /data/</title>{ROWS}",
        f"<title>Index of /data/a b/v/</title>{ROWS}",
        ROWS,
        "<title>Index of /inside/a b/</title><a href='/inside/a%20b/v/'>v</a>",
    ],
    ids=str,
)
def test_pages_that_are_not_index_of_requested_folder_are_ignored(page):
    assert names_in_index(page.encode(), URL) is None


def test_index_page_of_empty_folder_lists_no_names():
    page = "<title>Index of /data/a b/</title><a href='../'>..</a>"
    assert names_in_index(page.encode(), URL) == []


def test_index_pages_are_used_only_to_find_metadata(served):
    """Index pages may omit objects, so they are not used to count or copy chunks."""
    with IndexServer(served) as server:
        url = f"{server.url}/data set"
        store = open_store(url)
        with pytest.raises(UnsupportedError, match="cannot list"):
            store.list_names("")
        assert "g" in store.probing().list_names("").prefixes
        xr_nczarr.references.write(url, served / "set.json")  # requests each chunk of the grids
        xr.testing.assert_identical(opened(served / "set.json"), opened(url))


# Pages instead of missing objects ----------------------------------------------------------------


@pytest.fixture(params=["", "simplecache::"], ids=["plain", "cached"])
def cached(request):
    return request.param


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("consolidated", [None, True])
def test_store_can_be_opened_if_server_sends_web_pages_for_missing_objects(
    http_server, cached, zarr_format, consolidated
):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree().to_zarr(f"{http_server.root}/store", zarr_format=zarr_format, consolidated=True)
    http_server.fallback = PAGE
    dataset = opened(f"{cached}{http_server.url}/store", consolidated=consolidated)
    assert dataset.identical(tree())


@pytest.mark.parametrize("release", ["4.8.0", "4.9.0", "4.10"])
def test_netcdf_c_stores_can_be_read_if_server_sends_web_pages_for_missing_objects(
    http_server, cached, release
):
    write_vintage(Path(http_server.root, "store"), sample(release), release)
    expected = xr.open_groups(f"{http_server.root}/store", engine="nczarr")
    http_server.fallback = PAGE
    groups = xr.open_groups(f"{cached}{http_server.url}/store", engine="nczarr")
    assert groups.keys() == expected.keys()
    for path, dataset in expected.items():
        unwritten = [name for name in dataset.variables if name == "empty"]
        assert groups[path].drop_vars(unwritten).identical(dataset.drop_vars(unwritten))


@with_ranges
@pytest.mark.parametrize("target", ["nothing", "nothing.json", "reference::{}/nothing.json"])
def test_error_for_missing_store_quotes_page_sent_by_server(http_server, cached, target):
    http_server.fallback = PAGE
    url = f"{http_server.url}/{target}"
    if "reference" in target:
        url = target.format(cached + http_server.url)
    with pytest.raises(StorageError, match="page begins with <!doctype html>"):
        xr.open_dataset(url, engine="nczarr")
    http_server.fallback = None
    with pytest.raises(NotFoundError):
        xr.open_dataset(url, engine="nczarr")


@pytest.mark.parametrize("group", ["missing", "g/missing"])
def test_missing_group_is_reported_without_listing_folders(served, group):
    with (
        HttpServer(served) as server,
        pytest.raises(NotFoundError, match=f"unknown group.*{group}"),
    ):
        xr.open_dataset(f"{server.url}/data%20set", engine="nczarr", group=group)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_web_page_received_instead_of_chunk_raises_storage_error(http_server, cached, zarr_format):
    values = xr.Dataset({"v": ("x", [1.0, np.nan])}).chunk(x=1)
    store = f"{http_server.root}/store"
    encoding = {"v": {"compressors": None}}
    options = {"zarr_format": zarr_format, "encoding": encoding, "consolidated": True}
    xr_nczarr.to_nczarr(values, store, **options)
    chunk = next(Path(store).rglob("1"), None)
    if chunk is not None:
        chunk.unlink()
    url = f"{cached}{http_server.url}/store"
    assert np.isnan(xr.open_dataset(url, engine="nczarr").v.values[1])
    # The second page is as long as the chunk.
    for page in (PAGE, b"<html>" + bytes(2), b"<?xml?>\n<!-- <a> -->\n" * 20 + PAGE):
        http_server.fallback = page
        dataset = xr.open_dataset(url, engine="nczarr")
        assert dataset.v[0] == 1.0
        with pytest.raises(StorageError, match="page begins with <"):
            dataset.v.load()


@pytest.mark.parametrize("fallback", [None, PAGE], ids=["without pages", "with pages"])
@pytest.mark.parametrize("key", ["v/.zattrs", ".zattrs", "v/.zarray", "g/.zgroup"])
def test_login_page_received_instead_of_metadata_raises_storage_error(
    http_server, cached, key, fallback
):
    store = Path(http_server.root, "store")
    xr_nczarr.to_nczarr(tree(), store, consolidated=False)
    http_server.fallback = fallback
    url = f"{cached}{http_server.url}/store"
    assert opened(url).identical(tree())
    (store / key).write_bytes(LOGIN_PAGE)
    with pytest.raises(StorageError, match="page begins with <!DOCTYPE html>") as caught:
        opened(url)
    assert caught.value.key == key


def test_web_pages_are_never_cached(http_server, tmp_path):
    http_server.fallback = PAGE
    options = {"simplecache": {"cache_storage": str(tmp_path / "cache")}}
    url = f"simplecache::{http_server.url}/store"
    with pytest.raises(StorageError, match="web page"):
        xr.open_dataset(url, engine="nczarr", storage_options=options)
    xr_nczarr.to_nczarr(tree(), f"{http_server.root}/store")
    assert opened(url, storage_options=options).identical(tree())


def test_strings_that_contain_html_tags_are_read_unchanged(http_server):
    text = np.array(["<p>", "plain", "<!-- note -->"], object)
    put(Path(http_server.root), {"keep": b""})
    xr.Dataset({"s": ("x", text)}).nczarr.to_nczarr(f"{http_server.root}/store", zarr_format=3)
    dataset = xr.open_dataset(f"{http_server.url}/store", engine="nczarr")
    assert dataset.s.values.tolist() == text.tolist()


def test_chunk_whose_bytes_resemble_web_page_is_read(http_server):
    values = np.frombuffer(b"<!---->" * 140 + b"<?xml?>", np.uint8)
    encoding = {"v": {"compressors": None}}
    dataset = xr.Dataset({"v": ("x", values)})
    xr_nczarr.to_nczarr(dataset, f"{http_server.root}/store", encoding=encoding)
    with xr.open_dataset(f"{http_server.url}/store", engine="nczarr") as opened_dataset:
        assert opened_dataset.identical(dataset)


def test_web_page_returned_by_http_mapper_raises_storage_error(http_server):
    xr_nczarr.to_nczarr(tree(), f"{http_server.root}/store")
    mapper = fsspec.get_mapper(f"{http_server.url}/store")
    assert opened(mapper).identical(tree())
    http_server.fault("html", path="*/v/0", times=None)
    with pytest.raises(StorageError, match="web page"):
        opened(mapper)


def test_missing_status_option_applies_to_chunks(
    http_server: HttpServer,
) -> None:
    with netCDF4.Dataset(file_url(Path(http_server.root, "s")), "w") as dataset:
        dataset.createDimension("x", 4)
        dataset.createVariable("v", "i4", ("x",), chunksizes=[2], fill_value=7)[:2] = 5
    http_server.fault("status", path="*/v/1", status=403, times=None)
    opened = read(f"{http_server.url}/s", storage_options={"missing_status": [403, 404]}, **RAW)
    assert opened.v.values.tolist() == [5, 5, 7, 7]
