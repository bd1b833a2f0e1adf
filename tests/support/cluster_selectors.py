"""Label and field selectors, as text in a query and as objects (`matchLabels`, `matchExpressions`).

https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#api
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]
_SET = re.compile(r"^(?P<key>\S+)\s+(?P<op>in|notin)\s*\((?P<values>[^)]*)\)$")
_KEY = re.compile(r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?$")
_VALUE = re.compile(r"^([A-Za-z0-9]([-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?)?$")


class BadSelector(ValueError):
    """It can't be read; a server answers 400."""


@dataclass(frozen=True)
class Term:
    key: str
    op: str  # in, notin, exists, absent
    values: tuple[str, ...] = ()

    def holds(self, labels: Mapping[str, str]) -> bool:
        match self.op:
            case "in":
                return labels.get(self.key) in self.values
            case "notin":
                return labels.get(self.key) not in self.values
            case "exists":
                return self.key in labels
            case _:
                return self.key not in labels


def label_terms(text: str) -> tuple[Term, ...]:
    """`a=b,c!=d,e in (f,g),h notin (i),j,!k`. Raises BadSelector."""
    return tuple(_checked(_term(part.strip())) for part in re.split(r",(?![^(]*\))", text) if part.strip())


def field_terms(text: str, known: tuple[str, ...]) -> tuple[Term, ...]:
    """`a.b=c,d!=e` over the fields that this resource can be selected by. Raises BadSelector."""
    terms = tuple(_equality(part.strip()) for part in text.split(",") if part.strip())
    for each in terms:
        if each.key not in known:
            raise BadSelector(f"field label not supported: {each.key}")
    return terms


def field_of(thing: Json, path: str) -> str:
    """The field's text; empty where it is not set, as with the server."""
    found: Any = thing
    for part in path.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return "" if found is None else str(found)


def matches_label_selector(selector: Json, labels: Mapping[str, str]) -> bool:
    """An object's `matchLabels` and `matchExpressions`; the empty one matches all."""
    ops = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "absent"}
    terms = [Term(key, "in", (value,)) for key, value in (selector.get("matchLabels") or {}).items()]
    terms += [
        Term(one["key"], ops[one["operator"]], tuple(one.get("values") or ()))
        for one in selector.get("matchExpressions") or ()
    ]
    return all(term.holds(labels) for term in terms)


def _term(part: str) -> Term:
    if found := _SET.match(part):
        return Term(found["key"], found["op"], tuple(one.strip() for one in found["values"].split(",")))
    if "=" in part:
        return _equality(part)
    return Term(part[1:].strip(), "absent") if part.startswith("!") else Term(part, "exists")


def _equality(part: str) -> Term:
    for sign, op in (("!=", "notin"), ("==", "in"), ("=", "in")):
        key, found, value = part.partition(sign)
        if found:
            return Term(key.strip(), op, (value.strip(),))
    raise BadSelector(f"invalid selector: {part!r}")


def _checked(term: Term) -> Term:
    if not _KEY.match(term.key) or not all(_VALUE.match(one) for one in term.values):
        raise BadSelector(f"unable to parse requirement: {term}")
    return term
