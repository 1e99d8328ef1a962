"""Emulators of Google Cloud Storage and Azure."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

# gcsfs reads this when it is imported. Otherwise, it would request the type of a bucket with gRPC,
# which the emulator does not support.
os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"
KINDS = ("fsspec gs", "fsspec az", "obstore az")
_CONTAINER = "container"
# The account of Azurite, with the key that its documentation publishes.
_ACCOUNT = "devstoreaccount1"
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


def _free_port() -> int:
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def azure() -> Iterator[str]:
    """Run Azurite, and yield the URL of its account, which has one empty container."""
    adlfs = pytest.importorskip("adlfs")
    program = shutil.which("azurite-blob")
    if program is None:
        pytest.skip("needs azurite (npm install azurite)")
    port = _free_port()
    command = [program, "--silent", "--inMemoryPersistence", "--skipApiVersionCheck"]
    with subprocess.Popen([*command, "--blobPort", str(port)], stdout=subprocess.DEVNULL) as server:
        try:
            for _ in range(300):
                with closing(socket.socket()) as client:
                    if client.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.1)
            url = f"http://127.0.0.1:{port}/{_ACCOUNT}"
            adlfs.AzureBlobFileSystem(connection_string=_connection(url)).mkdir(_CONTAINER)
            yield url
        finally:
            server.terminate()


@contextmanager
def google() -> Iterator[str]:
    """Run a Google Cloud Storage server, and yield its URL. The server has one empty bucket."""
    pytest.importorskip("gcsfs")
    emulator = pytest.importorskip("gcp_storage_emulator.server")
    port = _free_port()
    server = emulator.create_server("127.0.0.1", port, in_memory=True, default_bucket=_CONTAINER)
    server.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.stop()


def new_store(
    kind: str, request: pytest.FixtureRequest, container: str = _CONTAINER
) -> tuple[Any, dict[str, Any] | None]:
    """Return a target for an empty store of one of the `KINDS`, and its storage options."""
    name = str(uuid.uuid4())
    if kind == "fsspec gs":
        url = request.getfixturevalue("google_server")
        return f"gs://{container}/{name}", {"token": "anon", "endpoint_url": url}
    url = request.getfixturevalue("azure_server")
    if kind == "fsspec az":
        return f"az://{container}/{name}", {"connection_string": _connection(url)}
    from obstore.store import AzureStore

    account = {"account_name": _ACCOUNT, "account_key": _KEY, "endpoint": url}
    options = {"allow_http": True}
    return AzureStore(container, prefix=name, client_options=options, **account), None


def _connection(url: str) -> str:
    account = f"AccountName={_ACCOUNT};AccountKey={_KEY}"
    return f"DefaultEndpointsProtocol=http;{account};BlobEndpoint={url};"
