"""``trust="none"``: the rules and limits for a service that opens untrusted stores."""

import dataclasses
import gc
import json
import os
import warnings
from contextlib import suppress
from pathlib import Path

import fsspec
import numcodecs
import numpy as np
import pytest
import xarray as xr
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from fsspec.implementations.cached import SimpleCacheFileSystem
from fsspec.implementations.dirfs import DirFileSystem

from tests.fuzz import oracle
from tests.servers import HttpServer
from tests.stores import array_document, put, write_zip
from xr_nczarr.errors import LimitError, NczarrError, RefusedError
from xr_nczarr.model import DEFAULT_LIMITS, STRICT_LIMITS, Limits
from xr_nczarr.options import OpenOptions
from xr_nczarr.references import write
from xr_nczarr.references.targets import ReferenceTrust

MIB = 1 << 20
NAMED = json.dumps({"_ARRAY_DIMENSIONS": ["x"]})
MEMBERS = {
    ".zgroup": '{"zarr_format": 2}',
    "v/.zarray": json.dumps(array_document((4,))),
    "v/.zattrs": NAMED,
}
VALUES = np.arange(4, dtype="<i4")


def opened(target, **options):
    return xr.open_dataset(target, engine="nczarr", trust="none", **options)


def values(target, **options):
    with opened(target, **options) as dataset:
        return dataset.v.values.tolist()


def reference_set(folder, url):
    return put(folder, {"refs.json": MEMBERS | {"v/0": [url, 0, 16]}}) / "refs.json"


@pytest.fixture
def folder(tmp_path):
    put(tmp_path, {"mine/data.bin": VALUES.tobytes(), "secret.bin": VALUES.tobytes()})
    os.symlink(tmp_path / "secret.bin", tmp_path / "mine" / "link.bin")
    return tmp_path / "mine"


class TestLocalSets:
    def test_local_reference_set_can_reference_files_in_its_folder(self, folder):
        assert values(reference_set(folder, "data.bin")) == [0, 1, 2, 3]
        assert values(reference_set(folder, f"{folder}/data.bin")) == [0, 1, 2, 3]
        assert values(reference_set(folder, f"file://{folder}/data.bin")) == [0, 1, 2, 3]

    @pytest.mark.parametrize("url", ["../secret.bin", "{}/../secret.bin", "link.bin", "/etc/hosts"])
    def test_local_reference_set_cannot_reference_files_outside_its_folder(self, folder, url):
        with pytest.raises(RefusedError, match="outside the allowed locations"):
            values(reference_set(folder, url.format(folder)))

    @pytest.mark.parametrize("url", ["https://example.org/x", "s3://b/x", "memory://x", "a::b"])
    def test_local_reference_set_cannot_reference_remote_locations(self, folder, url):
        with pytest.raises(RefusedError):
            values(reference_set(folder, url))

    def test_local_reference_set_can_reference_allowed_locations(self, folder):
        target = reference_set(folder, "../secret.bin")
        assert xr.open_dataset(target, engine="nczarr").v.values.tolist() == [0, 1, 2, 3]
        allow = {"allow": [str(folder.parent)]}
        assert values(target, storage_options=allow) == [0, 1, 2, 3]

    def test_in_memory_reference_set_cannot_reference_local_files(self, folder, monkeypatch):
        monkeypatch.chdir(folder)
        with pytest.raises(RefusedError, match="outside the allowed locations"):
            values(MEMBERS | {"v/0": ["data.bin", 0, 16]})


