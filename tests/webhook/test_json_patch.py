"""The patch turns what a server has into what was meant, whatever it is, and mentions nothing else."""

from __future__ import annotations

import copy
import json
from typing import Any

import jsonpatch
import pytest
from hypothesis import strategies as st
from many_examples import tried

from sameshot.webhook.patch import difference

NAMES = st.text(alphabet="ab/~0", max_size=3)  # with everything that a path has to escape
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.floats(-1, 1) | st.sampled_from(["", "x", "é", "-"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.dictionaries(NAMES, VALUES, max_size=5)


def exact(value: Any) -> str:
    """Unlike `==` it tells 1 from true; 1 and 1.0 are the same number of JSON."""
    return json.dumps(_plain(value), sort_keys=True)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


@tried(OBJECTS, OBJECTS, few=30, many=1000)
def test_applied_by_another_implementation_it_gives_the_new_object(old: Any, new: Any) -> None:
    before = copy.deepcopy((old, new))
    patch = difference(old, new)
    assert exact(before) == exact((old, new))
    assert {each["op"] for each in patch} <= {"add", "remove", "replace"}
    assert exact(jsonpatch.JsonPatch(copy.deepcopy(patch)).apply(old)) == exact(new)


@tried(OBJECTS, few=15, many=200)
def test_the_same_object_needs_no_patch(thing: Any) -> None:
    assert difference(thing, copy.deepcopy(thing)) == []


@tried(st.lists(VALUES, min_size=1, max_size=4), st.integers(0, 4), VALUES, few=15, many=200)
def test_what_was_put_into_a_list_is_one_addition(items: list[Any], at: int, value: Any) -> None:
    at = min(at, len(items))
    patch = difference({"env": items}, {"env": [*items[:at], value, *items[at:]]})
    assert [each["op"] for each in patch] == ["add"]


@pytest.mark.parametrize(
    ("old", "new", "patch"),
    [
        ({"a": 1}, {"a": True}, [{"op": "replace", "path": "/a", "value": True}]),
        ({"a": 0}, {"a": None}, [{"op": "replace", "path": "/a", "value": None}]),
        ({"sameshot.dev/arm": "a"}, {}, [{"op": "remove", "path": "/sameshot.dev~1arm"}]),
        ({"a~b": 1}, {"a~b": 2}, [{"op": "replace", "path": "/a~0b", "value": 2}]),
        ({"c": ["x"]}, {"c": ["sh", "--", "x"]}, [{"op": "add", "path": "/c/0", "value": "sh"},
                                                   {"op": "add", "path": "/c/1", "value": "--"}]),
        ({"c": [1, 2, 3]}, {"c": [9]}, [{"op": "remove", "path": "/c/2"}, {"op": "remove", "path": "/c/1"},
                                        {"op": "replace", "path": "/c/0", "value": 9}]),
        ({"c": [{"n": 1, "v": 1}, {"n": 2}]}, {"c": [{"n": 1, "v": 5}, {"n": 2}]},
         [{"op": "replace", "path": "/c/0/v", "value": 5}]),
    ],
)  # fmt: skip
def test_these_patches_are_the_expected_ones(old: Any, new: Any, patch: Any) -> None:
    assert exact(difference(old, new)) == exact(patch)
