"""Reference sets opened as stores: recognition, permitted targets, and the scope of options."""

import ast
import gzip
import itertools
import json
import os
import pickle
import tempfile
from typing import ClassVar

import fsspec
import numcodecs
import numpy as np
import pytest
import xarray as xr
import zarr
from fsspec.implementations.local import LocalFileSystem

import xr_nczarr
from tests.reading import open_store
from tests.references.test_web_servers import with_ranges
from tests.servers import HttpServer
from tests.stores import array_document
from xr_nczarr.backend.lazy import SelectedArray
from xr_nczarr.errors import (
    AccessDeniedError,
    ChunkError,
    LimitError,
    NczarrError,
    NotFoundError,
    ReferenceSetError,
    RefusedError,
    StorageError,
    UnsupportedError,
)
from xr_nczarr.model import ChunkKeys, Limits
from xr_nczarr.references.reference_store import ReferenceStore
from xr_nczarr.references.storage_options import ReferenceOptions
from xr_nczarr.references.targets import ReferenceTrust, Targets, origin_of
from xr_nczarr.storage import Access, ByteRange, MemoryStore
from xr_nczarr.storage.trust import is_private

VALUES = np.arange(12, dtype="<i4")
ARRAY = array_document([12], chunks=[4], fill_value=-1)


def version0(url, **more):
    """Return a reference document of version 0 for one variable.

    The variable is stored in three ranges of the file at `url`.
    """
    return {
        ".zgroup": '{"zarr_format": 2}',
        "t/.zarray": json.dumps(ARRAY),
        "t/.zattrs": json.dumps({"_ARRAY_DIMENSIONS": ["x"]}),
        **{f"t/{i}": [url, 5 + 16 * i, 16] for i in range(3)},
        **more,
    }


def read(target, **storage_options):
    """Return the values of the variable."""
    dataset = xr.open_dataset(target, engine="nczarr", storage_options=storage_options)
    return dataset.t.values.tolist()


@pytest.fixture
def data(tmp_path):
    """Write a file that contains the values, with five other bytes before and after them."""
    path = tmp_path / "data.bin"
    path.write_bytes(b"\0" * 5 + VALUES.tobytes() + b"\0" * 5)
    return path


@pytest.fixture
def served(http_server, data):
    """Return a server that serves the file `data`."""
    os.rename(data, f"{http_server.root}/data.bin")
    return http_server


def put(folder, name, document):
    with open(f"{folder}/{name}", "w") as file:
        json.dump(document, file)
    return f"{folder}/{name}"


