"""Merged ranges yield the same bytes, and never require more requests."""

from hypothesis import given
from hypothesis import strategies as st

from xr_nczarr.storage import ByteRange
from xr_nczarr.storage.ranges import merge_ranges, split_into_batches

OBJECTS = {"a": bytes(range(200)), "b": bytes(range(100, 250))}
RANGES = st.lists(
    st.builds(
        lambda key, start, length: ByteRange(key, start, min(length, 150 - start)),
        st.sampled_from(sorted(OBJECTS)),
        st.integers(0, 149),
        st.integers(0, 60),
    )
    | st.builds(ByteRange, st.sampled_from(sorted(OBJECTS)), st.just(-9), st.integers(0, 9)),
    max_size=30,
)


def cut(one: ByteRange) -> bytes:
    start = one.start + len(OBJECTS[one.key]) if one.start < 0 else one.start
    return OBJECTS[one.key][start : start + one.length]


@given(RANGES, st.integers(0, 50), st.integers(1, 200))
def test_merged_ranges_contain_each_requested_range_once(
    ranges: list[ByteRange], max_gap: int, max_length: int
) -> None:
    merged = merge_ranges(ranges, max_gap=max_gap, max_length=max_length)
    served = {}
    for part in merged:
        answer = cut(part.range)
        assert len(answer) == part.range.length
        assert part.range.length <= max_length or len(part.parts) == 1
        reached = 0
        for position, offset, length in part.parts:
            assert offset - reached <= max_gap
            reached = max(reached, offset + length)
            assert position not in served
            served[position] = answer[offset : offset + length]
    assert [served[position] for position in range(len(ranges))] == [cut(part) for part in ranges]


@given(RANGES)
def test_adjacent_ranges_are_merged_into_one_request(ranges: list[ByteRange]) -> None:
    merged = merge_ranges([part for part in ranges if part.start >= 0], max_gap=200)
    assert len(merged) == len({part.key for part in ranges if part.start >= 0})


@given(RANGES, st.integers(1, 5), st.integers(1, 100))
def test_ranges_are_split_into_batches_within_count_and_byte_limits(
    ranges: list[ByteRange], max_count: int, max_bytes: int
) -> None:
    pieces = list(split_into_batches(ranges, max_count=max_count, max_bytes=max_bytes))
    assert [item for piece in pieces for item in piece] == ranges
    for piece in pieces:
        assert len(piece) <= max_count
        assert len(piece) == 1 or sum(item.length for item in piece) <= max_bytes
