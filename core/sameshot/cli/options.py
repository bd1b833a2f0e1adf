"""Options and values that several commands share."""

from __future__ import annotations

import enum
import re
import sys
from typing import Annotated, Any

import msgspec
import typer

from sameshot.errors import UsageError
from sameshot.steps.options import milliseconds as milliseconds  # engines read durations in the same way


class Output(enum.StrEnum):
    TABLE = "table"
    JSON = "json"


OutputOption = Annotated[Output, typer.Option("--output", "-o", help="table for people, json for scripts.")]

AddressOption = Annotated[
    str,
    typer.Option(
        "--address",
        envvar="SAMESHOT_ADDRESS",
        help="The job's coordinator: `local` for a job of this machine, host:port, or kube:namespace/job.",
        show_default=True,
    ),
]

JobOption = Annotated[
    str | None,
    typer.Option("--job", "-j", help="The job's name; needed only when several run.", show_default=False),
]

CaptureArgument = Annotated[str | None, typer.Argument(help="The capture's id.", show_default=False)]

KeyOption = Annotated[
    str | None,
    typer.Option("--key", help="Your own idempotency key: the same key gives the same capture.", show_default=False),
]

WorkersOption = Annotated[
    int | None,
    typer.Option(
        min=1, help="Processes that read traces; default: one for small traces, else one a core.", show_default=False
    ),
]


def rank_list(text: str) -> list[int]:
    """`0,2-4` as ranks. Raises UsageError."""
    found: list[int] = []
    for piece in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", piece)
        if match is None or (match[2] is not None and int(match[2]) < int(match[1])):
            raise UsageError(f"{piece!r} names no ranks; write for example 0,2-4.")
        found += range(int(match[1]), int(match[2] or match[1]) + 1)
    return found


def pairs(items: list[str], what: str) -> dict[str, str]:
    """`k=v` options as a dict. Raises UsageError."""
    found = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise UsageError(f"{what} {item!r} is not of the form key=value.")
        found[key] = value
    return found


def print_json(value: Any) -> None:
    """One JSON document on standard output; enums by value, states by name."""
    sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2) + b"\n")
    sys.stdout.flush()
