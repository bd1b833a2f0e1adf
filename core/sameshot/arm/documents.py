"""A file of Kubernetes objects, as text: YAML with any number of documents, or JSON; and the same file with objects
changed, taken out, or put in front."""

from __future__ import annotations

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
    return YamlStream(text)


def written(things: Sequence[Any]) -> str:
    """Objects as a new YAML file."""
    _, ours = _library()
    return "---\n".join(ours.block(each) for each in things)


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


class YamlStream:
    """Documents of YAML."""

    def __init__(self, text: str) -> None:
        self._library, self._yaml = _library()
        text = text.removeprefix("\ufeff")  # it may not stand behind what will be put in front
        self._text = text
        composer = self._yaml.Composer(text)
        self._roots: list[Any] = []
        try:
            while composer.check_node():
                self._roots.append(composer.get_node())
            self.things = list(self._library.load_all(text, Loader=self._yaml.Loader))
        except self._library.YAMLError as error:
            problem = " ".join(str(error).split())
            raise UsageError(f"This is not YAML that can be read: {problem:.300}.") from None
        self._begins: list[tuple[int, bool]] = composer.begins

    def with_changes(self, new: Sequence[Any], front: Sequence[Any]) -> Changed:
        wanted = [old if each is GONE else each for old, each in zip(self.things, new, strict=True)]
        text, rewritten = self._changed(wanted, frozenset())
        found = self._values(text)
        if wrong := frozenset(
            index for index, each in enumerate(wanted) if _plain(found, index) != _plain(wanted, index)
        ):
            text, rewritten = self._changed(wanted, wrong)
            found = self._values(text)
        if gone := [index for index, each in enumerate(new) if each is GONE]:
            again = YamlStream(text)
            for index in reversed(gone):
                start, end = again._span(index)
                text = text[:start] + text[end:]
            found = self._values(text)
        if front:
            documents = written(front)
            text = f"---\n{documents}{text}" if text.startswith("---") else f"{documents}---\n{text}"
            found = self._values(text)
        kept = [each for each in (*front, *(each for each in new if each is not GONE)) if each is not None]
        if [each for each in found if each is not None] != kept:
            raise UsageError("The changed YAML would not say what was wanted; give it as JSON (kubectl … -o json).")
        return Changed(text, rewritten)

    def _values(self, text: str) -> list[Any]:
        try:
            return list(self._library.load_all(text, Loader=self._yaml.Loader))
        except self._library.YAMLError:
            return []

    def _changed(self, new: Sequence[Any], anew: frozenset[int]) -> tuple[str, tuple[int, ...]]:
        """The text with these objects; those in `anew`, and which can't be changed in place, are written anew."""
        rewritten: list[int] = []
        text = self._text
        for index in reversed(range(len(new))):  # from the end, so that the places before stay right
            if _plain(new, index) == _plain(self.things, index):
                continue
            root = self._roots[index]
            editor = self._yaml.Editor(text, indented_lists=self._yaml.indents_lists(root))
            try:
                if index not in anew and editor.change(root, self.things[index], new[index]):
                    text = editor.text
                    continue
            except self._yaml.Unpatchable:
                pass
            rewritten.append(index)
            editor.rewrite(root, new[index])
            text = editor.text
        return text, tuple(reversed(rewritten))

    def _span(self, index: int) -> tuple[int, int]:
        """A document in the text with one of the `---` around it."""
        start, explicit = self._begins[index]
        end = self._begins[index + 1][0] if index + 1 < len(self._begins) else len(self._text)
        if explicit:
            return start, end
        after = self._text.find("\n", end)
        return 0, len(self._text) if index + 1 == len(self._begins) or after < 0 else after + 1


def _plain(things: Sequence[Any], index: int) -> str | None:
    """One of them in a form that tells 1 from true and keeps the order of keys."""
    return json.dumps(things[index], default=str) if index < len(things) else None


def _library() -> tuple[Any, Any]:
    try:
        import yaml  # type: ignore[import-untyped]

        from sameshot.arm import yamltext
    except ModuleNotFoundError:
        raise UsageError("Reading YAML needs PyYAML; install it with: pip install 'sameshot[kubernetes]'") from None
    return yaml, yamltext