class TestRemoteSets:
    @pytest.fixture
    def served(self, http_server):
        put(Path(http_server.root), {"mine/data.bin": VALUES.tobytes(), "x.bin": VALUES.tobytes()})
        return http_server

    def read(self, served, url):
        reference_set(Path(served.root) / "mine", url.format(served.url))
        return values(f"{served.url}/mine/refs.json?token=a/b")

    @pytest.mark.parametrize("url", ["data.bin", "{}/mine/data.bin"])
    def test_remote_reference_set_can_reference_files_in_its_folder(self, served, url):
        assert self.read(served, url) == [0, 1, 2, 3]

    @pytest.mark.parametrize(
        "url", ["../x.bin", "{}/x.bin", "{}/mine/../x.bin", "{}/mine/%2e%2e/x.bin", "/etc/hosts"]
    )
    def test_remote_reference_set_cannot_reference_files_outside_its_folder(self, served, url):
        with pytest.raises(RefusedError):
            self.read(served, url)
        assert not served.requests_for("*/x.bin")

    def test_references_redirected_to_another_folder_are_rejected(self, served):
        served.fault("redirect", path="/mine/data.bin", location="/x.bin", times=None)
        with pytest.raises(RefusedError):
            self.read(served, "data.bin")
        assert not served.requests_for("/x.bin")


class TestRedirects:
    """Redirects of the requests for a plain store and for a reference document."""

    @pytest.fixture
    def stores(self, http_server):
        root = Path(http_server.root)
        put(root / "s", consolidated() | {"v/0": VALUES.tobytes(), "v/moved": VALUES.tobytes()})
        put(root, {"x.bin": (VALUES + 4).tobytes()})
        with HttpServer(http_server.root) as other:
            yield http_server, other

    @pytest.mark.parametrize("elsewhere", [False, True])
    def test_redirects_away_from_store_url_are_rejected(self, stores, elsewhere):
        server, other = stores
        to = f"{other.url}/x.bin" if elsewhere else "/x.bin"
        server.fault("redirect", path="/s/v/0", location=to, times=None)
        url = f"{server.url}/s"
        assert xr.open_dataset(url, engine="nczarr").v.values.tolist() == [4, 5, 6, 7]
        server.requests.clear()
        other.requests.clear()
        with pytest.raises(RefusedError, match="outside the opened location"):
            values(url)
        assert not server.requests_for("*/x.bin")
        assert not other.requests_for("*/x.bin")

    def test_redirects_within_store_url_are_followed(self, stores):
        server, _ = stores
        server.fault("redirect", path="/s/v/0", location="/s/v/moved", times=None)
        assert values(f"{server.url}/s") == [0, 1, 2, 3]

    def test_redirects_to_another_reference_set_are_rejected(self, stores):
        server, other = stores
        reference_set(Path(server.root), "x.bin")
        to = f"{other.url}/refs.json"
        server.fault("redirect", path="/s/refs.json", location=to, times=None)
        with pytest.raises(RefusedError, match="outside the opened location"):
            values(f"{server.url}/s/refs.json")
        assert not other.requests_for("*/refs.json")


def test_symlinks_pointing_outside_store_are_rejected(folder, tmp_path):
    store = put(tmp_path / "mine" / "store", MEMBERS)
    os.symlink(tmp_path / "secret.bin", store / "v" / "0")
    assert xr.open_dataset(store, engine="nczarr").v.values.tolist() == [0, 1, 2, 3]
    with pytest.raises(RefusedError, match=r"store: v/0: .*link.*without trust"):
        values(store)


@pytest.mark.parametrize("prefix", ["", "reference::"])
@pytest.mark.parametrize("name", [".zmetadata", "v/refs.0.parq"])
def test_symlinks_pointing_outside_parquet_reference_set_are_rejected(
    name, prefix, folder, tmp_path
):
    records = folder / "set.parq"
    write(MEMBERS | {"v/0": VALUES.tobytes()}, records)
    target = f"{prefix}{records}"
    assert values(target) == [0, 1, 2, 3]
    (records / name).rename(tmp_path / "moved")
    os.symlink(tmp_path / "moved", records / name)
    assert xr.open_dataset(target, engine="nczarr").v.values.tolist() == [0, 1, 2, 3]
    with pytest.raises(RefusedError, match="link points outside"):
        values(target)


