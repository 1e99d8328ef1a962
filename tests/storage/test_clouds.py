"""Google Cloud Storage and Azure, through emulators of their servers."""

import os
import shutil
import socket
import subprocess
import time
from contextlib import closing

import numpy as np
import pytest
import xarray as xr

import xr_nczarr

# gcsfs reads this when it is imported. Otherwise it would request the type of a bucket with gRPC,
# which the emulator lacks.
os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"
ACCOUNT = "devstoreaccount1"
# The key of Azurite's account, which its documentation publishes.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


def free_port():
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.fixture(scope="module")
def azure():
    """The URL of an empty account on an Azure server."""
    program = shutil.which("azurite-blob")
    if program is None:
        pytest.skip("needs azurite (npm install azurite)")
    port = free_port()
    command = [program, "--silent", "--inMemoryPersistence", "--skipApiVersionCheck"]
    with subprocess.Popen([*command, "--blobPort", str(port)], stdout=subprocess.DEVNULL) as server:
        try:
            for _ in range(100):
                with closing(socket.socket()) as client:
                    if client.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.1)
            yield f"http://127.0.0.1:{port}/{ACCOUNT}"
        finally:
            server.terminate()


@pytest.fixture(scope="module")
def google():
    """The URL of a Google Cloud Storage server with an empty bucket."""
    server_module = pytest.importorskip("gcp_storage_emulator.server")
    port = free_port()
    server = server_module.create_server("127.0.0.1", port, in_memory=True, default_bucket="bucket")
    server.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.stop()


@pytest.fixture(params=["google, gcsfs", "azure, adlfs", "azure, obstore"])
def cloud(request):
    """Function that returns the target and the options of a store with a name, in a cloud."""
    server, client = request.param.split(", ")
    pytest.importorskip(client)
    url = request.getfixturevalue(server)
    if client == "gcsfs":
        options = {"token": "anon", "endpoint_url": url}
        return lambda name: (f"gs://bucket/{name}", options)
    text = (
        f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={url};"
    )
    adlfs = pytest.importorskip("adlfs")
    files = adlfs.AzureBlobFileSystem(connection_string=text)
    if client not in files.ls(""):
        files.mkdir(client)  # a container for each client
    if client == "adlfs":
        return lambda name: (f"az://{client}/{name}", {"connection_string": text})
    from obstore.store import AzureStore

    def by_obstore(name):
        account = {"account_name": ACCOUNT, "account_key": KEY, "endpoint": url}
        plain = {"allow_http": True}
        return AzureStore(client, prefix=name, client_options=plain, **account), None

    return by_obstore


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_store_in_a_cloud_can_be_written_appended_to_and_replaced(cloud, zarr_format):
    values = np.arange(40.0).reshape(10, 4)
    dataset = xr.Dataset({"t": (("time", "x"), values)}, {"time": np.arange(10)})
    target, options = cloud(f"cycle-{zarr_format}")
    to_nczarr = xr_nczarr.to_nczarr
    first, rest = dataset.isel(time=slice(0, 6)), dataset.isel(time=slice(6, 10))
    chunks = {"t": {"chunks": (2, 4)}}
    to_nczarr(first, target, encoding=chunks, zarr_format=zarr_format, storage_options=options)
    to_nczarr(rest, target, append_dim="time", storage_options=options)
    with xr.open_dataset(target, engine="nczarr", storage_options=options) as opened:
        xr.testing.assert_equal(opened.load(), dataset)
    assert xr_nczarr.verify(target, storage_options=options).whole
    with pytest.raises(xr_nczarr.ExistsError):
        to_nczarr(first, target, storage_options=options)
    to_nczarr(first, target, mode="w", zarr_format=zarr_format, storage_options=options)
    with xr.open_dataset(target, engine="nczarr", storage_options=options) as opened:
        xr.testing.assert_equal(opened.load(), first)


def test_opening_a_missing_store_in_a_cloud_raises_not_found_error(cloud):
    target, options = cloud("missing")
    with pytest.raises(xr_nczarr.NotFoundError, match="no Zarr metadata found"):
        xr.open_dataset(target, engine="nczarr", storage_options=options)
