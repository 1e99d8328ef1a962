"""Limits on the requests and round trips needed to find and open stores and groups."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

import numpy as np
import pytest
import xarray as xr

import xr_nczarr
from tests.servers import S3Server, at_most, list_requests
from tests.stores import VINTAGES, read_objects, sample, write_vintage
from xr_nczarr import AccessDeniedError, NotFoundError, StorageError

pytestmark = pytest.mark.usefixtures("each_s3_client")


def opened(server: S3Server, name: str, **options: Any) -> xr.Dataset:
    options = {"storage_options": server.storage_options, "chunks": None, **options}
    return xr.open_dataset(f"{server.url}/{name}", engine="nczarr", **options)


# Missing names ------------------------------------------------------------------------------------


def test_looking_up_missing_store_sends_one_list_request(s3_server):
    s3_server.restore({f"folder/{number:04}/zarr.json": b"{}" for number in range(1200)})
    with at_most(s3_server, 15, 5) as batches, pytest.raises(NotFoundError):
        opened(s3_server, "folder/wrong")
    (request,) = list_requests(batches)
    assert "prefix=folder%2Fwrong%2F" in request


# Trees --------------------------------------------------------------------------------------------


def tree() -> xr.DataTree:
    """Return 21 groups in three levels, 20 of them with 2 coordinates and a variable."""
    data = xr.Dataset({"v": (("time", "x"), np.ones((2, 3)))}, {"time": [1, 2], "x": [1, 2, 3]})
    names = [f"/g{number}" for number in range(10)]
    inner = data.rename(time="t", x="y", v="w")
    groups = dict.fromkeys(names, data) | {f"{name}/h": inner for name in names}
    return xr.DataTree.from_dict(groups)


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Return the objects of v2, v3 and NCZarr trees by key.

    There are trees with and without consolidated metadata.
    """
    folder = tmp_path_factory.mktemp("trees")
    for version in (2, 3):
        for consolidated in (True, False):
            name = f"v{version}-{'consolidated' if consolidated else 'single'}"
            with warnings.catch_warnings():  # zarr warns about consolidated metadata in v3
                warnings.simplefilter("ignore")
                tree().to_zarr(folder / name, zarr_format=version, consolidated=consolidated)
    xr_nczarr.to_nczarr(tree(), folder / "nczarr", consolidated=False)
    return read_objects(folder)


def open_tree(server: S3Server, name: str) -> xr.DataTree:
    return xr.open_datatree(
        f"{server.url}/{name}", engine="nczarr", storage_options=server.storage_options
    )


@pytest.mark.parametrize(
    ("name", "requests", "rounds"),
    [
        ("v2-consolidated", 46, 3),
        ("v3-consolidated", 46, 3),
        ("v2-single", 307, 8),
        ("v3-single", 147, 8),
        ("nczarr", 208, 6),
    ],
)
def test_opening_datatree_takes_few_round_trips(s3_server, trees, name, requests, rounds):
    s3_server.restore(trees)
    with at_most(s3_server, requests, rounds):
        groups = open_tree(s3_server, name)
    assert len(groups.groups) == 21
    xr.testing.assert_identical(groups.load(), tree())


@pytest.mark.parametrize(
    ("name", "requests", "rounds"),
    [("v2-consolidated", 8, 2), ("v2-single", 26, 5), ("v3-single", 16, 5), ("nczarr", 23, 4)],
)
def test_opening_group_does_not_list_ancestors(s3_server, trees, name, requests, rounds):
    s3_server.restore(trees)
    with at_most(s3_server, requests, rounds) as batches:
        dataset = opened(s3_server, name, group="g3/h")
    assert all(f"prefix={name}%2Fg3%2Fh%2F" in item for item in list_requests(batches))
    assert dataset.identical(tree()["g3/h"].to_dataset(inherit=False))


@pytest.mark.parametrize("name", ["v2-single", "v3-single", "nczarr"])
@pytest.mark.parametrize("group", ["g3/wrong", "wrong/h", "g3/h/w"])
def test_opening_missing_group_raises_not_found_error(s3_server, trees, name, group):
    s3_server.restore(trees)
    with pytest.raises(NotFoundError, match="unknown group"):
        opened(s3_server, name, group=group)


def test_unreadable_coordinate_affects_only_its_group(s3_server, trees):
    s3_server.restore(trees)
    broken = "/bucket/v2-consolidated/g3/x/0"
    s3_server.fail = lambda request: 403 if request.path.startswith(broken) else None
    with pytest.warns(xr.SerializationWarning, match="g3/x"):
        groups = open_tree(s3_server, "v2-consolidated")
    assert groups["g4/x"].to_numpy().tolist() == [1, 2, 3]


# Consolidated metadata ----------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "rounds"), [("v2-consolidated", 2), ("v3-consolidated", 2)])
def test_v2_and_v3_consolidated_metadata_are_requested_concurrently(s3_server, trees, name, rounds):
    s3_server.restore(trees)
    with at_most(s3_server, 4, rounds):
        opened(s3_server, name, group="g1", consolidated=True)


# Similar stores in one folder --------------------------------------------------------------------


@pytest.fixture
def similar(s3_server: S3Server, trees: dict[str, bytes]) -> S3Server:
    """Return a server from whose folder ``f`` two consolidated stores were opened."""
    s3_server.restore({f"f/{key}": data for key, data in trees.items()})
    for _ in range(2):
        with at_most(s3_server, 8, 2):
            opened(s3_server, "f/v2-consolidated", group="g1")
    return s3_server


