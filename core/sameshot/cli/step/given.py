"""What a template leaves of an option: `--min-ranks=` where a parameter is empty, `--with-stack=false` for a flag.

Engines whose templates are text can't leave an argument out. So every step takes an option without a value as one that
was not given, and a flag with a value as what that says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import typer.core

from sameshot.steps.options import flag


class StepCommand(typer.core.TyperCommand):
    """A command whose options may be written as templates write them."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        flags = {
            name: (name, next(iter(each.secondary_opts), None))
            for each in self.params
            if getattr(each, "is_flag", False)
            for name in each.opts
        }
        return super().parse_args(ctx, given(args, flags))


def given(arguments: Sequence[str], flags: Mapping[str, tuple[str, str | None]]) -> list[str]:
    """The arguments without `--name=`, and with `--flag=true` as `--flag`, `--flag=false` as its opposite or nothing.

    `flags` maps each flag to how it and its opposite are written. What follows `--` stays as it is. Raises InvalidSpec
    for a flag's value that is neither true nor false. Pure.
    """
    found: list[str] = []
    for at, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if argument == "--":
            return [*found, *arguments[at:]]
        if not (argument.startswith("--") and equals):
            found.append(argument)
        elif not value:
            continue
        elif name in flags:
            written = flags[name][0 if flag(value, name) else 1]
            found += [written] if written is not None else []
        else:
            found.append(argument)
    return found
