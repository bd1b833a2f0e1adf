"""How engines' texts and values become capture options."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from sameshot.errors import InvalidSpec, JobBusy
from sameshot.model import Activity, CaptureSpec
from sameshot.steps import options
from sameshot.steps.request import Action, CaptureRequest


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


def test_a_request_from_texts_as_templates_and_command_lines_write_them() -> None:
    given: dict[str, object] = {
        "duration": "500ms",
        "activities": "cpu, cuda",
        "record_shapes": "yes",
        "job": " bert ",
        "uid": "",
        "attempt": "2",
        "min_ranks": "7",
        "if_unavailable": "SKIP",
        "if_busy": Action.FAIL,
        "timeout": "1m",
    }
    assert options.capture_request(given, request_key="k", address="host:1", family="") == CaptureRequest(
        request_key="k",
        address="host:1",
        spec=CaptureSpec(duration_ms=500, activities=(Activity.CPU, Activity.CUDA), record_shapes=True),
        job="bert",
        attempt=2,
        min_ranks=7,
        if_unavailable=Action.SKIP,
        if_busy=Action.FAIL,
        timeout_s=60.0,
    )


def test_what_is_not_given_has_the_defaults_of_a_request() -> None:
    assert options.capture_request({}, request_key="k") == CaptureRequest(request_key="k")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"if_busy": "perhaps"}, "^if_busy: 'perhaps' is not one of fail, skip, wait"),
        ({"timeout": "soon"}, "^timeout: "),
        ({"attempt": "first"}, "^attempt: "),
        ({"job": 16}, "^job: "),
        ({"durations": "2s"}, "Unknown capture options: durations"),
        ({"with_flops": True}, "Unknown capture options: with_flops"),
    ],
)
def test_what_is_no_option_or_no_value_of_one_is_named(given: dict[str, object], says: str) -> None:
    with pytest.raises(InvalidSpec, match=says):
        options.capture_request(given, request_key="k")


def test_the_command_line_reads_the_same_options_in_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every option is a flag of the step, and a value means what `capture_request` makes of it."""
    from sameshot.cli.main import invoke

    asked: list[CaptureRequest] = []

    def run(request: CaptureRequest, *_: object) -> None:
        asked.append(request)
        raise JobBusy("enough for this test")

    monkeypatch.setattr("sameshot.steps.capture.run", run)
    given = {
        "duration": "1.5s",
        "activities": "['cpu']",
        "with_stack": "true",
        "record_shapes": "false",
        "warmup": "0s",
        "job": "bert",
        "uid": "u",
        "attempt": "3",
        "min_ranks": "2",
        "if_unavailable": "wait",
        "if_busy": "skip",
        "timeout": "90s",
    }
    assert set(given) == set(options.CAPTURE)
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
    assert invoke(["step", "capture", "--key", "k", "--address", "host:1", "--caller", "ana", *flags]) == 75
    assert asked == [options.capture_request(given, request_key="k", address="host:1", caller="ana")]