@pytest.mark.parametrize("version", ["v2", "v3"])
def test_opening_another_consolidated_store_in_folder_needs_few_requests(similar, version):
    with at_most(similar, 5, 2):
        dataset = opened(similar, f"f/{version}-consolidated", group="g1")
    assert dataset.identical(tree()["g1"].to_dataset())


@pytest.mark.parametrize("forbidden", [False, True], ids=["absent", "forbidden"])
def test_opening_another_store_in_folder_needs_few_requests_if_missing_objects_return_403_or_404(
    similar, forbidden
):
    if forbidden:
        refuse_absent(similar)
    with at_most(similar, 5, 2):
        opened(similar, "f/v2-consolidated", group="g1")


@pytest.mark.parametrize(
    ("name", "requests", "rounds"), [("v2-single", 307, 9), ("nczarr", 208, 7)]
)
def test_opening_first_unconsolidated_store_in_folder_takes_extra_round_trip(
    similar, name, requests, rounds
):
    for expected_rounds in (rounds, rounds - 1):
        with at_most(similar, requests, expected_rounds):
            groups = open_tree(similar, f"f/{name}")
        xr.testing.assert_identical(groups.load(), tree())


def test_v3_metadata_is_preferred_even_if_neighboring_stores_are_v2(similar):
    objects = similar.objects()
    single = objects["f/v3-single/zarr.json"]
    similar.put("f/v2-consolidated/zarr.json", single)
    assert opened(similar, "f/v2-consolidated").encoding["zarr_format"] == "3"


def test_error_for_missing_store_does_not_depend_on_previously_opened_stores(similar):
    with pytest.raises(NotFoundError) as unexpected:
        opened(similar, "g/missing")
    with pytest.raises(NotFoundError) as expected:
        opened(similar, "f/missing")
    assert str(expected.value) == str(unexpected.value).replace("g/missing", "f/missing")


def test_access_denied_error_does_not_depend_on_previously_opened_stores(similar):
    similar.fail = lambda request: 403
    with pytest.raises(AccessDeniedError, match="for every metadata document in the root group"):
        opened(similar, "f/private")


# Stores that respond with 403 for missing objects -----------------------------------------------


def refuse_absent(server: S3Server) -> None:
    """Respond with 403 for missing objects and for listings, as a public bucket does."""
    present = {f"/{server.bucket}/{key}" for key in server.objects()}
    server.fail = lambda request: None if request.path.partition("?")[0] in present else 403


@pytest.mark.parametrize("options", [{}, {"consolidated": True}], ids=["default", "consolidated"])
@pytest.mark.parametrize("name", ["v2-consolidated", "v3-consolidated"])
def test_consolidated_store_can_be_opened_if_server_returns_403_for_missing_objects(
    s3_server, trees, name, options
):
    s3_server.restore(trees)
    refuse_absent(s3_server)
    with at_most(s3_server, 8, 2):
        dataset = opened(s3_server, name, group="g1", **options)
    assert dataset.identical(tree()["g1"].to_dataset())


def test_store_can_be_opened_with_zarr_format_if_server_returns_403_for_missing_objects(
    s3_server, trees
):
    xr_nczarr.to_nczarr(
        tree()["g1"].to_dataset(),
        f"{s3_server.url}/single",
        zarr_format=3,
        dialect="nczarr",
        consolidated=False,
        storage_options=s3_server.storage_options,
    )
    refuse_absent(s3_server)
    with pytest.raises(AccessDeniedError):
        opened(s3_server, "single")
    dataset = opened(s3_server, "single", zarr_format=3)
    assert dataset["v"].shape == (2, 3)


def test_error_for_forbidden_chunk_suggests_treating_status_403_as_missing(s3_server, trees):
    s3_server.restore({key: data for key, data in trees.items() if "g1/v/" not in key})
    refuse_absent(s3_server)
    dataset = opened(s3_server, "v3-consolidated", group="g1")
    with pytest.raises(AccessDeniedError, match="missing_status"):
        dataset["v"].load()


def test_error_suggests_fixes_if_server_returns_403_for_every_request(s3_server):
    s3_server.fail = lambda request: 403
    with at_most(s3_server, 6, 1), pytest.raises(AccessDeniedError) as caught:
        opened(s3_server, "private")
    for name in ("consolidated=True", "zarr_format", "missing_status"):
        assert name in str(caught.value)


def test_failing_request_is_sent_at_most_five_times(s3_server):
    s3_server.fail = lambda request: 503
    storage_options = s3_server.storage_options | {"retry": {"first_wait": 0.001}}
    with pytest.raises(StorageError):
        opened(s3_server, "busy", storage_options=storage_options)
    counts = Counter(request.path for request in s3_server.requests)
    assert max(counts.values()) == 5


@pytest.mark.parametrize("release", sorted(VINTAGES))
def test_groups_are_read_identically_from_s3_and_disk(s3_server, tmp_path, release):
    """Some groups store their dimensions in objects that can be found only by listing."""
    folder = write_vintage(tmp_path / "store", sample(release), release)
    objects = {f"store/{key}": data for key, data in read_objects(folder).items()}
    s3_server.restore(objects)
    for group in ("g", "g/deep"):
        dataset = opened(s3_server, "store", group=group, consolidated=False)
        assert dataset.identical(
            xr.open_dataset(folder, engine="nczarr", group=group, consolidated=False, chunks=None)
        )
