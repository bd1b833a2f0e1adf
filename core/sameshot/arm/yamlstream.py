"""A file of YAML documents, as text: the same file with some of them changed in place, taken out, or put in front."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import yaml  # type: ignore[import-untyped]

from sameshot.arm.documents import GONE, Changed, written
from sameshot.arm.yamlparts import Composer, Loader, indents_lists
from sameshot.arm.yamltext import Editor, Unpatchable
from sameshot.errors import UsageError


class YamlStream:
    """Documents of YAML."""

    def __init__(self, text: str) -> None:
        text = text.removeprefix("\ufeff")  # it may not stand behind what will be put in front
        self._text = text
        composer = Composer(text)
        self._roots: list[Any] = []
        try:
            while composer.check_node():
                self._roots.append(composer.get_node())
            self.things = list(yaml.load_all(text, Loader=Loader))
        except yaml.YAMLError as error:
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
            return list(yaml.load_all(text, Loader=Loader))
        except yaml.YAMLError:
            return []

    def _changed(self, new: Sequence[Any], anew: frozenset[int]) -> tuple[str, tuple[int, ...]]:
        """The text with these objects; those in `anew`, and which can't be changed in place, are written anew."""
        rewritten: list[int] = []
        text = self._text
        for index in reversed(range(len(new))):  # from the end, so that the places before stay right
            if _plain(new, index) == _plain(self.things, index):
                continue
            root = self._roots[index]
            editor = Editor(text, indented_lists=indents_lists(root))
            try:
                if index not in anew and editor.change(root, self.things[index], new[index]):
                    text = editor.text
                    continue
            except Unpatchable:
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
