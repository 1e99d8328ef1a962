"""``nczarr info`` shows the contents and stored chunks of a store as text, JSON and HTML."""

import json
import shutil

import numpy as np
import pytest
import xarray as xr
from matplotlib.image import imread

import xr_nczarr
from tests import screenshots
from tests.stores import array_document
from xr_nczarr.cli.main import main
from xr_nczarr.errors import UnsupportedError
from xr_nczarr.storage import Store
from xr_nczarr.tools.results import grid_svg

GROUP = '{"zarr_format": 2}'
SCRIPT = "<script>alert(1)</script>"


@pytest.fixture
def dataset():
    values = np.arange(40 * 6, dtype="f4").reshape(40, 6)
    return xr.Dataset(
        {"v": (("time", "x"), values, {"units": SCRIPT}), "n": ((), np.int16(1))},
        coords={"time": np.arange(40)},
    )


def variables(overview):
    return {
        item["path"]: item for group in overview.as_dict()["groups"] for item in group["variables"]
    }


@pytest.mark.parametrize("where", ["directory", "zip", "mapping", "memory filesystem"])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_info_counts_chunks_and_bytes_in_every_kind_of_store(dataset, where, zarr_format, tmp_path):
    target = {
        "directory": str(tmp_path / "x.zarr"),
        "zip": str(tmp_path / "x.zip"),
        "mapping": {},
        "memory filesystem": f"memory://info-{zarr_format}.zarr",
    }[where]
    encoding = {"v": {"chunks": (10, 4)}}
    xr_nczarr.to_nczarr(dataset, target, mode="w", encoding=encoding, zarr_format=zarr_format)
    overview = variables(xr_nczarr.info(target))
    assert overview["/v"]["objects"] == overview["/v"]["objects_present"] == 8
    assert overview["/v"]["raw_bytes"] == 40 * 6 * 4
    assert overview["/v"]["stored_bytes"] == 8 * 10 * 4 * 4
    assert overview["/n"]["objects_present"] == 1
    assert "objects" not in variables(xr_nczarr.info(target, count_chunks=False))["/v"]


def test_info_ignores_missing_chunks_and_invalid_keys(dataset):
    store = {}
    xr_nczarr.to_nczarr(dataset, store, encoding={"v": {"chunks": (10, 6)}})
    del store["v/1.0"]
    store |= {"v/4.0": b"", "v/01.0": b"", "v/x.0": b"", "v/0.0.0": b"", "w/0.0": b""}
    assert variables(xr_nczarr.info(store))["/v"]["objects_present"] == 3


def test_info_counts_chunk_stored_under_two_keys_once():
    generator = {"key": "v/{{i}}", "url": "/data", "offset": "{{8 * i}}", "length": "8"}
    array = array_document((2,), "<i8", chunks=[1])
    references = {
        "version": 1,
        "gen": [generator | {"dimensions": {"i": {"stop": 2}}}],
        "refs": {"v/.zarray": json.dumps(array), "v/0": ["/data", 0, 8], ".zgroup": GROUP},
    }
    assert "2 of 2 chunks" in str(xr_nczarr.info(references))
    array = array_document((2, 1), "|u1", chunks=[1, 1])
    store = {"v/.zarray": json.dumps(array), "v/0.0": "a", "v/0/0": "b", ".zgroup": GROUP}
    store = {key: text.encode() for key, text in store.items()}
    assert "1 of 2 chunks" in str(xr_nczarr.info(store))


def test_info_counts_shards_as_stored_objects(dataset):
    store = {}
    encoding = {"v": {"chunks": (5, 6), "shards": (20, 6)}}
    xr_nczarr.to_nczarr(dataset, store, encoding=encoding, zarr_format=3)
    overview = variables(xr_nczarr.info(store))["/v"]
    assert (overview["objects"], overview["shard_shape"], overview["chunk_shape"]) == (
        2,
        [20, 6],
        [5, 6],
    )


