"""The slow, strict, whole-document judge that the streaming verifier must agree with.

Built on `json` with everything refused that it lets pass; shares nothing with the code under test.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

_DECIMAL = re.compile(r"\s*[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,2})?\s*")


class Refused(Exception):
    pass


def _refuse(text: str) -> Any:
    raise Refused(text)


def _int(text: str) -> int:
    if math.isinf(float(text)):
        raise Refused(text)
    return 0 if len(text) > 4000 else int(text)


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise Refused(text)
    return value


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    # A marker that only the top level is asked for: nested objects may repeat any key.
    if sum(key == "traceEvents" for key, _ in pairs) > 1:
        found["\0twice"] = True
    return found


def _depth(value: Any) -> int:
    deepest, level = 0, [value]
    while level := [v for v in level if isinstance(v, dict | list)]:
        deepest += 1
        level = [inner for v in level for inner in (v.values() if isinstance(v, dict) else v)]
    return deepest


def _texts_are_unicode(value: Any) -> bool:
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_trace(data: bytes) -> bool:
    """A whole trace with at least one recorded event that has a time."""
    try:
        text = data.decode("utf-8")
        document = json.loads(
            text, parse_constant=_refuse, parse_int=_int, parse_float=_float, object_pairs_hook=_pairs
        )
    except (UnicodeDecodeError, ValueError, Refused, RecursionError):
        return False
    if _depth(document) > 64 or not _texts_are_unicode(document):
        return False
    if isinstance(document, dict):
        if "\0twice" in document:
            return False
        document = document.get("traceEvents")
    if not isinstance(document, list) or not all(isinstance(event, dict) for event in document):
        return False
    return any(_is_recorded(event) for event in document)


def _is_recorded(event: dict[str, Any]) -> bool:
    ph, cat, name, ts = (event.get(key) for key in ("ph", "cat", "name", "ts"))
    if ph in ("M", "s", "t", "f") or cat in ("Trace", "overhead"):
        return False
    mark = isinstance(name, str) and name.startswith(("Iteration Start", "Record Window End"))
    if ph in ("i", "I") and not (isinstance(cat, str) and cat) and mark:
        return False
    if isinstance(ts, str):  # as some tools write it
        if not _DECIMAL.fullmatch(ts):
            return False
        ts = float(ts)
    return isinstance(ts, int | float) and not isinstance(ts, bool) and abs(ts) < 2**63 / 1000