class TestTargets:
    """Targets that open as a reference set."""

    @pytest.mark.parametrize("form", ["v0", "v1", "as text"])
    def test_dictionary_can_be_opened_as_reference_set(self, data, form):
        document = version0(str(data))
        if form != "v0":
            document = {"version": 1, "refs": document}
        if form == "as text":
            assert read("reference://", fo=document) == VALUES.tolist()
        assert read(document) == VALUES.tolist()

    @pytest.mark.parametrize(
        ("name", "pack"),
        [
            ("refs.json", bytes),
            ("refs.json.gz", gzip.compress),
            ("refs.json.zst", lambda text: numcodecs.Zstd().encode(text)),
            ("refs.json", gzip.compress),
        ],
    )
    @pytest.mark.parametrize(
        "spelling", ["{}", "file://{}", "reference::{}", "{}#mode=zarr", "reference://::{}"]
    )
    def test_reference_set_can_be_opened_from_local_file(
        self, tmp_path, data, name, pack, spelling
    ):
        path = tmp_path / name
        path.write_bytes(pack(json.dumps(version0("data.bin")).encode()))
        assert read(spelling.format(path)) == VALUES.tolist()
        assert read("reference://", fo=str(path)) == VALUES.tolist()
        assert read(path) == VALUES.tolist()

    def test_references_can_point_to_parent_folder(self, tmp_path, data):
        (tmp_path / "sets").mkdir()
        path = put(tmp_path / "sets", "refs.json", version0(f"../{data.name}"))
        assert read(path) == read(f"file://{path}") == VALUES.tolist()

    def test_reference_set_can_be_opened_from_http_url(self, served):
        put(served.root, "refs.json", version0("data.bin"))
        assert read(f"{served.url}/refs.json") == VALUES.tolist()
        assert read(f"reference::{served.url}/refs.json?a=b") == VALUES.tolist()
        fo = f"{served.url}/refs.json"
        assert read("reference://", fo=fo) == VALUES.tolist()
        assert read("reference://", fo=fo, remote_protocol="http") == VALUES.tolist()

    def test_reference_set_can_be_opened_from_s3_bucket(self, s3_server, tmp_path, data):
        put(tmp_path, "refs.json", version0("data.bin"))
        url = s3_server.upload(tmp_path, "sets")
        assert read(f"{url}/refs.json", **s3_server.storage_options) == VALUES.tolist()

    def test_referenced_files_can_be_on_any_filesystem(self, tmp_path, data):
        filesystem = fsspec.filesystem("memory")
        filesystem.pipe("/refs/data.bin", data.read_bytes())
        filesystem.pipe("/refs/refs.json", json.dumps(version0("data.bin")).encode())
        assert read("memory://refs/refs.json") == VALUES.tolist()
        url = put(tmp_path, "refs.json", version0("memory://refs/data.bin"))
        assert read(url) == VALUES.tolist()
        filesystem.pipe(str(data), data.read_bytes())
        data.write_bytes(bytes(100))  # a local file with the same path
        for path in ("refs/data.bin", "/refs/data.bin", str(data)):
            plain = put(tmp_path, "plain.json", version0(path))
            assert read(plain, remote_protocol="memory") == VALUES.tolist()
        filesystem.store.clear()

    def test_mapping_of_strings_is_opened_as_reference_set(self):
        assert isinstance(open_store({".zgroup": b"{}"}), MemoryStore)
        assert isinstance(open_store({".zgroup": "{}"}), ReferenceStore)

    def test_missing_reference_document_raises_not_found_error(self, tmp_path, served):
        for target in (tmp_path / "refs.json", f"{served.url}/refs.json"):
            with pytest.raises(NotFoundError, match="the reference set does not exist"):
                open_store(target)
        with pytest.raises(UnsupportedError, match='option "fo"'):
            open_store("reference://")
        options = {"fo": f"reference://group::{tmp_path}/refs.json"}
        with pytest.raises(UnsupportedError, match='must not begin with "reference:"'):
            open_store("reference://", storage_options=options)

    def test_error_for_damaged_reference_document_includes_document_name(self, tmp_path):
        path = tmp_path / "refs.json"
        path.write_text("{")
        with pytest.raises(ReferenceSetError, match=r"refs\.json: the reference document is not"):
            open_store(path)

    @pytest.mark.parametrize("pack", [gzip.compress, lambda text: numcodecs.Zstd().encode(text)])
    def test_decompressed_reference_document_size_is_limited(self, tmp_path, pack):
        path = tmp_path / "refs.json"
        path.write_bytes(pack(b" " * 1_000_000))
        with pytest.raises(LimitError, match="max_consolidated_bytes"):
            open_store(path, limits=Limits(max_consolidated_bytes=100_000))

    @pytest.mark.parametrize("pack", [gzip.compress, lambda text: numcodecs.Zstd().encode(text)])
    def test_truncated_compressed_reference_document_raises_chunk_error(self, tmp_path, pack):
        path = tmp_path / "refs.json"
        path.write_bytes(pack(json.dumps(version0("data.bin")).encode())[:-9])
        with pytest.raises(ChunkError, match=r"refs\.json.*document is damaged or truncated"):
            open_store(path)

    def test_template_language_and_overrides_can_be_set_in_storage_options(self, tmp_path, data):
        document = {
            "version": 1,
            "templates": {"u": "nowhere"},
            "refs": version0("{% if true %}{{u}}{% endif %}"),
        }
        options = {"template_overrides": {"u": str(data)}, "templates": "jinja2"}
        assert read(document, **options) == VALUES.tolist()
        with pytest.raises(RefusedError, match='templates="jinja2"'):
            read(document)