def test_info_reports_number_and_total_length_of_references(tmp_path):
    (tmp_path / "data").write_bytes(bytes(16))
    document = (
        '{"zarr_format": 2, "shape": [8], "chunks": [2], "dtype": "<i4", "fill_value": 0, '
        '"order": "C", "compressor": null, "filters": null}'
    )
    url = f"{tmp_path}/data"
    references = {".zgroup": '{"zarr_format": 2}', "x/.zarray": document}
    references |= {"x/0": [url, 0, 8], "x/1": [url, 8, 8]}
    overview = variables(xr_nczarr.info(references))["/x"]
    assert (overview["objects_present"], overview["objects"], overview["stored_bytes"]) == (
        2,
        4,
        16,
    )
    references["x/2"] = [url]
    assert variables(xr_nczarr.info(references))["/x"]["stored_bytes"] is None


class Unlistable(Store):
    """A minimal store that cannot be listed."""

    name = "unlistable"

    def __init__(self, mapping):
        self.mapping = mapping

    def fetch(self, keys):
        return map(self.mapping.get, keys)

    def list_names(self, prefix):
        raise UnsupportedError("plain HTTP cannot list objects")

    def size(self, key):
        raise UnsupportedError("sizes are unknown")


def test_info_reports_that_chunks_were_not_counted(dataset):
    store = {}
    xr_nczarr.to_nczarr(dataset, store, consolidated=True)
    overview = xr_nczarr.info(Unlistable(store))
    assert "chunks were not counted: plain HTTP cannot list objects" in repr(overview)
    assert "chunks were not counted" in overview._repr_html_()
    assert "objects" not in variables(overview)["/v"]


def test_info_command_prints_text_and_json(dataset, tmp_path, capsys):
    xr_nczarr.to_nczarr(dataset, tmp_path / "x.zarr")
    assert main(["info", str(tmp_path / "x.zarr")]) == 0
    assert "float32 v(time, x)  40×6            1 of 1  960 B (1×)" in capsys.readouterr().out
    assert main(["info", "--json", str(tmp_path / "x.zarr")]) == 0
    assert json.loads(capsys.readouterr().out)["groups"][0]["dimensions"]["x"]["size"] == 6
    assert main(["info", "--metadata", str(tmp_path / "x.zarr")]) == 0
    assert main(["info", str(tmp_path / "nothing")]) == 2


def test_info_text_shows_totals_and_supported_netcdf_c_releases(dataset):
    store = {}
    xr_nczarr.to_nczarr(dataset, store, unlimited_dims="time", encoding={"v": {"chunks": (10, 6)}})
    del store["v/1.0"]
    assert repr(xr_nczarr.info(store)).splitlines() == [
        "mapping",
        "  Zarr 2, consolidated, NCZarr metadata of netCDF-C 4.9.3 or later",
        "  3 variables, 5 of 6 chunks, 4.82 kB (1.28 kB uncompressed)",
        "  dimensions: time 40 unlimited, x 6",
        "  variable            chunks  codecs  stored  size",
        "  float32 v(time, x)  10×6            3 of 4  720 B (1×)",
        "  int16 n()                           1 of 1  2 B (1×)",
        "  int64 time(time)    512             1 of 1  4.1 kB (0.078×)",
    ]


@pytest.mark.parametrize(
    ("dialect", "releases"),
    [
        ("nczarr", "netCDF-C 4.9.3 or later"),
        ("universal", "netCDF-C 4.9.0 or later"),
        ("nczarr-4.9.1", "netCDF-C 4.9.1 or 4.9.2"),
        ("nczarr-4.8.1", "netCDF-C 4.8.1 or 4.9.0"),
        ("zarr", None),
    ],
)
def test_info_reports_netcdf_c_releases_that_use_layout_of_store(dataset, dialect, releases):
    store = {}
    xr_nczarr.to_nczarr(dataset, store, dialect=dialect)
    overview = xr_nczarr.info(store)
    assert overview.as_dict()["layout"] == releases
    assert ("NCZarr" in repr(overview)) == (releases is not None)


def test_info_text_fits_in_80_columns():
    names = [f"a_dimension_with_a_long_name_{number}" for number in range(5)]
    data = xr.Dataset({"a_variable_with_a_long_name": (names, np.zeros((1,) * 5))})
    store = {}
    xr_nczarr.to_nczarr(data, store, encoding={"a_variable_with_a_long_name": {"zlib": True}})
    lines = repr(xr_nczarr.info(store)).splitlines()
    assert max(map(len, lines)) <= 80
    assert all(name in "".join(lines) for name in names)


