"""Names of variables, groups and attributes that cannot be stored are rejected."""

from pathlib import Path

import pytest
import xarray as xr

from tests.reading import read
from xr_nczarr import ConflictError, RefusedError, to_nczarr


@pytest.mark.parametrize("name", ["", "..", "a/b", "a\0"])
def test_error_for_invalid_name_suggests_renaming(name):
    with pytest.raises(ConflictError, match="Choose another name"):
        to_nczarr(xr.Dataset({name: 1}), {})


# Listings of local stores once omitted such a variable or group, like a temporary file.
@pytest.mark.parametrize("name", [".v.tmp", ".v.lock", ".v.staging"])
@pytest.mark.parametrize("dialect", ["nczarr", "zarr"])
def test_names_reserved_for_temporary_files_are_rejected_in_local_stores(path, name, dialect):
    dataset = xr.Dataset({name: ("x", [1.0])})
    with pytest.raises(RefusedError, match=r"reserved for temporary files.*Rename the variable"):
        to_nczarr(dataset, path, dialect=dialect)
    to_nczarr(xr.Dataset(), path, dialect=dialect)
    with pytest.raises(RefusedError, match="reserved for temporary files"):
        to_nczarr(dataset.rename({name: "v"}), path, mode="a", group=name)
    store = {}
    to_nczarr(dataset, store, dialect=dialect)
    assert read(store).identical(dataset)


@pytest.mark.parametrize("name", [".zgroup", ".zmetadata", "zarr.json", ".nczarr_journal"])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_names_equal_to_zarr_metadata_keys_are_rejected(
    tmp_path: Path, name: str, zarr_format: int
) -> None:
    # A directory of this name once resulted in a store that did not open.
    part = xr.Dataset({name: ("x", [1])})
    group = xr.DataTree.from_dict({f"/{name}": xr.Dataset({"v": ("x", [1])})})
    for item in (part, group):
        with pytest.raises(ConflictError, match="must not be a reserved name"):
            to_nczarr(item, tmp_path / "a", zarr_format=zarr_format)
    assert not (tmp_path / "a").exists()


def test_non_string_attribute_names_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="Invalid attribute"):
        to_nczarr(xr.Dataset(attrs={1: 2}), tmp_path / "a")
