"""docs/steps.md says what the steps really take and give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer

from sameshot.cli.step import STEPS, register
from sameshot.model import Outcome
from sameshot.steps.contract import CONTRACTS
from sameshot.steps.results import CancelResult, CaptureResult
from sameshot.steps.verdict import EXIT_CODES

PAGE = (Path(__file__).parents[2] / "docs" / "steps.md").read_text()


def rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def command(step: str) -> Any:
    app = typer.Typer()
    register(app)
    return typer.main.get_command(app).commands["step"].commands[step]  # type: ignore[attr-defined]


def test_the_table_of_engines_is_the_contracts_word_for_word() -> None:
    table = rows(PAGE[PAGE.index("## What engines give") :])
    columns = dict(zip(("airflow", "flyte", "kfp", "argo"), list(zip(*table, strict=True))[1:], strict=True))
    for engine, contract in CONTRACTS.items():
        for name in contract.__struct_fields__[1:]:
            value = getattr(contract, name)
            told = ", ".join(f"`{part}`" for part in value) if isinstance(value, tuple) else value
            assert told in columns[engine], (engine, name)


@pytest.mark.parametrize("name", sorted(STEPS))
def test_every_step_is_on_it_and_shows_an_example_in_its_help(name: str) -> None:
    assert f"| `{name}` |" in PAGE
    assert f"Examples: sameshot step {name} " in command(name).epilog


@pytest.mark.parametrize(("step", "result"), [("capture", CaptureResult), ("cancel", CancelResult)])
def test_every_flag_and_field_of_capturing_and_cancelling_is_explained(step: str, result: type) -> None:
    section = PAGE[PAGE.index(f"\n## {step}\n") :].split("\n## ")[1]
    flags = [flag for each in command(step).params for flag in each.opts if flag.startswith("--")]
    assert "--key" in flags
    shared = {"--result", "--result-dir"}  # of every step, explained once
    missing = [flag for flag in flags if f"`{flag}" not in section and not (flag in shared and f"`{flag}" in PAGE)]
    assert missing == []
    told = {"exit_code", "message"}  # likewise
    assert [name for name in result.__struct_fields__ if f"`{name}`" not in section and name not in told] == []


def test_every_exit_code_of_an_outcome_is_on_it() -> None:
    codes = [cell for row in rows(PAGE) for cell in row[0].split(", ")]
    for outcome in Outcome:
        assert str(EXIT_CODES[outcome]) in codes
