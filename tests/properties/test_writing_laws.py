"""After any sequence of writes, a store contains the same values as a dataset in memory."""

import os
import tempfile
from pathlib import Path

import numpy as np
import xarray as xr
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

import xr_nczarr

EXAMPLES = int(os.environ.get("NCZARR_EXAMPLES", "60")) // 2
DIMENSIONS = [("t",), ("t", "x"), ("y", "t", "x"), ("y", "x"), ()]
UNDECLARED = "2, separator not declared"
DTYPES = ["i2", "u1", ">i4", "f4", "f8", "?"]
VARIABLES = st.tuples(st.sampled_from(DIMENSIONS), st.sampled_from(DTYPES))
WRITERS = st.sampled_from(["nczarr", "zarr"])
BLOCKS = st.none() | st.integers(1, 5)  # None writes NumPy arrays
SEEDS = st.integers(0, 99).map(np.random.default_rng)


def values(random, dtype, shape):
    """Return random numbers, some of which equal the fill value."""
    numbers = random.integers(0, 3, shape).astype(dtype)
    return np.where(numbers == 1, np.nan, numbers).astype(dtype) if dtype[0] == "f" else numbers


class Writes(RuleBasedStateMachine):
    """A sequence of writes to one store.

    `variables` maps the names of the variables to their dimensions and dtypes.
    """

    @initialize(
        kind=st.sampled_from(["2", "3", "3, sharded", UNDECLARED]),
        variables=st.lists(VARIABLES, min_size=1, max_size=3),
        length=st.integers(0, 6),
        sizes=st.tuples(*[st.integers(1, 4)] * 4),
        writer=WRITERS,
        random=SEEDS,
    )
    def create(self, kind, variables, length, sizes, writer, random):
        self.folder = tempfile.TemporaryDirectory()
        self.path, self.kind = Path(self.folder.name, "store"), kind
        self.variables = dict(zip("abc", variables, strict=False))
        self.model = self.random_dataset(self.variables, 0, length, random)
        chunks, encoding = dict(zip("txy", sizes, strict=False)), {}
        for name, (dims, _) in self.variables.items():
            encoding[name] = {"chunks": tuple([chunks[dim] for dim in dims])} if dims else {}
            if kind == "3, sharded" and dims:
                encoding[name]["shards"] = tuple([chunks[dim] * sizes[-1] for dim in dims])
            if kind == UNDECLARED:
                encoding[name]["chunk_key_encoding"] = {"name": "v2", "separator": "/"}
        options = {"zarr_format": int(kind[0]), "encoding": encoding, "consolidated": False}
        if writer == "zarr":
            self.model.to_zarr(self.path, **options)
        else:
            xr_nczarr.to_nczarr(self.model, self.path, dialect="zarr", **options)
        for file in self.path.rglob(".zarray") if kind == UNDECLARED else ():
            file.write_text(file.read_text().replace("dimension_separator", "ignored"))

    def random_dataset(self, variables, start, stop, random):
        lengths = {"t": stop - start, "x": 4, "y": 5}
        contents = {
            name: (dims, values(random, dtype, tuple([lengths[dim] for dim in dims])))
            for name, (dims, dtype) in variables.items()
        }
        return xr.Dataset(contents, coords={"t": np.arange(start, stop)})

    def along_time(self):
        return {name: item for name, item in self.variables.items() if "t" in item[0]}

    def write(self, dataset, blocks, writer="nczarr", **options):
        if writer == "zarr" and self.kind != UNDECLARED:
            dataset.to_zarr(self.path, consolidated=False, **options)
        else:
            dataset = dataset if blocks is None else dataset.chunk(blocks)
            xr_nczarr.to_nczarr(dataset, self.path, **options)

    @rule(count=st.integers(1, 4), blocks=BLOCKS, writer=WRITERS, random=SEEDS)
    def append(self, count, blocks, writer, random):
        length = self.model.sizes["t"]
        new = self.random_dataset(self.along_time(), length, length + count, random)
        self.write(new, blocks, writer, append_dim="t")
        stored = self.model[[*new.variables]]
        self.model = self.model.drop_dims("t").merge(xr.concat([stored, new], "t"))

    @rule(bounds=st.tuples(*[st.integers(0, 9)] * 2), blocks=BLOCKS, writer=WRITERS, random=SEEDS)
    def write_region(self, bounds, blocks, writer, random):
        start, stop = sorted(bound % (self.model.sizes["t"] + 1) for bound in bounds)
        new = self.random_dataset(self.along_time(), start, stop, random)
        if start < stop and new.data_vars:
            self.write(new, blocks, writer, region={"t": "auto"})
            for name, variable in new.data_vars.items():
                self.model[name].loc[{"t": new.t}] = variable

    @rule(mode=st.sampled_from(["a", "a-", "r+"]), added=VARIABLES, blocks=BLOCKS, random=SEEDS)
    def overwrite_or_add(self, mode, added, blocks, random):
        if mode != "r+":
            self.variables.setdefault(f"{len(self.variables)}", added)
        last = dict([*self.variables.items()][-2:])
        new = self.random_dataset(last, 0, self.model.sizes["t"], random)
        self.write(new.drop_vars("t"), blocks, mode=mode)
        self.model = self.model.assign(new.data_vars)

    @invariant()
    def matches_model(self):
        with xr.open_dataset(self.path, engine="nczarr") as opened:
            xr.testing.assert_equal(opened, self.model)

    def teardown(self):
        if self.kind != UNDECLARED:
            with xr.open_zarr(self.path, consolidated=False, chunks=None) as opened:
                xr.testing.assert_equal(opened, self.model)
        self.folder.cleanup()


Writes.TestCase.settings = settings(max_examples=EXAMPLES, stateful_step_count=6, deadline=None)
TestWritesToOneStore = Writes.TestCase