@pytest.mark.parametrize("cache", ["simplecache", "filecache"])
@pytest.mark.parametrize("as_mapper", [False, True])
def test_symlinks_pointing_outside_cached_store_are_rejected(as_mapper, cache, folder, tmp_path):
    store = put(folder / "store", MEMBERS)
    os.symlink(tmp_path / "secret.bin", store / "v" / "0")
    url = f"{cache}::file://{store}"
    target = fsspec.get_mapper(url) if as_mapper else url
    assert xr.open_dataset(target, engine="nczarr").v.values.tolist() == [0, 1, 2, 3]
    with pytest.raises(RefusedError, match="symbolic link"):
        values(target)


@pytest.mark.parametrize("url", ["dir://store::file://{}", "simplecache::dir://store::file://{}"])
def test_untrusted_local_store_cannot_be_opened_through_chained_url(url, folder, tmp_path):
    store = put(folder / "store", MEMBERS)
    os.symlink(tmp_path / "secret.bin", store / "v" / "0")
    url = url.format(folder)
    assert xr.open_dataset(url, engine="nczarr").v.values.tolist() == [0, 1, 2, 3]
    with pytest.raises(
        RefusedError, match="a local folder cannot be opened through fsspec, which follows"
    ):
        values(url)


def test_untrusted_local_store_cannot_be_opened_through_wrapped_filesystem(folder, tmp_path):
    store = put(folder / "store", MEMBERS)
    os.symlink(tmp_path / "secret.bin", store / "v" / "0")
    local = AsyncFileSystemWrapper(fsspec.filesystem("file"), asynchronous=False)
    inner = DirFileSystem(str(folder), local)
    target = SimpleCacheFileSystem(fs=inner).get_mapper("store")
    with pytest.raises(
        RefusedError, match="a local folder cannot be opened through fsspec, which follows"
    ):
        values(target)


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("simplecache://{}/store", {"target_protocol": "file"}),
        ("dir://store", {"target_protocol": "file", "path": "{}"}),
    ],
    ids=["simplecache", "dir"],
)
def test_untrusted_local_store_cannot_be_opened_with_target_protocol_option(
    url, options, folder, tmp_path
):
    store = put(folder / "store", MEMBERS)
    os.symlink(tmp_path / "secret.bin", store / "v" / "0")
    options = {name: value.format(folder) for name, value in options.items()}
    arguments = {"engine": "nczarr", "storage_options": options}
    opened = xr.open_dataset(url.format(folder), **arguments)
    assert opened.v.values.tolist() == [0, 1, 2, 3]
    with pytest.raises(
        RefusedError, match="a local folder cannot be opened through fsspec, which follows"
    ):
        xr.open_dataset(url.format(folder), trust="none", **arguments)


def test_zip_file_can_be_opened_through_cache(folder):
    write_zip(folder / "store.zip", {**MEMBERS, "v/0": VALUES.tobytes()})
    assert values(f"simplecache::zip://::file://{folder}/store.zip") == [0, 1, 2, 3]


def test_local_parquet_reference_set_cannot_be_opened_through_cache(folder):
    records = folder / "set.parq"
    write(MEMBERS | {"v/0": VALUES.tobytes()}, records)
    url = f"simplecache::file://{records}"
    for target, options in ((f"reference::{url}", {}), ("reference://", {"fo": url})):
        with pytest.raises(
            RefusedError, match="a local folder cannot be opened through fsspec, which follows"
        ):
            opened(target, storage_options=options)


def test_default_limits_are_strict(tmp_path):
    members = MEMBERS | {".zattrs": json.dumps({"a": "x" * 2 * MIB}), "v/0": VALUES.tobytes()}
    store = put(tmp_path, members)
    with pytest.raises(LimitError, match="max_metadata_bytes"):
        values(store)
    assert values(store, limits={"max_metadata_bytes": 4 * MIB}) == [0, 1, 2, 3]


def test_size_of_remote_metadata_documents_is_limited_before_reading(http_server):
    members = MEMBERS | {".zattrs": json.dumps({"a": "x" * 3 * MIB})}
    put(Path(http_server.root), members)
    with pytest.raises(LimitError, match="exceeds the limit of 2,097,152 bytes"):
        values(http_server.url)


