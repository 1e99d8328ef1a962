"""``nczarr explain`` predicts the requests and bytes of a read."""

import json

import dask
import dask.array
import numpy as np
import pytest
import xarray as xr

import xr_nczarr
from tests.interop import test_zarr_rectilinear as rectilinear
from tests.reading import peak_memory
from tests.stores import array_document
from xr_nczarr.chunks.grid import count_touched, plan_selection
from xr_nczarr.cli.main import main
from xr_nczarr.storage import MemoryStore, Store


class Recording(Store):
    """A minimal in-memory store that records its requests."""

    name = "recording"

    def __init__(self, mapping):
        self.mapping = mapping
        self.requests = []
        self.bytes = 0

    def fetch(self, keys):
        for key in keys:
            self.requests.append(key)
            data = self.mapping.get(key)
            self.bytes += len(data or b"")
            yield data

    def fetch_ranges(self, ranges):
        for key, start, length in ranges:
            self.requests.append(key)
            data = self.mapping.get(key)
            first = start + len(data or b"") if start < 0 else start
            self.bytes += length if data else 0
            yield None if data is None else data[first : first + length]

    def list_names(self, prefix):
        return MemoryStore(self.mapping).list_names(prefix)

    def size(self, key):
        data = self.mapping.get(key)
        return None if data is None else len(data)

    def forget(self):
        self.requests, self.bytes = [], 0


def stored(zarr_format=2, **encoding):
    values = np.arange(40 * 60, dtype="f4").reshape(40, 60)
    dataset = xr.Dataset({"v": (("y", "x"), values)}, coords={"x": np.arange(60)})
    store = {}
    encoding = {"v": {"chunks": (10, 20), **encoding}}
    xr_nczarr.to_nczarr(
        dataset, store, encoding=encoding, zarr_format=zarr_format, consolidated=True
    )
    return Recording(store)


@pytest.mark.parametrize(
    "selection",
    [{}, {"x": slice(5, 25)}, {"y": 3}, {"y": 3, "x": [1, 45]}, {"y": slice(None, None, -7)}],
)
@pytest.mark.parametrize("compressor", [None, "zlib"])
def test_explain_predicts_number_of_requests_and_bytes_read(selection, compressor):
    import numcodecs

    store = stored(compressor=numcodecs.Zlib() if compressor else None)
    del store.mapping["v/1.1"]
    store.forget()
    explanation = xr_nczarr.explain(store, selection, variables=["v"])
    assert not [key for key in store.requests if key.startswith("v/") and key[-1].isdigit()]
    (result,) = explanation.readings
    dataset = xr.open_dataset(store, engine="nczarr")
    store.forget()
    dataset["v"].isel(selection).load()
    assert (result.requests, result.fetched_bytes) == (len(store.requests), store.bytes)
    assert result.chunks == len(set(store.requests))
    assert result.absent == ("v/1.1" in store.requests)
    assert result.selected == dataset["v"].isel(selection).shape
    assert not result.at_most


def test_explain_predicts_pointwise_reads():
    store = stored()
    points = xr.DataArray([1, 15, 39], dims="p")
    dataset = xr.open_dataset(store, engine="nczarr")
    store.forget()
    dataset["v"].isel(x=points, y=points).load()
    made = (3,), len(store.requests), store.bytes
    for target in (store, dataset, dataset["v"]):
        selection = {"x": points, "y": points}
        (result,) = xr_nczarr.explain(target, selection, variables=["v"]).readings
        assert (result.selected, result.requests, result.fetched_bytes) == made


@pytest.mark.parametrize("zarr_format", [2, 3, "3-draft"])
def test_explain_finds_chunk_of_scalar_by_listing_store(zarr_format, tmp_path):
    url = f"memory://{tmp_path.name}"
    xr_nczarr.to_nczarr(xr.Dataset({"t": 1.5}), url, zarr_format=zarr_format)
    (result,) = xr_nczarr.explain(url).readings
    assert (result.absent, result.fetched_bytes) == (0, 8)


