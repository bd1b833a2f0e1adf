"""How engines' texts and values become capture options."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from sameshot.errors import InvalidSpec
from sameshot.model import Activity, CaptureSpec
from sameshot.steps import options


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2s", 2000),
        (" 500 ms ", 500),
        ("1.5s", 1500),
        ("1m", 60_000),
        ("2min", 120_000),
        ("2h", 7_200_000),
        ("3", 3000),
        (3, 3000),
        (0.001, 1),
        (0.3, 300),  # 0.3 * 1000 is exact, 0.29 * 1000 is not
        (0.29, 290),
        (timedelta(seconds=1, milliseconds=1), 1001),
        (0, 0),
    ],
)
def test_durations(value: object, expected: int) -> None:
    assert options.milliseconds(value) == expected


@pytest.mark.parametrize(
    "value",
    [
        "",
        "s",
        "-1s",
        "1e3",
        "2 parsecs",
        "0.5ms",
        "1s 2s",
        "nan",
        None,
        True,
        -1,
        0.0001,
        float("inf"),
        float("nan"),
        [],
    ],
)
def test_what_is_no_duration_is_named(value: object) -> None:
    with pytest.raises(InvalidSpec, match=r"^warmup: .*is not a duration"):
        options.milliseconds(value, "warmup")


@pytest.mark.parametrize(
    ("value", "expected"), [(None, None), ("", None), ("None", None), ("null", None), (3, 3), ("3", 3), (" 0 ", 0)]
)
def test_whole_numbers_or_none(value: object, expected: int | None) -> None:
    assert options.whole(value) == expected


@pytest.mark.parametrize("value", ["three", "-1", -1, 1.5, "1.5", True, "9" * 19])
def test_what_is_no_whole_number_is_named(value: object) -> None:
    with pytest.raises(InvalidSpec, match=r"^min_ranks: .*is not a whole number"):
        options.whole(value, "min_ranks")


@pytest.mark.parametrize(("value", "expected"), [(True, True), ("True", True), ("yes", True), ("0", False), (0, False)])
def test_flags(value: object, expected: bool) -> None:
    assert options.flag(value) is expected


@pytest.mark.parametrize("value", ["", None, "maybe", 2, []])
def test_what_is_no_flag_is_named(value: object) -> None:
    with pytest.raises(InvalidSpec, match=r"^with_stack: .*neither true nor false"):
        options.flag(value, "with_stack")


@pytest.mark.parametrize(
    ("value", "expected"), [(None, None), (" ", None), ("None", None), (" bert ", "bert"), ("nonesuch", "nonesuch")]
)
def test_texts_or_none(value: object, expected: str | None) -> None:
    assert options.text(value) == expected
    assert options.label(value) == expected


def test_a_commit_of_digits_is_a_text() -> None:
    assert options.text(1234567, "commit") == "1234567"
    with pytest.raises(InvalidSpec, match=r"^job: 16 is a int, not a text"):  # 0x10, maybe
        options.label(16, "job")


@pytest.mark.parametrize("value", [1000.0, float("inf"), True, [1], {"a": 1}, b"x"])
def test_what_is_no_text_is_named(value: object) -> None:
    for read in (options.text, options.label):
        with pytest.raises(InvalidSpec, match=r"^commit: .* not a text"):
            read(value, "commit")


@pytest.mark.parametrize(
    "value", ["cpu, cuda", "cpu,cuda", ["cpu", "cuda"], ("cpu", "cuda"), "['cpu', 'cuda']", '["cpu","cuda"]']
)
def test_lists_of_names(value: object) -> None:
    assert options.words(value) == ("cpu", "cuda")


@pytest.mark.parametrize("value", [None, 3, {"cpu": 1}, b"cpu"])
def test_what_is_no_list_of_names_is_named(value: object) -> None:
    with pytest.raises(InvalidSpec, match=r"^activities: .*is no list of names"):
        options.words(value, "activities")


def test_nothing_given_is_the_default_spec() -> None:
    assert options.capture_spec() == CaptureSpec()


def test_a_spec_from_texts() -> None:
    given: dict[str, Any] = {"duration": "500ms", "activities": "cpu", "with_stack": "true", "warmup": "0s"}
    expected = CaptureSpec(duration_ms=500, activities=(Activity.CPU,), with_stack=True, warmup_ms=0)
    assert options.capture_spec(**given) == expected


@pytest.mark.parametrize(
    ("given", "says"),
    [({"duration": "2h"}, "out of range"), ({"activities": "gpu"}, "gpu"), ({"warmup": "1.5s"}, "whole seconds")],
)
def test_what_can_not_be_recorded_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidSpec, match=says):
        options.capture_spec(**given)
