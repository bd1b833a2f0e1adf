"""The difference of two JSON values as a JSON Patch (RFC 6902).

An API server that can't apply a patch refuses the object, and the failure policy of the webhook does not help there
(apiserver, mutating dispatcher: such an error is not one of calling the webhook). So only the three plainest operations
are used, each on a path that is sure to exist, and everything that did not change is not mentioned: numbers and unknown
fields of other versions stay the very bytes they were.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Operation = dict[str, Any]


def difference(old: Any, new: Any) -> list[Operation]:
    """Operations that turn `old` into `new`, both as `json` would read them; empty where they are the same."""
    return list(_changes("", old, new))


def _changes(path: str, old: Any, new: Any) -> Iterator[Operation]:
    if isinstance(old, dict) and isinstance(new, dict):
        yield from _of_objects(path, old, new)
    elif isinstance(old, list) and isinstance(new, list):
        yield from _of_arrays(path, old, new)
    elif not _same(old, new):
        yield {"op": "replace", "path": path, "value": new}


def _of_objects(path: str, old: dict[str, Any], new: dict[str, Any]) -> Iterator[Operation]:
    for name in old:
        if name not in new:
            yield {"op": "remove", "path": _below(path, name)}
    for name, value in new.items():
        if name in old:
            yield from _changes(_below(path, name), old[name], value)
        else:
            yield {"op": "add", "path": _below(path, name), "value": value}


def _of_arrays(path: str, old: list[Any], new: list[Any]) -> Iterator[Operation]:
    """What was put before, after or between the elements is added there; else the elements are compared in order."""
    positions = _placed(old, new)
    if positions is None:
        yield from _element_by_element(path, old, new)
        return
    kept = set(positions)
    for index, value in enumerate(new):  # in order, so that each index means what it will mean then
        if index not in kept:
            yield {"op": "add", "path": f"{path}/{index}", "value": value}


def _placed(old: list[Any], new: list[Any]) -> list[int] | None:
    """Where the elements of `old` stand in `new`, in order; None where one of them does not."""
    positions: list[int] = []
    index = 0
    for each in old:
        while index < len(new) and not _same(each, new[index]):
            index += 1
        if index == len(new):
            return None
        positions.append(index)
        index += 1
    return positions


def _element_by_element(path: str, old: list[Any], new: list[Any]) -> Iterator[Operation]:
    for index in range(len(old) - 1, len(new) - 1, -1):  # from the end, so that no index moves
        yield {"op": "remove", "path": f"{path}/{index}"}
    for index, value in enumerate(new):
        if index < len(old):
            yield from _changes(f"{path}/{index}", old[index], value)
        else:
            yield {"op": "add", "path": f"{path}/{index}", "value": value}


def _below(path: str, name: str) -> str:
    return f"{path}/{name.replace('~', '~0').replace('/', '~1')}"


def _same(one: Any, other: Any) -> bool:
    """Equality as JSON has it: true is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(value, other[name]) for name, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)
