"""Changes a YAML text in place: what differs between an object and its new state is written into the text, and every
other byte stays (comments, anchors, quoting, order, indentation, line ends).

A YAML library that reads a file and writes it again gives other indentation, folds long lines and moves comments. So
the text is only *read* with the library, which says where each value stands; the changed text is read again and must
say exactly what was wanted. Where it can't be done so, the one document is written anew, and that is told.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable
from difflib import SequenceMatcher
from typing import Any

import yaml  # type: ignore[import-untyped]

from sameshot.arm.yamlparts import Alias, block, inline, is_surely_text


class Unpatchable(Exception):
    """This text can't be changed in place."""


class Editor:
    """Collects the changes of one text."""

    def __init__(self, text: str, *, indented_lists: bool) -> None:
        self._source = text
        self._eol = "\r\n" if "\r\n" in text else "\n"
        self._indented_lists = indented_lists
        self._edits: list[tuple[int, int, str]] = []
        self._planned: dict[int, Any] = {}  # what the nodes that aliases may stand for have become

    @property
    def text(self) -> str:
        """The text with all changes made."""
        parts: list[str] = []
        at = 0
        for start, end, replacement in sorted(self._edits, key=lambda edit: edit[:2]):
            if start < at:
                raise Unpatchable("two changes overlap")
            parts += [self._source[at:start], replacement]
            at = end
        return "".join([*parts, self._source[at:]])

    def change(self, node: Any, old: Any, new: Any) -> bool:
        """Make `node`, which says `old`, say `new`. False: whoever holds it must write its value anew.

        Parts that don't change are looked at as well: an alias among them may stand for something that does.
        """
        if isinstance(node, Alias):
            return bool(self._planned.get(id(node.value), old) == new)
        if isinstance(node, yaml.ScalarNode):
            if old == new:
                return True
            if isinstance(new, (dict, list)) or node.style in ("|", ">") or not node.value:
                return False
            self._edit(node.start_mark.index, node.end_mark.index, self._scalar(new, node.style))
        elif type(old) is not type(new) or (old != new and not (old and new)):
            return False
        elif isinstance(node, yaml.MappingNode):
            self._mapping(node, old, new)
        elif not self._sequence(node, old, new):
            return False
        self._planned[id(node)] = new
        return True

    def rewrite(self, root: Any, new: Any) -> None:
        """Write a whole document anew."""
        self._edits.clear()
        self._edit(root.start_mark.index, self._end(root), block(new, indented_lists=self._indented_lists).rstrip("\n"))

    # Mappings

    def _mapping(self, node: Any, old: dict[Any, Any], new: dict[Any, Any]) -> None:
        pairs: dict[Any, tuple[Any, Any]] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise Unpatchable("a key that is no scalar")
            if key.tag != "tag:yaml.org,2002:merge":  # what comes in through `<<` is changed by keys beside it
                pairs[self._key_of(key, old)] = (key, value)
        inherited = [key for key in old if key not in pairs]
        if any(key not in new for key in inherited):
            raise Unpatchable("a key that comes from a merge is to go")
        for key, (_, value) in pairs.items():
            if key in new and not self.change(value, old[key], new[key]):
                self._replace_value(node, pairs[key], new[key])
        self._remove_pairs(node, list(pairs.values()), [key not in new for key in pairs])
        added = {key: value for key, value in new.items() if key not in old}
        added |= {key: new[key] for key in inherited if new[key] != old[key]}
        if added:
            self._add_pairs(node, added)

    @staticmethod
    def _key_of(key: Any, old: dict[Any, Any]) -> Any:
        if key.value in old:
            return key.value
        return next((each for each in old if not isinstance(each, str) and inline(each) == key.value), key.value)

    def _replace_value(self, node: Any, pair: tuple[Any, Any], new: Any) -> None:
        key, value = pair
        if node.flow_style:
            self._edit(value.start_mark.index, self._end(value), inline(new))
            return
        colon = self._source.index(":", key.end_mark.index)
        if self._source[key.end_mark.index : colon].strip():
            raise Unpatchable("no colon after the key")
        end = max(self._end(value), colon + 1)
        if isinstance(new, (dict, list)) and new:
            column = key.start_mark.column
            deeper = column + (2 if isinstance(new, dict) or self._indented_lists else 0)
            self._edit(colon + 1, end, self._eol + self._lines(new, deeper))
        else:
            self._edit(colon + 1, end, f" {inline(new)}")

    def _remove_pairs(self, node: Any, pairs: list[tuple[Any, Any]], gone: list[bool]) -> None:
        spans = [(key.start_mark.index, self._end(value)) for key, value in pairs]
        for first, last in _runs(gone):
            start = spans[first][0]
            if node.flow_style:
                self._remove_from_flow(spans, first, last)
            elif not self._source[self._line(start) : start].strip():
                for span in spans[first:last]:
                    self._remove_lines(*span)
            elif last < len(spans):  # it stands behind a dash, which the next one gets
                self._edit(start, spans[last][0], "")
            else:
                raise Unpatchable("nothing would be left of an item")

    def _add_pairs(self, node: Any, added: dict[Any, Any]) -> None:
        last = self._end(node.value[-1][1])
        if node.flow_style:
            text = "".join(f", {inline(key)}: {inline(value)}" for key, value in added.items())
            self._edit(last, last, text)
            return
        column = node.value[0][0].start_mark.column
        at = self._line_end(max(last, self._source.index(":", node.value[-1][0].end_mark.index) + 1))
        self._edit(at, at, self._eol + self._lines(added, column))

    # Sequences

    def _sequence(self, node: Any, old: list[Any], new: list[Any]) -> bool:
        if len(old) == len(new) and all(isinstance(each, (dict, list)) for each in (*old, *new)):
            steps = [("equal", 0, len(old), 0, len(new))]  # such lists may have no names in their items
        else:
            matcher = SequenceMatcher(None, [_same(o) for o in old], [_same(n) for n in new], autojunk=False)
            steps = [(str(step), i1, i2, j1, j2) for step, i1, i2, j1, j2 in matcher.get_opcodes()]
        if old and not any(step == "equal" for step, *_ in steps):
            return False
        items = node.value
        for step, i1, i2, j1, j2 in steps:
            if step == "equal":
                for item, before, after in zip(items[i1:i2], old[i1:i2], new[j1:j2], strict=True):
                    if not self.change(item, before, after):
                        self._replace_item(node, item, after)
                continue
            if i2 > i1 and node.flow_style:
                self._remove_from_flow([(each.start_mark.index, self._end(each)) for each in items], i1, i2)
            elif i2 > i1:
                for item in items[i1:i2]:
                    self._remove_lines(self._dash(item), self._end(item))
            if j2 > j1:
                self._insert_items(node, new[j1:j2], i1, i2)
        return True

    def _replace_item(self, node: Any, item: Any, new: Any) -> None:
        if node.flow_style:
            self._edit(item.start_mark.index, self._end(item), inline(new))
            return
        dash = self._dash(item)
        column = dash - self._line(dash)
        self._edit(dash + 1, max(self._end(item), dash + 1), f" {self._lines(new, column + 2).lstrip(' ')}")

    def _insert_items(self, node: Any, added: list[Any], i1: int, i2: int) -> None:
        items = node.value
        if node.flow_style:
            text = ", ".join(inline(each) for each in added)
            if i2 < len(items):
                start = items[i2].start_mark.index
                self._edit(start, start, f"{text}, ")
            else:
                end = self._end(items[-1])
                self._edit(end, end, f", {text}")
            return
        dash = self._dash(items[0])
        column = dash - self._line(dash)
        text = self._eol.join(f"{' ' * column}- {self._lines(each, column + 2).lstrip(' ')}" for each in added)
        if i2 == 0:
            start = self._line(dash)
            if self._source[start:dash].strip():
                raise Unpatchable("a list within a line")
            self._edit(start, start, text + self._eol)
        else:
            end = self._line_end(self._end(items[i2 - 1]))
            self._edit(end, end, self._eol + text)

    # Places

    def _edit(self, start: int, end: int, replacement: str) -> None:
        self._edits.append((start, end, replacement))

    def _scalar(self, value: Any, style: str | None) -> str:
        """A scalar in the quotes that stood there; where none did, in such as are right in flow and in block context
        if it needs any."""
        if not isinstance(value, str) or style is None:
            plain: str = yaml.dump(value, Dumper=yaml.SafeDumper, width=2**31, allow_unicode=True)
            plain = plain.removesuffix("\n").removesuffix("\n...")
            plainly = not isinstance(value, str) or is_surely_text(value)
            return plain if plainly and re.fullmatch(r"[A-Za-z0-9_/.:=$+-]+", plain) else inline(value)
        quoted: str = yaml.dump(value, default_style=style, width=2**31, allow_unicode=True)
        return quoted.rstrip("\n")

    def _lines(self, value: Any, column: int) -> str:
        """A value as lines at this column, without the last line end."""
        lines = block(value, indented_lists=self._indented_lists).rstrip("\n").split("\n")
        return self._eol.join(" " * column + line if line else line for line in lines)

    def _end(self, node: Any) -> int:
        """Where the text of a node really ends: a block's own mark lies behind the comments that follow it."""
        if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
            last = node.value[-1]
            if isinstance(node, yaml.MappingNode):
                return max(self._end(last[1]), int(last[0].end_mark.index) + 1)
            return self._end(last)
        start, end = int(node.start_mark.index), int(node.end_mark.index)
        if isinstance(node, yaml.ScalarNode) and node.style in ("|", ">"):
            text = self._source[start:end]
            header = text.split("\n", 1)[0].split("#")[0]
            return start + len(text.removesuffix("\n").removesuffix("\r") if "+" in header else text.rstrip())
        return end

    def _line(self, at: int) -> int:
        return self._source.rfind("\n", 0, at) + 1

    def _line_end(self, at: int) -> int:
        end = self._source.find("\n", at)
        end = len(self._source) if end < 0 else end
        return end - 1 if end > at and self._source[end - 1] == "\r" else end

    def _dash(self, item: Any) -> int:
        at = int(item.start_mark.index)
        before = self._source[:at].rstrip(" ")
        if not before.endswith("-"):
            raise Unpatchable("an item that does not stand behind its dash")
        return len(before) - 1

    def _remove_lines(self, start: int, end: int) -> None:
        """Remove whole lines, with the line end before them."""
        first, last = self._line(start), self._line_end(end)
        if self._source[first:start].strip():
            raise Unpatchable("it does not stand on a line of its own")
        if first == 0:
            self._edit(0, min(last + len(self._eol), len(self._source)), "")
        else:
            self._edit(first - len(self._eol), last, "")

    def _remove_from_flow(self, spans: list[tuple[int, int]], i1: int, i2: int) -> None:
        if i2 < len(spans):
            self._edit(spans[i1][0], spans[i2][0], "")
        elif i1 > 0:
            self._edit(spans[i1 - 1][1], spans[i2 - 1][1], "")
        else:
            raise Unpatchable("nothing would be left of a list")


def _runs(chosen: list[bool]) -> list[tuple[int, int]]:
    """The stretches of chosen positions, as (first, one behind the last)."""
    found: list[tuple[int, int]] = []
    for at, each in enumerate(chosen):
        if each and found and found[-1][1] == at:
            found[-1] = (found[-1][0], at + 1)
        elif each:
            found.append((at, at + 1))
    return found


def _same(item: Any) -> Hashable:
    """Tells which items of two states of a list are the same one: those of pods have names or mount paths."""
    if isinstance(item, dict):
        for key in ("mountPath", "name"):
            if isinstance(item.get(key), str):
                return key, item[key]
    return json.dumps(item, sort_keys=True, default=str)
