"""A rerun write recognizes the lock of its killed predecessor by the identity of the request.

If the request was changed before it was rerun, it has another identity.
"""

import numpy as np
import pytest
import xarray as xr

from xr_nczarr.netcdf import Layout
from xr_nczarr.writing.write_options import WriteOptions
from xr_nczarr.writing.write_request import GroupRequest, WriteRequest


def identity(dataset: xr.Dataset) -> str:
    group = GroupRequest(path="/", dataset=dataset, encoding={}, unlimited=set(), growing=set())
    return WriteRequest(
        path="/", groups=[group], layout=Layout(), options=WriteOptions()
    ).identity()


@pytest.mark.parametrize(
    "values",
    [
        np.arange(12.0).reshape(3, 4),
        np.arange(12, dtype=">i2").reshape(3, 4),
        np.arange(12).reshape(3, 4).astype("M8[s]").astype("M8[ns]"),
        np.arange(12).reshape(4, 3).T,
        np.arange(12).astype("S3").reshape(3, 4),
        np.arange(12).astype(str).astype(object).reshape(3, 4),
    ],
    ids=["float", "big-endian", "datetime", "transposed", "bytes", "object"],
)
def test_identity_changes_if_two_values_are_swapped(values):
    dataset = xr.Dataset({"v": (("y", "x"), values)})
    changed = values.copy(order="K")
    changed[2, 1], changed[2, 2] = values[2, 2], values[2, 1]
    assert identity(dataset) == identity(xr.Dataset({"v": (("y", "x"), values.copy(order="K"))}))
    assert identity(dataset) != identity(xr.Dataset({"v": (("y", "x"), changed)}))


def test_identity_depends_on_names_dtypes_dimensions_and_attributes():
    values = np.zeros((2, 2), "i4")
    variants = [
        xr.Dataset({"v": (("y", "x"), values)}),
        xr.Dataset({"v": (("x", "y"), values)}),
        xr.Dataset({"w": (("y", "x"), values)}),
        xr.Dataset({"v": (("y", "x"), values.view("f4"))}),
        xr.Dataset({"v": (("y", "x"), values, {"units": "m"})}),
    ]
    assert len({identity(dataset) for dataset in variants}) == len(variants)