class TestStore:
    """The store of a reference set."""

    def test_values_are_fetched_in_order_of_requested_keys(self, served, data_copy):
        document = version0(str(data_copy)) | {
            "web": [f"{served.url}/data.bin", 9, 4],
            "whole": [str(data_copy)],
            "webwhole": [f"{served.url}/data.bin"],
            "text": "inline",
            "empty": [str(data_copy), 0, 0],
        }
        store = open_store(document)
        whole = data_copy.read_bytes()
        keys = ["web", "t/2", "none", "text", "t/0", "whole", "webwhole", "empty", "t/1", "web"]
        expected = [
            *(whole[9:13], whole[37:53], None, b"inline", whole[5:21]),
            *(whole, whole, b"", whole[21:37], whole[9:13]),
        ]
        assert [data if data is None else bytes(data) for data in store.fetch(keys)] == expected
        assert [store.size(key) for key in keys] == [
            None if data is None else len(data) for data in expected
        ]

    @pytest.fixture
    def data_copy(self, tmp_path):
        path = tmp_path / "copy.bin"
        path.write_bytes(b"\0" * 5 + VALUES.tobytes() + b"\0" * 5)
        return path

    @pytest.mark.parametrize("key", ["part", "whole", "text"])
    def test_requested_ranges_are_relative_to_referenced_range(self, data_copy, key):
        document = {
            "part": [str(data_copy), 5, 48],
            "whole": [str(data_copy)],
            "text": "0123456789",
        }
        store = open_store(document)
        (whole,) = store.fetch([key])
        size = len(whole)
        ranges = [(0, 3), (2, 4), (-3, 3), (size - 1, 1), (4, 0)]
        result = store.fetch_ranges([ByteRange(key, start, length) for start, length in ranges])
        assert [bytes(data) for data in result] == [
            bytes(whole[start : start + length or None])[:length] for start, length in ranges
        ]
        for start, length in ((0, size + 1), (size, 1), (-size - 1, 1), (-2, 3), (0, -1)):
            with pytest.raises(StorageError):
                list(store.fetch_ranges([ByteRange(key, start, length)]))
        assert list(store.fetch_ranges([ByteRange("none", 0, 5)])) == [None]

    def test_remote_references_are_detected_without_reading_all_keys(self, tmp_path):
        documents = version0("nowhere") | {"t/.zarray": json.dumps(ARRAY | {"shape": [10**13]})}
        metadata = {key: documents[key] for key in documents if key[-1] not in "012"}
        (tmp_path / "set.parq").mkdir()
        put(tmp_path / "set.parq", ".zmetadata", {"metadata": metadata, "record_size": 1})
        assert not open_store(tmp_path / "set.parq").remote
        many = {f"{name}/.zattrs": "{}" for name in range(200)}
        assert open_store({**many, **version0("s3://bucket/a.nc")}).remote
        assert not open_store({**many, **version0("a.nc")}).remote
        options = {"remote_protocol": "file"}
        assert not open_store(version0(f"{tmp_path}/a.nc"), storage_options=options).remote

    def test_chunks_fetched_together_equal_chunks_fetched_separately(self, tmp_path):
        shape, rng = (3, 40), np.random.default_rng(0)
        data = [tmp_path / "0.bin", tmp_path / "1.bin"]
        for path in data:
            path.write_bytes(rng.bytes(4000))
        listed = {
            "dense": list(np.ndindex(shape)),
            "sparse": [index for index in np.ndindex(shape) if sum(index) % 5],
        }
        document = {
            f"{name}/{i}{separator}{j}": [str(data[j % 2]), 10 * (i + 3 * j), 1 + j]
            for name, indices in listed.items()
            for i, j in indices
            for separator in "./"
        }
        document |= {f"line/{i}": [str(data[0]), i, 4] for i in range(100)}
        store = open_store(document | {"sparse/0.0": "inline"})
        for name, separator, rank in itertools.product((*listed, "line"), "./", (1, 2)):
            keys = ChunkKeys(f"{name}/", separator, f"{name}/0")
            if rank != (1 if name == "line" else 2):
                assert store._fetch_together(keys, [(0,) * rank] * 10) is None
                continue
            indices = listed.get(name, [(j,) for j in range(40)])
            absent = [[*indices[:70], index] for index in ((2, 3)[:rank], (99,) * rank)]
            for wanted in (indices, indices[::-3], *absent):
                by_key = list(store.fetch([keys.key(chunk) for chunk in wanted]))
                assert list(store.fetch_chunks(keys, wanted)) == by_key
                at_once = store._fetch_together(keys, wanted) if wanted else None
                assert (at_once is not None) == (len(wanted) > 9 and None not in by_key)

    @pytest.mark.parametrize("damage", ["gone", "cut", "refused", "large", "empty"])
    def test_fetching_chunks_together_or_separately_raises_same_errors(self, tmp_path, damage):
        data, short = tmp_path / "a.bin", tmp_path / "b.bin"
        data.write_bytes(bytes(200))
        short.write_bytes(b"1")
        damaged = {
            "gone": [str(tmp_path / "none"), 0, 2],
            "cut": [str(short), 0, 2],
            "refused": ["ftp://host/x", 0, 2],
            "large": [str(data), 0, 2**61],
            "empty": [str(data), 0, 0],
        }
        document = {f"t/{i}": [str(data), i, 2] for i in range(100)}
        document |= {"t/50": damaged[damage], ".zgroup": '{"zarr_format": 2}'}
        document["t/.zarray"] = json.dumps(ARRAY | {"shape": [100], "chunks": [1], "dtype": "<i2"})
        document["t/.zattrs"] = '{"_ARRAY_DIMENSIONS": ["x"]}'
        variable = xr.open_dataset(document, engine="nczarr").variables["t"]
        messages = []
        for wanted in ([50], slice(40, 60)):
            with pytest.raises(NczarrError) as caught:
                variable[wanted].load()
            messages.append(str(caught.value))
        assert messages[0] == messages[1]
        assert "t/50" in messages[0]

    def test_writing_to_or_deleting_from_reference_set_is_rejected(self):
        store = open_store({"a": "b"})
        for write in (lambda: store.put([("a", b"")]), lambda: store.delete("a")):
            with pytest.raises(UnsupportedError, match="read-only"):
                write()

    def test_adjacent_ranges_of_one_file_share_one_request(self, served):
        assert read(version0(f"{served.url}/data.bin")) == VALUES.tolist()
        assert len(served.requests_for("/data.bin")) == 1

    def test_pickled_variable_contains_only_its_references(self, tmp_path, data):
        document = version0(str(data), **{f"u/{i}": [f"{i}.nc", i, i] for i in range(10_000)})
        store = xr.open_dataset(document, engine="nczarr").t.variable._data
        while not hasattr(store, "stored"):
            store = store.source if isinstance(store, SelectedArray) else store.array
        travelled = pickle.dumps(store.stored)
        assert len(travelled) < 2000
        assert pickle.loads(travelled).read((slice(2, 6),)).tolist() == [2, 3, 4, 5]

    def test_reference_set_is_read_by_dask_workers(self, workers, served):
        put(served.root, "refs.json", version0("data.bin"))
        dataset = xr.open_dataset(f"{served.url}/refs.json", engine="nczarr", chunks={})
        assert dataset.t.data.compute(scheduler=workers).tolist() == VALUES.tolist()

    # Regression D46
    @pytest.mark.parametrize("special", ["/dev/zero", "/proc/self/environ", "/sys/kernel/notes"])
    def test_files_in_dev_proc_and_sys_folders_are_always_rejected(self, tmp_path, special):
        link = tmp_path / "link"
        link.symlink_to(special)
        for path in (special, f"file://{special}", str(link)):
            with pytest.raises(RefusedError, match="not a regular file"):
                read(version0(path))

    @pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="there is no shared memory")
    def test_files_in_shared_memory_can_be_referenced(self):
        with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
            file.write(b"\0" * 5 + VALUES.tobytes())
            file.flush()
            assert read(version0(file.name)) == VALUES.tolist()

    def test_references_to_fifos_and_directories_are_rejected(self, tmp_path):
        os.mkfifo(tmp_path / "fifo")
        for path in (tmp_path / "fifo", tmp_path):
            with pytest.raises(StorageError):
                read(version0(str(path)))

    @pytest.mark.parametrize(
        "chain", ["zip://x::file://{}", "simplecache::{}", "zip://x::{}::memory://x", "tar://x::{}"]
    )
    def test_chained_references_to_fifos_and_devices_are_rejected(self, tmp_path, chain):
        os.mkfifo(tmp_path / "fifo")
        for path in (tmp_path / "fifo", "/dev/zero"):
            with pytest.raises(RefusedError, match="not a regular file"):
                read(version0(chain.format(path)))

    @pytest.mark.parametrize(
        "url",
        [
            "reference://t/0::{}/other.json",
            "dask://localhost:1/x",
            "dask://localhost:1::file://{}/data.bin",
            "simplecache::git::{}/data.bin",
            "DVC://{}",
        ],
    )
    def test_protocols_that_can_run_code_must_be_allowed_explicitly(self, tmp_path, url):
        url = url.format(tmp_path)
        with pytest.raises(RefusedError, match=r"protocol is not allowed.*allow") as caught:
            read(version0(url))
        (allowed,) = ast.literal_eval(str(caught.value).partition('"allow": ')[2].rstrip("})"))
        ReferenceTrust(allow=(allowed,)).check(url[:3].lower() + url[3:])

    def test_references_with_allowed_custom_protocol_are_read(self, data):
        class Own(LocalFileSystem):
            protocol = "own"

            @classmethod
            def _strip_protocol(cls, path):
                return path.removeprefix("own://")

        fsspec.register_implementation("own", Own, clobber=True)
        assert read(version0(f"own://{data}"), allow="own://") == VALUES.tolist()

    def test_referenced_object_above_size_limit_is_rejected(self, data):
        with pytest.raises(LimitError, match="max_chunk_bytes"):
            list(open_store({"a": [str(data), 0, 2**61]}).fetch(["a"]))
        limits = Limits(max_chunk_bytes=10, max_consolidated_bytes=40)
        with pytest.raises(LimitError, match="max_chunk_bytes"):
            list(open_store({"a": [str(data)]}, limits=limits).fetch(["a"]))


