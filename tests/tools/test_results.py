"""The text, HTML and JSON of the public result classes."""

import json

import numpy as np
import pytest
import xarray as xr

import xr_nczarr


@pytest.fixture
def store():
    objects = {}
    dataset = xr.Dataset({"v": ("x", np.arange(8.0))})
    xr_nczarr.to_nczarr(dataset, objects, encoding={"v": {"chunks": 2}})
    return objects


def test_results_have_text_html_and_json_representations(store, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    results = [
        xr_nczarr.copy(store, first),
        xr_nczarr.copy(store, second, zarr_format=3),
        xr_nczarr.diff(first, second),
        xr_nczarr.verify(first),
        xr_nczarr.info(first),
        xr_nczarr.explain(first),
        xr_nczarr.consolidate(first),
        xr_nczarr.upgrade(first, "nczarr-4.8.1"),
    ]
    for result in results:
        assert str(result) == repr(result)
        assert not repr(result).startswith("<xr_nczarr")
        assert result._repr_html_().startswith('<div class="nz">')
        assert json.loads(json.dumps(result.as_dict())) is not None
        assert type(result) is getattr(xr_nczarr, type(result).__name__)


def test_diff_html_shows_number_of_differences(store):
    same = xr_nczarr.diff(store, store)._repr_html_()
    assert "mapping and mapping: 0 differences" in same
    other = {}
    xr_nczarr.to_nczarr(xr.Dataset({"v": ("x", np.zeros(8))}), other)
    differing = xr_nczarr.diff(store, other)._repr_html_()
    assert "mapping and mapping: 1 difference<" in differing
    assert "7 of 8 values differ" in differing


def test_result_of_writing_references_has_html_representation(store, tmp_path):
    xr_nczarr.copy(store, tmp_path / "store")
    written = xr_nczarr.references.write(tmp_path / "store", tmp_path / "set.json")
    assert written._repr_html_() == f"<pre>{written}</pre>"
