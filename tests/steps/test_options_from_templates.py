"""Options as templates of text write them: empty where a parameter is empty, flags with a value."""

from __future__ import annotations

import pytest
import typer

from sameshot.cli.step import STEPS, register
from sameshot.cli.step.given import StepCommand, given
from sameshot.errors import InvalidSpec
from sameshot.steps.options import said

FLAGS = {"--with-stack": ("--with-stack", None), "--history": ("--history", "--no-history")}


@pytest.mark.parametrize(
    ("written", "means"),
    [
        (["--key=k", "--min-ranks=", "--job="], ["--key=k"]),
        (["--min-ranks=7"], ["--min-ranks=7"]),
        (["--before=a=b"], ["--before=a=b"]),
        (["--with-stack=true"], ["--with-stack"]),
        (["--with-stack=false"], []),
        (["--with-stack="], []),
        (["--with-stack"], ["--with-stack"]),
        (["--history=no", "--history=Yes"], ["--no-history", "--history"]),
        (["--shard=0/1", "--", "--min-ranks="], ["--shard=0/1", "--", "--min-ranks="]),
        (["manifest.json", "--key", "a=b"], ["manifest.json", "--key", "a=b"]),
    ],
)
def test_an_empty_option_is_not_given_and_a_flag_is_what_its_value_says(written: list[str], means: list[str]) -> None:
    assert given(written, FLAGS) == means


def test_a_flag_that_is_neither_true_nor_false_is_refused_by_name() -> None:
    with pytest.raises(InvalidSpec, match=r"--with-stack: 'perhaps' is neither"):
        given(["--with-stack=perhaps"], FLAGS)


@pytest.mark.parametrize("name", sorted(STEPS))
def test_every_step_reads_its_options_so(name: str) -> None:
    app = typer.Typer()
    register(app)
    assert isinstance(typer.main.get_command(app).commands["step"].commands[name], StepCommand)  # type: ignore[attr-defined]


# ---- engines that know no absent values


@pytest.mark.parametrize(
    ("name", "value", "means"),
    [
        ("min_ranks", 0, None),
        ("min_ranks", 0.0, None),
        ("min_ranks", " 0 ", None),
        ("min_ranks", -1, -1),
        ("min_ranks", 4.0, 4),
        ("min_ranks", 2.5, 2.5),
        ("min_ranks", False, False),
        ("attempt", -1.0, None),
        ("attempt", 0, 0),
        ("threshold", 0.0, 0.0),
        ("job", " ", None),
        ("job", " bert ", "bert"),
        ("job", None, None),
        ("activities", ["cpu"], ["cpu"]),
    ],
)
def test_what_says_nothing_is_told_from_what_says_something(name: str, value: object, means: object) -> None:
    found = said(name, value)
    assert (found, type(found)) == (means, type(means))