def test_info_columns_stay_aligned_despite_long_variable_name():
    names = ("time", "depth", "latitude", "longitude")
    data = xr.Dataset(
        {
            "sea_water_potential_temperature": (names, np.zeros((1, 2, 3, 4), "f4")),
            "sst": (names[2:], np.zeros((3, 4))),
        }
    )
    store = {}
    zlib = {"zlib": True, "shuffle": True}
    xr_nczarr.to_nczarr(data, store, encoding=dict.fromkeys(data, zlib))
    lines = repr(xr_nczarr.info(store)).splitlines()
    (title,) = (line for line in lines if "chunk" in line and "codecs" in line)
    rows = [line for line in lines if "zlib" in line]
    assert len(rows) == 2
    assert {row.index("shuffle") for row in rows} == {title.index("codecs")}
    assert max(map(len, lines)) <= 80


def test_info_prints_note_about_missing_chunks_only_for_coordinates(dataset, tmp_path):
    encoding = {"v": {"chunks": (10, 6)}}
    dataset.to_zarr(tmp_path, zarr_format=2, consolidated=False, encoding=encoding)
    (tmp_path / "v/1.0").unlink()
    assert "note:" not in repr(xr_nczarr.info(tmp_path))
    (tmp_path / "time/0").unlink()
    assert repr(xr_nczarr.info(tmp_path)).splitlines()[-2:] == [
        "  note: chunks of coordinates are missing; nczarr verify lists them (time)",
        "  note: without a fill value, missing chunks are read as zero (time)",
    ]


def hostile():
    array = (
        b'{"zarr_format": 2, "shape": [4, 6], "chunks": [2, 2], "dtype": "<i4", "fill_value": 0, '
        b'"order": "C", "compressor": null, "filters": null}'
    )
    name = SCRIPT.replace("/", "")
    attributes = {
        SCRIPT: f'"><img src=x onerror="alert(1)">{SCRIPT}',
        "_ARRAY_DIMENSIONS": [name, "'x"],
    }
    return {
        ".zgroup": b'{"zarr_format": 2}',
        ".zattrs": json.dumps({SCRIPT: SCRIPT}).encode(),
        f"{name}/.zarray": array,
        f"{name}/.zattrs": json.dumps(attributes).encode(),
        f"broken{name}/.zarray": array.replace(b"<i4", SCRIPT.encode()),
        f"{name}g/.zgroup": b'{"zarr_format": 2}',
    }


def test_info_html_escapes_names():
    page = xr_nczarr.info(hostile())._repr_html_()
    assert "&lt;script&gt;" in page
    assert "<script" not in page
    assert "<img" not in page


def test_large_chunk_grids_are_drawn_with_few_cells():
    drawn = grid_svg((10_000, 10_000), (1, 1), ("y", "x"), ({5}, {7, 9_999}))
    assert drawn.count("<rect") == 48 * 48
    assert drawn.count("nz-touched") == 2
    assert grid_svg((7,), (2,), ("x",), ({1},)).count("nz-touched") == 1
    assert grid_svg((0, 2), (1, 1), ("y", "x")) == ""


@pytest.mark.skipif(shutil.which("chromium") is None, reason="Chromium is not installed")
@pytest.mark.parametrize("style", ["", screenshots.DARK], ids=["light", "dark"])
def test_browser_renders_info_html(style, tmp_path):
    """Text contrasts with its background, and bars and chunks are colored."""
    shown = [*screenshots.representations(tmp_path).values()]
    shown.append(xr_nczarr.info(hostile())._repr_html_())
    page = screenshots.render(tmp_path, "".join(shown), "1000,1400", style)
    image = imread(page)[..., :3]
    background = image[3, 3]
    assert (background.mean() < 0.2) == bool(style)
    assert (np.abs(image - background).min(-1) > 0.7).any()
    assert (image[..., 2] - image[..., 0] > 0.3).sum() > 5_000
