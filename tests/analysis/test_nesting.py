"""Call nesting without a loop, against the walk with a stack that it replaces."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from sameshot.analysis import nesting
from sameshot.analysis.intervals import Ints
from sameshot.analysis.nesting import NO_PARENT, nest, self_times, threads, without_children

END = 40
raw = st.lists(st.tuples(st.integers(0, END), st.integers(0, 15)), max_size=14)


def ordered(pairs: list[tuple[int, int]]) -> tuple[Ints, Ints]:
    start = np.asarray([a for a, _ in pairs], dtype=np.int64)
    end = start + np.asarray([d for _, d in pairs], dtype=np.int64)
    order = np.lexsort((-end, start))
    return start[order], end[order]


def self_segments(start: Ints, end: Ints) -> tuple[Ints, Ints, Ints]:
    """Cut the nested spans of one thread into pieces that belong to the innermost span only.

    Returns (owner, start, end) of the pieces; owner is an index into the input. A child that outlives its parent
    (which clock granularity can produce) is cut at the parent's end, so no moment has two owners.
    """
    order = np.lexsort((-end, start))
    owners: list[int] = []
    starts: list[int] = []
    ends: list[int] = []
    stack: list[tuple[int, int]] = []  # (owner, end)
    cursor = 0

    def emit(owner: int, until: int) -> None:
        nonlocal cursor
        if until > cursor:
            owners.append(owner)
            starts.append(cursor)
            ends.append(until)
            cursor = until

    for index, begin, finish in zip(order.tolist(), start[order].tolist(), end[order].tolist(), strict=True):
        while stack and stack[-1][1] <= begin:
            owner, until = stack.pop()
            emit(owner, until)
        if stack:
            emit(stack[-1][0], begin)
            finish = min(finish, stack[-1][1])
        cursor = max(cursor, begin) if stack else begin
        if finish > begin:
            stack.append((index, finish))
    while stack:
        owner, until = stack.pop()
        emit(owner, until)
    as_ints = (np.asarray(values, dtype=np.int64) for values in (owners, starts, ends))
    owner_array, start_array, end_array = as_ints
    return owner_array, start_array, end_array


def by_stack(start: Ints, end: Ints) -> Ints:
    """Self times from `self_segments`, which walks the spans one after the other."""
    owner, begin, finish = self_segments(start, end)
    mine = np.zeros(len(start), dtype=np.int64)
    np.add.at(mine, owner, finish - begin)
    return mine


@given(st.lists(st.tuples(st.integers(0, END), st.integers(0, 15)), max_size=12))
def test_the_walk_itself_gives_every_covered_moment_exactly_one_innermost_owner(pairs: list[tuple[int, int]]) -> None:
    start = np.asarray([a for a, _ in pairs], dtype=np.int64)
    end = start + np.asarray([d for _, d in pairs], dtype=np.int64)
    owner, begin, finish = self_segments(start, end)
    pieces = [t for a, b in zip(begin.tolist(), finish.tolist(), strict=True) for t in range(a, b)]
    assert len(pieces) == len(set(pieces)), "no moment twice"
    for who, a, b in zip(owner.tolist(), begin.tolist(), finish.tolist(), strict=True):
        assert start[who] <= a < b <= end[who]


def test_a_parent_keeps_what_its_children_leave() -> None:
    start, end = np.asarray([0, 10, 12, 30]), np.asarray([100, 20, 15, 40])
    owner, begin, finish = self_segments(start, end)
    mine = np.zeros(4, dtype=np.int64)
    np.add.at(mine, owner, finish - begin)
    assert mine.tolist() == [80, 7, 3, 10]


@given(raw)
@example([(0, 10), (5, 15), (12, 3)])  # the second outlives the first, so the third is nobody's child
@example([(0, 40), (1, 9), (5, 15), (6, 15), (12, 15)])
def test_self_times_are_those_of_a_walk_with_a_stack(pairs: list[tuple[int, int]]) -> None:
    start, end = ordered(pairs)
    parent, cut = nest(start, end)
    assert without_children(cut - start, parent).tolist() == by_stack(start, end).tolist()


@given(raw)
def test_nothing_outlives_what_it_lies_in(pairs: list[tuple[int, int]]) -> None:
    start, end = ordered(pairs)
    parent, cut = nest(start, end)
    assert (cut <= end).all()
    for child, above in enumerate(parent.tolist()):
        if above != NO_PARENT:
            assert start[above] <= start[child] < cut[child] <= cut[above]


@given(raw)
def test_spans_that_overlap_all_over_are_settled_too(pairs: list[tuple[int, int]]) -> None:
    """With no rounds at all, the stack does it."""
    start, end = ordered(pairs)
    rounds, nesting._ROUNDS = nesting._ROUNDS, 0
    try:
        parent, cut = nest(start, end)
    finally:
        nesting._ROUNDS = rounds
    expected, whole = nest(start, end)
    assert (parent.tolist(), cut.tolist()) == (expected.tolist(), whole.tolist())


def test_a_long_chain_of_children_that_outlive_their_parents_is_cut_to_the_shortest() -> None:
    count = 300
    start = np.arange(count, dtype=np.int64)
    end = 1000 + np.arange(count, dtype=np.int64)
    parent, cut = nest(start, end)
    assert parent.tolist() == [NO_PARENT, *range(count - 1)]
    assert set(cut.tolist()) == {1000}


def test_threads_do_not_nest_into_each_other() -> None:
    start, end = np.asarray([0, 1, 2]), np.asarray([10, 5, 4])
    lane = np.asarray([3, 0, 3], dtype=np.int32)
    assert self_times(start, end, lane).tolist() == [8, 4, 2]
    assert [(thread, at.tolist()) for thread, at in threads(lane)] == [(0, [1]), (3, [0, 2])]


def test_spans_of_no_length_are_nobodys_parent() -> None:
    parent, cut = nest(np.asarray([0, 5, 5]), np.asarray([10, 8, 5]))
    assert (parent.tolist(), cut.tolist()) == ([NO_PARENT, 0, NO_PARENT], [10, 8, 5])
    assert nest(np.asarray([], dtype=np.int64), np.asarray([], dtype=np.int64))[0].tolist() == []
