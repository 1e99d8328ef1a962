"""The stores that xarray opens with this engine if the caller does not pass an engine."""

from __future__ import annotations

import zipfile
from pathlib import Path

from xr_nczarr.backend.guessing import looks_like_nczarr


def test_nczarr_stores_are_recognized_without_network_access(tmp_path: Path) -> None:
    (tmp_path / "nczarr").mkdir()
    (tmp_path / "nczarr/.zattrs").write_text('{"_nczarr_superblock": {}}')
    (tmp_path / "zarr").mkdir()
    (tmp_path / "zarr/.zattrs").write_text("{}")
    (tmp_path / "empty").mkdir()
    (tmp_path / "x.nc").write_bytes(b"CDF\1 _nczarr_")
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as file:
        file.writestr("x/.zgroup", '{"_NCZARR_SUPERBLOCK": {}}')
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as file:
        file.writestr("document.xml", "_nczarr_")
    assert looks_like_nczarr(tmp_path / "nczarr")
    assert looks_like_nczarr(tmp_path / "x.zip")
    assert looks_like_nczarr("https://127.0.0.1:9/x#mode=nczarr,s3")
    (tmp_path / "cut.zip").write_bytes((tmp_path / "x.zip").read_bytes()[:40])
    assert not looks_like_nczarr("/x#mode=bytes")
    for name in ("zarr", "cut.zip", "empty", "x.nc", "other.zip", "missing"):
        assert not looks_like_nczarr(tmp_path / name)
    assert not looks_like_nczarr("https://127.0.0.1:9/x")
    assert looks_like_nczarr("https://127.0.0.1:9/x.nczarr/?a=b")
    assert not looks_like_nczarr(object())
