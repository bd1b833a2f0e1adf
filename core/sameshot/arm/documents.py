"""A file of Kubernetes objects, as text: YAML with any number of documents, or JSON; and the same file with objects
changed, taken out, or put in front."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sameshot.errors import UsageError


class Stream(Protocol):
    """What was read. `things` has one entry for each document; an empty document is None."""

    things: list[Any]

    def with_changes(self, new: Sequence[Any], front: Sequence[Any]) -> Changed:
        """The text with `new` in place of `things` (`GONE` takes a document out), and with `front` before them all."""


@dataclass(frozen=True)
class Changed:
    text: str
    rewritten: tuple[int, ...] = ()  # documents whose comments and formatting were lost, by index


class _Gone:
    pass


GONE = _Gone()


def read(text: str) -> Stream:
    """Raises UsageError for a text that is neither JSON nor YAML."""
    if text.lstrip("\ufeff \t\r\n")[:1] in ("{", "["):
        try:
            return JsonStream(text)
        except ValueError:
            pass  # YAML in flow style begins like this, too
    return _yaml("yamlstream").YamlStream(text)  # type: ignore[no-any-return]


def written(things: Sequence[Any]) -> str:
    """Objects as a new YAML file."""
    parts = _yaml("yamlparts")
    return "---\n".join(parts.block(each) for each in things)


def _yaml(module: str) -> Any:
    """One of the modules here that need a YAML library, which arming a pod in a webhook does not."""
    try:
        return importlib.import_module(f"sameshot.arm.{module}")
    except ModuleNotFoundError as error:
        if error.name != "yaml":
            raise
        raise UsageError("Reading YAML needs PyYAML; install it with: pip install 'sameshot[kubernetes]'") from None


class JsonStream:
    """One or more JSON values."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.things: list[Any] = []
        decoder = json.JSONDecoder()
        at = 0
        rest = text.removeprefix("\ufeff").strip()
        while at < len(rest):
            thing, at = decoder.raw_decode(rest, at)
            self.things.append(thing)
            while at < len(rest) and rest[at].isspace():
                at += 1

    def with_changes(self, new: Sequence[Any], front: Sequence[Any]) -> Changed:
        if list(new) == self.things and not front:
            return Changed(self._text)
        indent = re.search(r"^[{\[]\s*\n( +)", self._text.lstrip())
        width = len(indent[1]) if indent else None
        kept = [*front, *(thing for thing in new if thing is not GONE)]
        return Changed("".join(json.dumps(each, indent=width, ensure_ascii=False) + "\n" for each in kept))
