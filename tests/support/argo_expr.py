"""The part of Argo's expression language (expr-lang) that workflows of the tests use, evaluated strictly.

    evaluate("lastRetry.exitCode in ['75', '143'] && not (x matches 'a|b')", {"lastRetry": {...}, "x": "..."})

Also `when` (govaluate), whose comparisons of quoted texts are written the same. What is not known is an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

_TOKEN = re.compile(
    r"\s*(?:(?P<text>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|(?P<number>\d+)|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<sign>\|\||&&|==|!=|>=|<=|[()\[\],.+\-<>!]))"
)
_BINARY: dict[str, tuple[int, Callable[[Any, Any], Any]]] = {
    "||": (1, lambda a, b: _bool(a) or _bool(b)),
    "or": (1, lambda a, b: _bool(a) or _bool(b)),
    "&&": (2, lambda a, b: _bool(a) and _bool(b)),
    "and": (2, lambda a, b: _bool(a) and _bool(b)),
    "==": (3, lambda a, b: a == b),
    "!=": (3, lambda a, b: a != b),
    "in": (3, lambda a, b: a in b),
    "matches": (3, lambda a, b: re.search(b, a) is not None),
    "contains": (3, lambda a, b: b in a),
    "+": (4, lambda a, b: a + b),
    "-": (4, lambda a, b: a - b),
}
_FUNCTIONS: dict[str, Callable[[Any], Any]] = {"asInt": int, "asFloat": float, "string": str}


class BadExpression(Exception):
    """It can't be read, or names what is not there."""


def evaluate(expression: str, names: Mapping[str, Any]) -> Any:
    reader = _Reader(expression, names)
    found = reader.expression(0)
    if reader.at < len(reader.tokens):
        raise BadExpression(f"{expression}: unexpected {reader.tokens[reader.at][1]!r}")
    return found


def condition(expression: str, names: Mapping[str, Any]) -> bool:
    return _bool(evaluate(expression, names))


def _bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise BadExpression(f"{value!r} is no condition")
    return value


class _Reader:
    """A small precedence climber; nothing is skipped, so both sides of `||` must be sound."""

    def __init__(self, expression: str, names: Mapping[str, Any]) -> None:
        self.source, self.names, self.at = expression, names, 0
        self.tokens: list[tuple[str, str]] = []
        place = 0
        while expression[place:].strip():
            match = _TOKEN.match(expression, place)
            if match is None:
                raise BadExpression(f"{expression}: can't be read from {expression[place:]!r} on")
            kind = match.lastgroup
            assert kind is not None
            self.tokens.append((kind, match[kind]))
            place = match.end()

    def expression(self, strength: int) -> Any:
        left = self._prefix()
        while (operator := self._peek()) in _BINARY and _BINARY[operator][0] > strength:
            self.at += 1
            own, apply = _BINARY[operator]
            left = apply(left, self.expression(own))
        return left

    def _prefix(self) -> Any:
        kind, token = self._take()
        if token in ("!", "not"):
            return not _bool(self.expression(3))
        if token == "(":
            found = self.expression(0)
            self._expect(")")
        elif token == "[":
            found = []
            while self._peek() != "]":
                found.append(self.expression(0))
                if self._peek() == ",":
                    self.at += 1
            self._expect("]")
        elif kind == "text":
            found = token[1:-1]
        elif kind == "number":
            found = int(token)
        elif kind == "name" and token in ("true", "false"):
            found = token == "true"
        elif kind == "name":
            found = self._name(token)
        else:
            raise BadExpression(f"{self.source}: unexpected {token!r}")
        return found

    def _name(self, token: str) -> Any:
        if self._peek() == "(":
            self.at += 1
            argument = self.expression(0)
            self._expect(")")
            return _FUNCTIONS[token](argument)
        found = self._of(self.names, token)
        while self._peek() in (".", "["):
            if self._take()[1] == ".":
                found = self._of(found, self._take()[1])
            else:
                found = self._of(found, self.expression(0))
                self._expect("]")
        return found

    def _of(self, value: Any, name: str) -> Any:
        if not isinstance(value, Mapping) or name not in value:
            raise BadExpression(f"{self.source}: there is no {name!r}")
        return value[name]

    def _peek(self) -> str:
        return self.tokens[self.at][1] if self.at < len(self.tokens) and self.tokens[self.at][0] != "text" else ""

    def _take(self) -> tuple[str, str]:
        if self.at >= len(self.tokens):
            raise BadExpression(f"{self.source}: ends too early")
        self.at += 1
        return self.tokens[self.at - 1]

    def _expect(self, sign: str) -> None:
        if self._take()[1] != sign:
            raise BadExpression(f"{self.source}: {sign!r} is missing")