class TestTrust:
    """Locations to which a reference set may refer."""

    # Regression D46
    @pytest.mark.parametrize(
        "url",
        [
            "/etc/hostname",
            "file:///etc/hostname",
            "FILE:///etc/hostname",
            "file:/etc/hostname",
            "local:///etc/hostname",
            "../../../../etc/hostname",
            "memory://a/b",
            "s3://bucket/key",
            "simplecache::http://127.0.0.1/x",
            "http://example.org/x",
            "http://127.0.0.1:1/x",
            "http://169.254.169.254/latest/meta-data",
        ],
    )
    def test_remote_reference_set_can_reference_only_its_host(self, served, url):
        put(served.root, "refs.json", version0(url))
        with pytest.raises(RefusedError, match="t/0"):
            read(f"{served.url}/refs.json")

    def test_own_host_can_be_referenced_by_absolute_or_relative_url(self, served):
        os.mkdir(f"{served.root}/sets")
        for url in (f"{served.url}/data.bin", "../data.bin"):
            put(f"{served.root}/sets", "refs.json", version0(url))
            assert read(f"{served.url}/sets/refs.json") == VALUES.tolist()

    @pytest.mark.parametrize(
        ("document", "url", "expected"),
        [
            ("s3://b/set.json", "s3a://b/x", "s3://b/x"),
            ("az://b/set.json", "ABFS://b/x", "az://b/x"),
            ("s3://b/set.json", "zip://a::s3://b/x.zip", "zip://a::s3://b/x.zip"),
            ("zip://set.json::s3://b/x.zip", "s3://b/y", "s3://b/y"),
        ],
    )
    def test_urls_with_protocol_aliases_or_chains_count_as_same_host(self, document, url, expected):
        targets = Targets(
            document, ReferenceTrust(origin_of(document), ("s3://b/", "zip://a::s3://b/x.zip"))
        )
        assert targets.url(url) == expected

    def test_files_in_allowed_local_folder_can_be_referenced(self, served, tmp_path):
        copy = tmp_path / "copy.bin"
        with open(f"{served.root}/data.bin", "rb") as file:
            copy.write_bytes(file.read())
        put(served.root, "refs.json", version0(str(copy.as_uri())))
        target = f"{served.url}/refs.json"
        assert read(target, allow=[f"file://{tmp_path}/"]) == VALUES.tolist()
        assert read(target, allow=str(tmp_path)) == VALUES.tolist()
        (tmp_path / "inside").mkdir()
        with pytest.raises(RefusedError) as caught:
            read(target, allow=[str(tmp_path / "inside")])
        assert f"file://{tmp_path}/" in str(caught.value)
        link = tmp_path / "inside" / "link"
        link.symlink_to(copy)
        put(served.root, "refs.json", version0(link.as_uri()))
        with pytest.raises(RefusedError):
            read(target, allow=[str(tmp_path / "inside")])

    def test_local_paths_without_scheme_can_be_allowed(self, served, tmp_path):
        copy = tmp_path / "copy.bin"
        with open(f"{served.root}/data.bin", "rb") as file:
            copy.write_bytes(file.read())
        put(served.root, "refs.json", version0(str(copy)))
        target = f"{served.url}/refs.json"
        assert read(target, allow=[f"{tmp_path}/"]) == VALUES.tolist()
        assert read(target, allow=[f"file://{tmp_path}/"]) == VALUES.tolist()
        with pytest.raises(RefusedError, match="allow") as caught:
            read(target, allow=[str(tmp_path / "inside")])
        assert f"'{tmp_path}/'" in str(caught.value)

    def test_additional_hosts_can_be_allowed(self, served, tmp_path):
        with HttpServer(served.root) as other:
            put(served.root, "refs.json", version0(f"{other.url}/data.bin"))
            with pytest.raises(RefusedError):
                read(f"{served.url}/refs.json")
            assert read(f"{served.url}/refs.json", allow=[other.url]) == VALUES.tolist()
            with pytest.raises(RefusedError):
                read(f"{served.url}/refs.json", allow=["http://"])

    @pytest.mark.parametrize(
        ("url", "right"),
        [
            ("https://a.org/x", True),
            ("https://a.org/d/../x", True),
            ("https://a.org.evil.org/x", False),
            ("https://a.org@evil.org/x", False),
            ("https://a.org?@evil.org/x", False),
            ("https://a.org\\@evil.org/x", False),
            ("http://a.org/x", False),
            ("https://b.org/d/x", True),
            ("https://b.org/dx", False),
            ("https://b.org/d/../x", False),
            ("https://b.org/d/%2e%2e/x", False),
            ("gs://any/x", True),
            ("a::https://b.org/d/x", False),
        ],
    )
    def test_allowed_prefixes_match_whole_path_components(self, url, right):
        trust = ReferenceTrust("https://a.org", ("https://b.org/d", "gs://"))
        if right:
            trust.check(url)
        else:
            with pytest.raises(RefusedError):
                trust.check(url)

    @pytest.mark.parametrize(
        "host",
        [
            *("localhost", "x.localhost", "127.0.0.1", "127.1", "2130706433", "0x7f000001"),
            *("10.0.0.5", "192.168.1.1", "169.254.169.254", "0.0.0.0", "100.64.0.1", "LOCALHOST."),
            *("::1", "[::1]", "fe80::1%eth0", "fd00::1", "::ffff:10.0.0.1"),
            "metadata.google.internal",
        ],
    )
    def test_private_addresses_are_recognized_in_every_notation(self, host):
        assert is_private(host)

    @pytest.mark.parametrize("host", ["example.org", "8.8.8.8", "2001:4860:4860::8888", "10.org"])
    def test_public_addresses_are_not_classified_as_private(self, host):
        assert not is_private(host)

    def test_redirects_to_disallowed_hosts_are_rejected(self, served):
        with HttpServer(served.root) as other:
            served.fault("redirect", path="/data.bin", location=f"{other.url}/data.bin", times=None)
            for target in (version0(f"{served.url}/data.bin"), f"{served.url}/refs.json"):
                put(served.root, "refs.json", version0("data.bin"))
                with pytest.raises(RefusedError):
                    read(target)
                assert not other.requests_for("*")
            assert read(f"{served.url}/refs.json", allow=[other.url]) == VALUES.tolist()

    def test_credentials_for_one_server_are_not_sent_to_another_server(self, served):
        with HttpServer(served.root) as other:
            served.fault("redirect", path="/data.bin", location=f"{other.url}/data.bin", times=None)
            put(served.root, "refs.json", version0("data.bin"))
            options = {"headers": {"X-Token": "secret"}, "allow": [other.url]}
            assert read(f"{served.url}/refs.json", **options) == VALUES.tolist()
            (sent,) = other.requests_for("*")
            assert "X-Token" not in sent.headers
            assert sent.headers["Range"] == "bytes=5-52"
            assert served.requests_for("/data.bin")[0].headers["X-Token"] == "secret"

    def test_redirects_within_host_are_followed_up_to_limit(self, served):
        os.rename(f"{served.root}/data.bin", f"{served.root}/moved.bin")
        served.fault("redirect", path="/data.bin", location="/moved.bin", times=None)
        assert read(version0(f"{served.url}/data.bin")) == VALUES.tolist()
        served.fault("redirect", path="/loop.bin", location="/loop.bin", times=None)
        with pytest.raises(StorageError):
            read(version0(f"{served.url}/loop.bin"))
        assert len(served.requests_for("/loop.bin")) == 5


