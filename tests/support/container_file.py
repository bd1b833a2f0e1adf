"""A container file, as far as one can be read without an engine: stages, and the instructions of each."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

_KNOWN = {"ARG", "FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "ENTRYPOINT"}


@dataclass
class Stage:
    base: str
    name: str | None
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def all(self, word: str) -> list[str]:
        return [rest for name, rest in self.instructions if name == word]

    @property
    def copies(self) -> list[tuple[str | None, list[str], str]]:
        """(the stage it is taken from, sources, destination)"""
        found = []
        for rest in self.all("COPY"):
            words = shlex.split(rest)
            origin = words.pop(0).removeprefix("--from=") if words[0].startswith("--from=") else None
            assert not words[0].startswith("--"), rest
            found.append((origin, words[:-1], words[-1]))
        return found

    @property
    def user(self) -> str | None:
        users = self.all("USER")
        return users[-1] if users else None

    @property
    def entrypoint(self) -> list[str]:
        (found,) = self.all("ENTRYPOINT")
        words = json.loads(found)  # anything but the exec form is run by a shell, which keeps signals to itself
        assert isinstance(words, list)
        return words

    @property
    def environment(self) -> dict[str, str]:
        return dict(word.split("=", 1) for rest in self.all("ENV") for word in shlex.split(rest))


def stages_of(path: Path) -> list[Stage]:
    """Raises AssertionError for an instruction that is not known here."""
    text = re.sub(r"^\s*#.*\n", "", path.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    arguments: dict[str, str] = {}
    found: list[Stage] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        word, _, rest = line.partition(" ")
        assert word in _KNOWN, line
        if word == "ARG" and not found:
            name, _, value = rest.partition("=")
            arguments[name] = value
        elif word == "FROM":
            base, _, name = rest.partition(" AS ")
            base = re.sub(r"\$\{(\w+)\}", lambda match: arguments[match[1]], base)
            found.append(Stage(base, name or None))
        else:
            found[-1].instructions.append((word, rest))
    return found
