"""Copying the parts of a plan one by one yields NumPy's result for the same selection."""

import math

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from xr_nczarr.chunks.grid import plan_points, plan_selection


@st.composite
def grids(draw, least_rank=0):
    rank = draw(st.integers(least_rank, 3))
    shape = tuple(draw(st.lists(st.integers(0, 9), min_size=rank, max_size=rank)))
    chunk_shape = tuple(draw(st.lists(st.integers(1, 11), min_size=rank, max_size=rank)))
    return shape, chunk_shape


def slices(size):
    bounds = st.none() | st.integers(-size - 2, size + 2)
    steps = st.none() | st.integers(-4, 4).filter(bool)
    return st.builds(slice, bounds, bounds, steps)


FEW = st.integers(0, 6)


def positions(size, count=FEW):
    if size == 0:
        return st.just(np.zeros(0, np.intp))
    indices = st.integers(-size, size - 1)
    return count.flatmap(lambda n: st.lists(indices, min_size=n, max_size=n)).map(
        lambda indices: np.array(indices, np.intp)
    )


@st.composite
def orthogonal_selections(draw):
    shape, chunk_shape = draw(grids())
    selection = []
    for size in shape:
        choices = [slices(size), positions(size)]
        if size:
            choices.append(st.integers(-size, size - 1))
        selection.append(draw(st.one_of(choices)))
    return shape, chunk_shape, tuple(selection)


def numbered(shape):
    return np.arange(math.prod(shape)).reshape(shape)


def chunk_at(values, chunk_shape, index):
    """Return a chunk of the full shape, in which elements outside the array are -1."""
    chunk = np.full(chunk_shape, -1)
    inside = values[
        tuple(slice(i * c, (i + 1) * c) for i, c in zip(index, chunk_shape, strict=True))
    ]
    chunk[tuple(slice(0, size) for size in inside.shape)] = inside
    return chunk


def assemble(plan, values, chunk_shape):
    out = np.full(plan.shape, -2)
    seen = []
    for part in plan:
        seen.append(part.chunk)
        chunk = chunk_at(values, chunk_shape, part.chunk)
        if plan.axes is not None:
            chunk = chunk.transpose(plan.axes)
        out[part.target] = chunk[part.source]
    assert len(set(seen)) == len(seen) == plan.count
    return out.reshape(plan.result_shape)


@settings(max_examples=200, deadline=None)
@given(orthogonal_selections())
def test_plan_for_orthogonal_selection_selects_same_elements_as_numpy(case):
    shape, chunk_shape, selection = case
    values = numbered(shape)
    expected = values
    axis = 0
    for item in selection:
        expected = expected[(slice(None),) * axis + (item,)]
        axis += not isinstance(item, int)
    result = assemble(plan_selection(shape, chunk_shape, selection), values, chunk_shape)
    np.testing.assert_array_equal(result, expected)


@settings(max_examples=150, deadline=None)
@given(orthogonal_selections())
@example(((9,), (5,), (np.array([0, 2, 4, 5]),)))
@example(((9,), (5,), (np.array([7, 7, 8, 5, 6]),)))
@example(((9,), (5,), (np.array([7, 7, 8, 5]),)))
def test_plan_marks_exactly_the_covered_chunks_as_complete(case):
    shape, chunk_shape, selection = case
    for part in plan_selection(shape, chunk_shape, selection):
        inside = math.prod(
            min(c, n - i * c) for n, c, i in zip(shape, chunk_shape, part.chunk, strict=True)
        )
        taken = np.zeros(chunk_shape, bool)
        taken[part.source] = True
        assert part.complete == (taken.sum() == inside)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_plan_for_pointwise_selection_selects_same_elements_as_numpy(data):
    shape, chunk_shape = data.draw(grids(least_rank=1))
    count = data.draw(st.integers(1, 5))
    selection = [
        data.draw(slices(size) | positions(size, st.just(count)) if size else slices(size))
        for size in shape
    ]
    if not any(isinstance(item, np.ndarray) for item in selection):
        selection[0] = np.zeros(0, np.intp)
    values = numbered(shape)
    indexed = [axis for axis, item in enumerate(selection) if isinstance(item, np.ndarray)]
    moved = np.moveaxis(values, indexed, range(len(indexed)))
    rest = [item for item in selection if isinstance(item, slice)]
    expected = moved[tuple(selection[axis] for axis in indexed)][(slice(None), *rest)]
    result = assemble(plan_points(shape, chunk_shape, selection), values, chunk_shape)
    np.testing.assert_array_equal(result, expected)
