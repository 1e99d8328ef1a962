"""Which targets name reference sets explicitly, and where their documents are."""

from __future__ import annotations

import pytest

from xr_nczarr.references.recognition import parse_target
from xr_nczarr.storage import Location, parse_url


@pytest.mark.parametrize(
    ("target", "location"),
    [
        ("reference://", Location("reference::")),
        ("reference://g/h/#mode=zarr", Location("reference::", None, "zarr", group="g/h")),
        ("reference::/d/r.json", Location("reference::/d/r.json")),
        (
            "reference://g::s3://b/r.json#mode=s3&awsprofile=me",
            Location(
                "reference::s3://b/r.json", "s3", group="g", storage_options={"profile": "me"}
            ),
        ),
    ],
)
def test_reference_urls_are_parsed_into_document_and_group(target: str, location: Location) -> None:
    assert parse_target(target) == location


@pytest.mark.parametrize("target", ["/d/r.json", "s3://b/k#mode=s3", "simplecache::s3://b/r.parq"])
def test_targets_without_reference_prefix_are_parsed_as_urls(target: str) -> None:
    assert parse_target(target) == parse_url(target)
