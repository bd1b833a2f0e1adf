"""YAML read with the places of everything in it, and values written as YAML."""

from __future__ import annotations

import json
import re
from typing import Any

import yaml  # type: ignore[import-untyped]

# Scalars are read as Kubernetes does, whose objects have no dates, no `=` and no numbers to the base of 60 (12:30:45,
# the only ones with a colon).
_RESOLVERS = {
    first: [
        (tag, re.compile(f"(?![^:]*:){pattern.pattern}", pattern.flags))
        for tag, pattern in known
        if not tag.endswith((":timestamp", ":value"))
    ]
    for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Gives the values of a text; in C where PyYAML has it."""

    yaml_implicit_resolvers = _RESOLVERS


class Alias(yaml.Node):  # type: ignore[misc]
    """`*name`: where it stands, and the node it stands for."""

    id = "alias"


class Composer(yaml.SafeLoader):  # type: ignore[misc]
    """Gives the nodes with their places, aliases as such, and where each document begins."""

    yaml_implicit_resolvers = _RESOLVERS

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.begins: list[tuple[int, bool]] = []  # of each document, and whether it has a `---` of its own

    def compose_document(self) -> Any:
        event = self.peek_event()
        self.begins.append((event.start_mark.index, event.explicit))
        return super().compose_document()

    def compose_node(self, parent: Any, index: Any) -> Any:
        if not self.check_event(yaml.AliasEvent):
            return super().compose_node(parent, index)
        event = self.peek_event()
        target = super().compose_node(parent, index)
        return Alias(None, target, event.start_mark, event.end_mark)


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    indented_lists = False

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> Any:
        return super().increase_indent(flow, indentless and not self.indented_lists)

    def ignore_aliases(self, data: Any) -> bool:
        return True


class _IndentedDumper(_Dumper):
    indented_lists = True


# Readers of YAML disagree about 1e3, 0o17 and y: for Kubernetes' they are a float, an int and true.
_LOOKS_LIKE_MORE = re.compile(r"[-+]?\.?[0-9]|[yYnN]\Z")


def is_surely_text(value: str) -> bool:
    """Whether no reader of YAML takes this, without quotes, for something else than the text that it is here."""
    return _LOOKS_LIKE_MORE.match(value) is None


def _text(dumper: Any, value: str) -> Any:
    style = "|" if "\n" in value else None if is_surely_text(value) else "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def block(value: Any, *, indented_lists: bool = False) -> str:
    """A value as YAML in block style, ending in a newline."""
    dumper = _IndentedDumper if indented_lists else _Dumper
    found: str = yaml.dump(
        value, Dumper=dumper, default_flow_style=False, sort_keys=False, width=2**31, allow_unicode=True
    )
    return found.removesuffix("...\n")


def inline(value: Any) -> str:
    """A value on one line, right in flow and in block context."""
    if isinstance(value, (dict, list)) or (isinstance(value, str) and not value.isprintable()):
        return json.dumps(value, ensure_ascii=False)
    whole: str = yaml.dump([value], Dumper=_Dumper, default_flow_style=True, width=2**31, allow_unicode=True)
    return whole.strip()[1:-1]


def indents_lists(root: Any) -> bool:
    """Whether the first list of a document that is a value of a mapping stands deeper than its key."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if isinstance(value, yaml.SequenceNode) and not value.flow_style and value.value:
                    first = value.value[0]
                    # The item's text stands at least two columns right of its dash.
                    return bool(first.start_mark.column - 2 > key.start_mark.column)
            waiting += [value for _, value in reversed(node.value)]
        elif isinstance(node, yaml.SequenceNode):
            waiting += reversed(node.value)
    return False
