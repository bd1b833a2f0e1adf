"""Every command's help has examples, and they can be typed as they stand."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
import typer.main

from sameshot.cli.main import COMMANDS, application


def commands(name: str) -> dict[str, Any]:
    """The command, or those of the group of that name, by what one types."""
    root: Any = typer.main.get_command(application([name]))
    found = root.commands[name] if hasattr(root, "commands") else root
    if hasattr(found, "commands"):
        return {f"{name} {each}": command for each, command in found.commands.items()}
    return {name: found}


def examples(epilog: str) -> list[list[str]]:
    """What stands behind `sameshot`, up to a pipe, a remark in brackets or the sentence's end."""
    plain = epilog.replace("<capture id>", "ID").replace("`", "")
    return [
        shlex.split(re.split(r" \(|;|, then ", match)[0])
        for match in re.findall(r"(?<!\S)sameshot ((?:(?! \| ).)+)", plain)
    ]


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_an_example_and_each_can_be_typed(name: str) -> None:
    for typed, command in commands(name).items():
        words = typed.split()
        own = [each[len(words) :] for each in examples(command.epilog or "") if each[: len(words)] == words]
        assert own, f"{typed} has no example"
        for arguments in own:
            command.make_context(typed, arguments)  # raises for what is no option, or is missing