def test_explain_finds_chunks_with_undeclared_separator():
    store = stored()
    del store.mapping[".zmetadata"]
    document = json.loads(store.mapping["v/.zarray"])
    assert document.pop("dimension_separator") == "."
    nested = {key.replace(".", "/", 1): key for key in store.mapping if key[:4] in ("v/0.", "v/1.")}
    for key, dotted in nested.items():
        store.mapping[key] = store.mapping.pop(dotted)
    store.mapping["v/.zarray"] = json.dumps(document).encode()
    (result,) = xr_nczarr.explain(store, {"y": slice(20)}, variables=["v"]).readings
    assert (result.chunks, result.absent, result.requests) == (6, 0, 12)
    dataset = xr.open_dataset(store, engine="nczarr")
    store.forget()
    dataset["v"].isel(y=slice(20)).load()
    assert len(store.requests) == result.requests


@pytest.mark.parametrize("name", ["plain", "compressed", "sharded"])
@pytest.mark.parametrize("selection", [{}, {"y": slice(2, 5), "x": 5}, {"y": [0, 9]}])
def test_explain_predicts_requests_for_rectilinear_chunks(name, selection):
    store = Recording(rectilinear.STORE)
    (result,) = xr_nczarr.explain(store, selection, variables=[name]).readings
    dataset = xr.open_dataset(store, engine="nczarr")
    store.forget()
    dataset[name].isel(selection).load()
    assert len(store.requests) <= result.requests
    assert result.at_most or (len(store.requests), store.bytes) == (
        result.requests,
        result.fetched_bytes,
    )


@pytest.mark.parametrize(("rows", "at_most"), [(slice(0, 20), False), (3, True)])
def test_explain_returns_upper_bound_on_requests_for_parts_of_shards(rows, at_most):
    store = stored(3, chunks=(5, 20), shards=(20, 60))
    (result,) = xr_nczarr.explain(store, {"y": rows, "x": slice(0, 30)}, variables=["v"]).readings
    dataset = xr.open_dataset(store, engine="nczarr")
    store.forget()
    dataset["v"].isel(y=rows, x=slice(0, 30)).load()
    assert result.at_most == at_most
    assert len(store.requests) <= result.requests
    assert at_most or (len(store.requests), store.bytes) == (result.requests, result.fetched_bytes)


def test_explain_merges_requests_for_adjacent_references(tmp_path):
    (tmp_path / "data").write_bytes(bytes(80))
    array = (
        '{"zarr_format": 2, "shape": [20], "chunks": [2], "dtype": "<i4", "fill_value": 0, '
        '"order": "C", "compressor": null, "filters": null}'
    )
    references = {".zgroup": '{"zarr_format": 2}', "x/.zarray": array, "x/9": "base64:AAAAAAAAAAA="}
    references |= {f"x/{n}": [f"{tmp_path}/data", 8 * n, 8] for n in range(8)}
    (result,) = xr_nczarr.explain(references).readings
    assert (result.requests, result.chunks, result.absent, result.fetched_bytes) == (1, 10, 1, 72)
    assert result.decoded_bytes == 72  # nine chunks of two numbers


def test_explain_finds_references_of_every_variable(tmp_path):
    (tmp_path / "data").write_bytes(bytes(80))
    array = (
        '{"zarr_format": 2, "shape": [20], "chunks": [2], "dtype": "<i4", "fill_value": 0, '
        '"order": "C", "compressor": null, "filters": null}'
    )
    references = {".zgroup": '{"zarr_format": 2}'}
    for name in "ab":
        references |= {f"{name}/.zarray": array, f"{name}/.zattrs": '{"_ARRAY_DIMENSIONS": ["x"]}'}
        references |= {f"{name}/{n}": [f"{tmp_path}/data", 8 * n, 8] for n in range(10)}
    dataset = xr.open_dataset(references, engine="nczarr")
    assert dataset.nczarr.explain() == xr_nczarr.explain(references)
    assert [item.absent for item in dataset.nczarr.explain().readings] == [0, 0]


