"""Time sets against a brute-force model that looks at every single nanosecond."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from sameshot.analysis.intervals import Spans, union

END = 40
spans = st.lists(st.tuples(st.integers(0, END), st.integers(0, END)), max_size=12)


def of(pairs: list[tuple[int, int]]) -> Spans:
    return Spans.of([a for a, _ in pairs], [b for _, b in pairs])


def moments(pairs: list[tuple[int, int]]) -> set[int]:
    return {t for a, b in pairs for t in range(a, b)}


def covered(found: Spans) -> set[int]:
    return moments(list(zip(found.start.tolist(), found.end.tolist(), strict=True)))


def assert_canonical(found: Spans) -> None:
    assert (found.start < found.end).all()
    assert (found.start[1:] > found.end[:-1]).all(), "spans must be disjoint, sorted and not even touch"


@given(spans)
def test_a_union_covers_each_moment_once(pairs: list[tuple[int, int]]) -> None:
    found = of(pairs)
    assert_canonical(found)
    assert covered(found) == moments(pairs)
    assert found.total == len(moments(pairs))


@given(spans, spans)
def test_set_operations_agree_with_sets_of_moments(one: list[tuple[int, int]], two: list[tuple[int, int]]) -> None:
    a, b = of(one), of(two)
    for found, wanted in (
        (a & b, moments(one) & moments(two)),
        (a - b, moments(one) - moments(two)),
        (a | b, moments(one) | moments(two)),
        (union((a, b, a)), moments(one) | moments(two)),
    ):
        assert_canonical(found)
        assert covered(found) == wanted


@given(spans, st.lists(st.integers(-3, END + 3), min_size=2, max_size=8))
def test_time_between_edges_is_counted_exactly(pairs: list[tuple[int, int]], edges: list[int]) -> None:
    edges = sorted(edges)
    wanted = [len(moments(pairs) & set(range(a, b))) for a, b in itertools.pairwise(edges)]
    assert of(pairs).within(edges).tolist() == wanted