@pytest.mark.parametrize("limit", [field.name for field in dataclasses.fields(Limits)])
def test_passed_limit_overrides_strict_default(limit):
    ordinary = getattr(DEFAULT_LIMITS, limit)
    for limits in ({limit: int(ordinary)}, Limits(**{limit: int(ordinary)})):
        bounds = OpenOptions(trust="none", limits=limits).bounds
        assert bounds == dataclasses.replace(STRICT_LIMITS, **{limit: ordinary})
    assert OpenOptions(trust="none").bounds == STRICT_LIMITS
    assert OpenOptions().bounds == DEFAULT_LIMITS


@pytest.mark.parametrize("form", ["v2", "v3"])
@pytest.mark.parametrize(
    ("paths", "option"),
    [(["/".join("a" * 3000)], "max_depth"), (["b" * i for i in range(1, 20)], "max_nodes")],
)
def test_node_and_depth_limits_apply_to_consolidated_metadata(paths, option, form):
    members = {f"{path}/.zarray": array_document((4,)) for path in paths}
    group = {"zarr_format": 2}
    store = {".zgroup": group, ".zmetadata": {"zarr_consolidated_format": 1, "metadata": members}}
    if form == "v3":
        group = {"zarr_format": 3, "node_type": "group"}
        members = dict.fromkeys(paths, group)
        inline = {"kind": "inline", "must_understand": False, "metadata": members}
        store = {"zarr.json": group | {"consolidated_metadata": inline}}
    store = {key: json.dumps(document).encode() for key, document in store.items()}
    for open_one in (xr.open_dataset, xr.open_datatree):
        with pytest.raises(LimitError, match=option):
            open_one(store, engine="nczarr", limits={"max_nodes": 10})


def test_nodes_outside_opened_group_do_not_count_toward_node_limit():
    members = {f"g/{name}/.zgroup": {"zarr_format": 2} for name in "abc"}
    members |= {f"h/{number}/.zgroup": {"zarr_format": 2} for number in range(9)}
    document = {"zarr_consolidated_format": 1, "metadata": members}
    store = {".zgroup": b'{"zarr_format": 2}', ".zmetadata": json.dumps(document).encode()}
    tree = xr.open_datatree(store, engine="nczarr", group="g", limits={"max_nodes": 5})
    assert list(tree.children) == ["a", "b", "c"]


@pytest.mark.parametrize(
    "options",
    [{"codecs": {"pickle": numcodecs.Pickle}}, {"storage_options": {"templates": "jinja2"}}],
)
def test_options_that_require_trust_are_rejected(folder, options):
    with pytest.raises(ValueError, match="is not allowed with"):
        values(reference_set(folder, "data.bin"), **options)


def test_invalid_trust_values_are_rejected(folder):
    with pytest.raises(ValueError, match="trust"):
        xr.open_dataset(folder, engine="nczarr", trust="some")


def consolidated(*members):
    texts = ",".join(f'"{key}": {text}' for key, text in (*MEMBERS.items(), *members))
    return {".zmetadata": '{"zarr_consolidated_format": 1, "metadata": {' + texts + "}}"}


def many(count, form):
    return [form.format(number) for number in range(count)]


def references(entries, ending="}"):
    return {"refs.json": json.dumps(MEMBERS)[:-1] + "," + ",".join(entries) + ending}


def one_chunk(codec, data):
    array = array_document((4,), "|O", fill_value="", filters=[{"id": codec}])
    return {**MEMBERS, "v/.zarray": json.dumps(array), "v/0": data}