def test_explain_distinguishes_mapping_stores_with_same_display_name():
    full, empty = stored(), stored()
    stores = dict(full.mapping), {k: v for k, v in empty.mapping.items() if "v/0" not in k}
    first, second = (xr.open_dataset(store, engine="nczarr")["v"] for store in stores)
    joined = xr.Dataset({"first": first, "second": second})
    readings = joined.nczarr.explain().readings
    assert {item.name: item.absent for item in readings} == {"first": 0, "second": 3}


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("chunks", [None, {}])
def test_accessor_explains_selected_part_of_dataset(chunks, inline):
    store = stored()
    dataset = xr.open_dataset(store, engine="nczarr", chunks=chunks, inline_array=inline)
    (result,) = dataset.nczarr.explain({"x": slice(0, 20)}).readings
    assert (result.chunks, result.all_chunks) == (4, 12)
    assert dataset["v"].nczarr.explain({"y": 0}).readings[0].chunks == 3
    reason = "the cost is unknown, because the values are in memory or are read by another engine"
    assert dataset.nczarr.explain().left_out == {"x": reason}
    tree = xr.DataTree.from_dict({"/": dataset, "/g": dataset})
    assert [item.name for item in tree.nczarr.explain().readings] == ["v", "g/v"]
    assert [item.name for item in tree.nczarr.explain(variables=["/g/v"]).readings] == ["g/v"]
    by_label = dataset.sel(x=slice(25, 30))
    if chunks is None:
        assert by_label.nczarr.explain({"y": 1}).readings[0].touched == ({0}, {1})
        points = dataset.isel(x=xr.DataArray([1, 45], dims="p"), y=xr.DataArray([0, 30], dims="p"))
        assert points["v"].nczarr.explain().readings[0].chunks == 2
    else:
        assert "dask graph" in by_label.nczarr.explain().left_out["v"]


@pytest.mark.parametrize(
    ("change", "touched"),
    [
        pytest.param(lambda lazy: lazy.chunk(), ({0}, {0, 1, 2}), id="chunked"),
        pytest.param(lambda lazy: lazy[::-1].chunk(), ({3}, {0, 1, 2}), id="reversed"),
        pytest.param(lambda lazy: lazy.T.chunk(), ({0}, {0, 1, 2}), id="transposed"),
        pytest.param(lambda lazy: lazy.chunk()[::-1], None, id="reversed later"),
        pytest.param(lambda lazy: lazy.chunk().T, None, id="transposed later"),
        pytest.param(lambda lazy: dask.optimize(lazy.chunk().T)[0], None, id="optimized"),
        pytest.param(lambda lazy: lazy.chunk() + 1, None, id="computed"),
    ],
)
def test_explain_analyzes_dask_array_only_if_chunking_is_last_operation(change, touched):
    lazy = xr.open_dataset(stored(), engine="nczarr")["v"]
    explanation = change(lazy).nczarr.explain({"y": slice(0, 2)}, variables=["v"])
    if touched is None:
        assert "dask graph does not show" in explanation.left_out["v"]
    else:
        assert explanation.readings[0].touched == touched


def test_explain_command_prints_text_and_json(tmp_path, capsys):
    dataset = xr.Dataset({"v": (("y", "x"), np.zeros((40, 60)))})
    xr_nczarr.to_nczarr(dataset, tmp_path / "x", encoding={"v": {"chunks": (10, 20)}})
    target = str(tmp_path / "x")
    assert main(["explain", target, "--select", "y=0:10,x=3"]) == 0
    assert (
        "v(y, x)   10        1 of 12  10×20     1         1.6 kB   1.6 kB"
        in capsys.readouterr().out
    )
    assert main(["explain", target, "--select", "y=-1", "--json"]) == 0
    (reading,) = json.loads(capsys.readouterr().out)["readings"]
    assert reading["touched"] == [[3], [0, 1, 2]]


def test_explain_html_draws_selected_chunks_and_escapes_names():
    name = "<script>alert(1)"
    store = {}
    xr_nczarr.to_nczarr(
        xr.Dataset({name: (("y", name), np.zeros((4, 6)))}),
        store,
        encoding={name: {"chunks": (2, 2)}},
    )
    page = xr_nczarr.explain(store, {"y": 3})._repr_html_()
    assert page.count('class="nz-touched"') == 3
    assert "<script" not in page


