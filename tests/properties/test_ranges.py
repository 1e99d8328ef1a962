"""Merged ranges give the same bytes, in no more requests."""

from hypothesis import given
from hypothesis import strategies as st

from xr_nczarr.storage import ByteRange
from xr_nczarr.storage.ranges import merge_ranges, windows

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
def test_every_range_is_served_once_and_rightly(
    ranges: list[ByteRange], max_gap: int, max_length: int
) -> None:
    merged = merge_ranges(ranges, max_gap=max_gap, max_length=max_length)
    served = {}
    for one in merged:
        answer = cut(one.range)
        assert len(answer) == one.range.length
        assert one.range.length <= max_length or len(one.parts) == 1
        reached = 0
        for position, offset, length in one.parts:
            assert offset - reached <= max_gap
            reached = max(reached, offset + length)
            assert position not in served
            served[position] = answer[offset : offset + length]
    assert [served[position] for position in range(len(ranges))] == [cut(one) for one in ranges]


@given(RANGES)
def test_what_touches_is_one_request(ranges: list[ByteRange]) -> None:
    merged = merge_ranges([one for one in ranges if one.start >= 0], max_gap=200)
    assert len(merged) == len({one.key for one in ranges if one.start >= 0})


@given(RANGES, st.integers(1, 5), st.integers(1, 100))
def test_windows_are_the_list_in_pieces_within_bounds(
    ranges: list[ByteRange], max_count: int, max_bytes: int
) -> None:
    pieces = list(windows(ranges, max_count=max_count, max_bytes=max_bytes))
    assert [one for piece in pieces for one in piece] == ranges
    for piece in pieces:
        assert len(piece) <= max_count
        assert len(piece) == 1 or sum(one.length for one in piece) <= max_bytes