class TestOptions:
    """The scope of each kind of option."""

    HEADERS: ClassVar = {"headers": {"Authorization": "secret"}}

    def secrets(self, server, path):
        return [request.headers.get("Authorization") for request in server.requests_for(path)]

    def test_unprefixed_options_apply_only_to_server_of_reference_set(self, served):
        with HttpServer(served.root) as other:
            document = version0("data.bin", **{"t/2": [f"{other.url}/data.bin", 37, 16]})
            put(served.root, "refs.json", document)
            options = {**self.HEADERS, "allow": [other.url]}
            assert read(f"{served.url}/refs.json", **options) == VALUES.tolist()
            assert set(self.secrets(served, "*")) == {"secret"}
            assert set(self.secrets(other, "*")) == {None}

    def test_url_prefix_options_apply_to_referenced_files_under_prefix(self, served):
        with HttpServer(served.root) as other:
            document = version0(
                f"{served.url}/data.bin", **{"t/2": [f"{other.url}/data.bin", 37, 16]}
            )
            assert read(document, **{f"{other.url}/": self.HEADERS}) == VALUES.tolist()
            assert set(self.secrets(other, "*")) == {"secret"}
            assert set(self.secrets(served, "*")) == {None}

    @pytest.mark.parametrize(
        "options",
        [
            {"remote_protocol": "http", "remote_options": HEADERS},
            {"remote_options": HEADERS},
            {"http": HEADERS},
            {"fs": {"https": HEADERS}},
            {"reference": {"remote_options": HEADERS}},
            {"remote_options": {**HEADERS, "asynchronous": True}},
        ],
    )
    def test_protocol_options_apply_to_files_referenced_through_protocol(self, served, options):
        assert read(version0(f"{served.url}/data.bin"), **options) == VALUES.tolist()
        assert set(self.secrets(served, "/data.bin")) == {"secret"}

    def test_reference_document_is_read_from_filesystem_passed_for_its_protocol(self, data):
        filesystem = fsspec.filesystem("memory")
        filesystem.pipe("/folder/data.bin", data.read_bytes())
        document = json.dumps(version0("memory://folder/data.bin"))
        filesystem.pipe("/folder/refs.json", document.encode())
        options = {"fs": {"memory": filesystem}}
        assert read("memory://folder/refs.json", **options) == VALUES.tolist()

    @pytest.mark.parametrize(
        ("options", "error"),
        [({}, AccessDeniedError), ({"missing_status": (403, 404)}, NotFoundError)],
    )
    def test_missing_status_option_applies_to_reference_document(self, served, options, error):
        served.fault("status", status=403, times=None)
        with pytest.raises(error):
            read(f"{served.url}/refs.json", **options)

    def test_target_options_apply_to_reference_document_and_its_folder(self, served):
        put(served.root, "refs.json", version0("data.bin"))
        assert read(f"{served.url}/refs.json", target_options=self.HEADERS) == VALUES.tolist()
        assert set(self.secrets(served, "*")) == {"secret"}

    @pytest.mark.parametrize("place", ["http", "{}/", "{}/sets/"])
    def test_url_prefix_options_apply_to_reference_document_under_prefix(self, served, place):
        os.mkdir(f"{served.root}/sets")
        put(f"{served.root}/sets", "refs.json", version0("../data.bin"))
        options = {place.format(served.url): self.HEADERS}
        assert read(f"{served.url}/sets/refs.json", **options) == VALUES.tolist()
        assert self.secrets(served, "/sets/refs.json") == ["secret"]
        assert set(self.secrets(served, "/data.bin")) == {None if "sets" in place else "secret"}

    @with_ranges
    def test_relative_references_in_cached_document_use_options_of_original_url(self, served):
        put(served.root, "refs.json", version0("data.bin"))
        url = f"simplecache::{served.url}/refs.json"
        assert read(url, http=self.HEADERS) == VALUES.tolist()
        assert set(self.secrets(served, "*")) == {"secret"}

    def test_unprefixed_storage_options_are_rejected_for_in_memory_reference_set(self, data):
        with pytest.raises(UnsupportedError, match="remote_options"):
            read(version0(str(data)), anon=True)

    def test_options_used_only_by_fsspec_are_ignored(self, data):
        options = {"asynchronous": False, "max_gap": 5, "simple_templates": True, "lazy": True}
        assert read(version0(str(data)), remote_protocol="file", **options) == VALUES.tolist()

    def test_remote_protocol_option_sets_protocol_of_references(self):
        options = ReferenceOptions.of(
            Access(storage_options={"remote_protocol": "s3", "remote_options": {"anon": 1}})
        )
        targets = options.targets("https://host/refs.json")
        assert targets.url("s3://bucket/a.nc") == "s3://bucket/a.nc"
        assert targets.url("bucket/a.nc") == "s3://bucket/a.nc"
        assert targets.options_for("s3://bucket/a.nc") == ("s3://", {"anon": 1})
        assert targets.options_for("https://host/a.nc") == ("https://host", {})
        with pytest.raises(RefusedError):
            targets.url("gs://bucket/a.nc")

    def test_local_reference_set_can_reference_s3_bucket(self, s3_server, tmp_path, data):
        url = s3_server.upload(tmp_path, "data")
        document = version0(f"{url}/data.bin")
        options = s3_server.storage_options
        assert read(document, remote_protocol="s3", remote_options=options) == VALUES.tolist()
        assert read(document, **{url.rpartition("/")[0]: options}) == VALUES.tolist()
        for slash in ("", "/"):
            bare = version0(f"{slash}{url.removeprefix('s3://')}/data.bin")
            assert read(bare, remote_protocol="s3", remote_options=options) == VALUES.tolist()


def test_zarr_python_group_on_reference_filesystem_can_be_opened(tmp_path):
    store = zarr.storage.LocalStore(tmp_path / "store")
    root = zarr.create_group(store, zarr_format=2)
    for group, name in ((root, "outer"), (root.create_group("g"), "inner")):
        array = group.create_array(name, data=np.arange(3), fill_value=None)
        array.attrs["_ARRAY_DIMENSIONS"] = ["x"]
    xr_nczarr.references.write(tmp_path / "store", tmp_path / "set.json")
    filesystem = fsspec.filesystem("reference", fo=str(tmp_path / "set.json"), asynchronous=True)
    references = zarr.storage.FsspecStore(filesystem, read_only=True)
    opened = zarr.open_group(references, path="g", mode="r", zarr_format=2)
    assert list(xr.open_dataset(opened, engine="nczarr")) == ["inner"]