def test_explain_html_draws_chunks_even_if_selection_drops_dimensions():
    dataset = xr.Dataset(
        {"t": (("z", "y", "x"), np.zeros((4, 6, 6))), "c": ("x", np.array([b"ab"] * 6, "S2"))}
    )
    store = {}
    encoding = {"t": {"chunks": (1, 6, 3)}, "c": {"dtype": "S1"}}
    xr_nczarr.to_nczarr(dataset, store, encoding=encoding)
    opened = xr.open_dataset(store, engine="nczarr")
    points = xr.DataArray([0, 5], dims="p")
    for chunk, reported in (
        (opened["t"].isel(z=1), "4 × 1 × 2 chunks"),
        (opened["t"].isel(x=points, y=points), "4 × 1 × 2 chunks"),
        (opened["t"].isel(z=slice(1, 2)), "z: 4 × y: 1 × x: 2 chunks"),
        (opened["c"], "1 × 1 chunks"),
    ):
        assert reported in chunk.nczarr.explain()._repr_html_()


def test_explain_lists_store_instead_of_looking_up_each_chunk():
    dataset = xr.Dataset({"v": ("x", dask.array.zeros(20_000, dtype="i1"))})
    mapping = {}
    xr_nczarr.to_nczarr(dataset, mapping, encoding={"v": {"chunks": 1}}, compute=False)
    mapping |= {"v/7": b"\0", "v/19999": b"\0"}
    sizes = []

    class CountingSizes(Recording):
        def size(self, key):
            sizes.append(key)
            return super().size(key)

    (reading,) = xr_nczarr.explain(CountingSizes(mapping), variables=["v"]).readings
    assert (reading.chunks, reading.absent, reading.fetched_bytes) == (20_000, 19_998, 2)
    assert [len(numbers) for numbers in reading.touched] == [20_000]
    assert {"v/7", "v/19999"} <= set(sizes)
    assert len(sizes) < 10


def test_explain_counts_only_selected_chunks_toward_limit():
    document = array_document([10_001, 1000], "|u1", chunks=[1, 1], fill_value=0)
    attributes = {"_ARRAY_DIMENSIONS": ["y", "x"]}
    store = {
        ".zgroup": b'{"zarr_format": 2}',
        "v/.zarray": json.dumps(document).encode(),
        "v/.zattrs": json.dumps(attributes).encode(),
    }
    assert "10,001,000 chunks" in xr_nczarr.explain(store).left_out["v"]
    (reading,) = xr_nczarr.explain(store, {"y": slice(2)}).readings
    assert (reading.chunks, reading.all_chunks) == (2000, 10_001_000)


@pytest.mark.parametrize("step", [1, 3, 70])
def test_explain_counts_chunks_above_limit_without_enumerating_them(step):
    dataset = xr.Dataset({"v": ("x", dask.array.zeros(20_000_002 * step, chunks=-1))})
    store = {}
    encoding = {"v": {"chunks": 2 * step}}
    xr_nczarr.to_nczarr(dataset, store, encoding=encoding, compute=False)

    def explain():
        explanation = xr_nczarr.explain(store, {"x": slice(None, None, -step)})
        assert "10,000,001 chunks" in explanation.left_out["v"]

    assert peak_memory(explain) < 50e6


@pytest.mark.parametrize(
    "selection",
    [slice(None), slice(3, 3), slice(7, None, 5), slice(90, 10, -11), np.array([5, 99, 6, -1]), 4],
)
def test_predicted_number_of_chunks_equals_number_in_plan(selection):
    for chunk in (1, 3, 10, 200):
        plan = plan_selection([100], [chunk], [selection])
        assert count_touched([100], [chunk], [selection]) == plan.count


def test_explain_counts_missing_chunks_of_raw_bytes_arrays():
    document = array_document(shape=[2], chunks=[1], dtype="|V4", fill_value=None)
    store = {".zgroup": b'{"zarr_format": 2}', "v/.zarray": json.dumps(document).encode()}
    (reading,) = xr_nczarr.explain(store).readings
    assert (reading.chunks, reading.absent) == (2, 2)