LARGEST = {
    "attributes of one long text": lambda: {
        **MEMBERS,
        ".zattrs": '{"a":"%s"}' % ("é" * (MIB // 3)),
    },
    "attributes of empty lists": lambda: {**MEMBERS, ".zattrs": '{"a":[%s0]}' % ("[]," * 3990)},
    "consolidated texts": lambda: consolidated(
        (".zattrs", json.dumps({"a": ["😀" * 100] * 3000}, ensure_ascii=False))
    ),
    "consolidated groups": lambda: consolidated(
        *((name, '{"zarr_format":2}') for name in many(6_800, "g{}/.zgroup"))
    ),
    "groups that are no groups": lambda: consolidated(
        *((name, "{}") for name in many(7_000, "g{0}/g{0}/.zattrs"))
    ),
    "references": lambda: references(many(85_000, '"v/{0}":["a",{0},4]')),
    "references with spaces": lambda: references(many(80_000, '"v/{0}": ["a",{0},4]')),
    "references of one folder each": lambda: references(many(76_000, '"v{0}/0":["a",{0},4]')),
    "references of one folder each, with spaces": lambda: references(
        many(76_000, '"v{0}/0" : ["a",{0},4]')
    ),
    "references to one file each": lambda: references(many(72_000, '"v/{0}":["u{0}",{0},4]')),
    "references that hold bytes": lambda: references(many(86_000, '"v/{0}":"base64:AA=="')),
    "objects of JSON": lambda: one_chunk("json2", "[" + "[]," * 200_000 + '"|O",[4]]'),
    "objects of JSON, too many": lambda: one_chunk("json2", "[" + "{}," * 4 * MIB + '"|O",[4]]'),
    "objects of msgpack": lambda: one_chunk("msgpack2", b"\xdd\0\x0c\0\0" + b"\x90" * 0xC0000),
    "objects of msgpack, too many": lambda: one_chunk(
        "msgpack2", b"\xdd\x02\0\0\0" + b"\x80" * (32 * MIB)
    ),
}


@pytest.mark.parametrize("name", LARGEST)
def test_opening_largest_accepted_store_stays_within_memory_and_time_budget(
    name, tmp_path, monkeypatch
):
    """The budget is 64 MiB and 5 s. `judge` also requires that every error has a location."""
    monkeypatch.setattr(oracle, "MAX_GROWTH", 64 * MIB)
    documents = LARGEST[name]()
    target = put(tmp_path, documents)
    target = target / "refs.json" if "refs.json" in documents else target
    values_of_objects = "v/0" in documents

    def read(_: bytes) -> None:
        with opened(target) as dataset:
            if values_of_objects:
                dataset.v.load()

    # The cost of imports is not counted.
    first = [{**MEMBERS, "v/0": VALUES.tobytes()}, one_chunk("msgpack2", b"\x91\x90")]
    for number, objects in enumerate(first):
        with warnings.catch_warnings(action="ignore"), suppress(NczarrError):
            opened(put(tmp_path / f"first {number}", objects)).load()
    gc.collect()
    gc.freeze()  # exclude the objects of other tests from garbage collection while measuring
    try:
        oracle.judge(read, b"")
    finally:
        gc.unfreeze()


@pytest.mark.filterwarnings("ignore:/v (was not decoded|has no index):xarray.SerializationWarning")
@pytest.mark.parametrize("codec", ["json2", "msgpack2"])
def test_number_of_objects_in_chunk_is_limited_before_decoding(codec, tmp_path):
    data = b"[" + b"[]," * 1_000_000 + b'"|O",[4]]' if codec == "json2" else b"\x90" * 1_000_000
    store = put(tmp_path, one_chunk(codec, data))
    with pytest.raises(NczarrError, match="max_chunk_bytes") as caught:
        xr.open_dataset(store, engine="nczarr", limits={"max_chunk_bytes": 64 * MIB}).v.load()
    assert isinstance(caught.value, LimitError)


@pytest.mark.parametrize(
    ("document", "inside"), [("/refs.json", "/a.nc"), ("data:x.json", None), ("", None)]
)
def test_untrusted_reference_set_without_parent_folder_cannot_reference_urls(document, inside):
    """The name of the set has no folder. An empty prefix would allow references to every URL."""
    trust = ReferenceTrust().for_untrusted(document)
    for url in ("s3://bucket/a.nc", "https://example.org/a.nc", "memory://a"):
        with pytest.raises(RefusedError):
            trust.check(url)
        with pytest.raises(RefusedError):
            trust.check_redirect("https://example.org/b.nc", url)
    if inside is not None:
        trust.check(inside)
