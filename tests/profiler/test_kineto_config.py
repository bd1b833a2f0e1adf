from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sameshot.errors import InvalidSpec
from sameshot.model import Activity, CaptureSpec
from sameshot.profiler.config import (
    START_MARGIN_NS,
    activity_types,
    can_start_at,
    check_output_path,
    config_text,
    expected_window,
    traced_file,
)

PATH = "/sameshot/captures/c1/main/0/trace.json"

# Every key below is one that Kineto's Config::handleOption knows; it ignores any other without a word.
KEYS = {
    "ACTIVITIES_LOG_FILE",
    "ACTIVITY_TYPES",
    "ACTIVITIES_DURATION_MSECS",
    "ACTIVITIES_WARMUP_PERIOD_SECS",
    "PROFILE_START_TIME",
    "PYTHON_STACK_TRACE",
    "PROFILE_REPORT_INPUT_SHAPES",
    "PROFILE_PROFILE_MEMORY",
    "PROFILE_WITH_FLOPS",
    "PROFILE_WITH_MODULES",
}


def as_kineto_reads_it(text: str) -> dict[str, str]:
    """Kineto's own rules: a line is cut at `#`, must have exactly one `=`, blanks around key and value go."""
    found = {}
    for line in text.splitlines():
        if not (line := line.split("#")[0]).strip():
            continue
        key, value = line.split("=")
        assert value.strip(), "an empty value falls back to a default"
        found[key.strip()] = value.strip()
    return found


def test_every_key_is_written_and_known() -> None:
    assert as_kineto_reads_it(config_text(CaptureSpec(), PATH, None)).keys() == KEYS


def test_the_window_is_as_asked() -> None:
    spec = CaptureSpec(duration_ms=750, warmup_ms=3000, record_shapes=True)
    got = as_kineto_reads_it(config_text(spec, PATH, 1_795_997_146_356_987_654))
    assert got["ACTIVITIES_LOG_FILE"] == PATH
    assert got["ACTIVITIES_DURATION_MSECS"] == "750"
    assert got["ACTIVITIES_WARMUP_PERIOD_SECS"] == "3"
    assert got["PROFILE_START_TIME"] == "1795997146356"
    assert got["PROFILE_REPORT_INPUT_SHAPES"] == "true"


@pytest.mark.parametrize("start", [None, 0])
def test_without_a_start_the_window_begins_at_once(start: int | None) -> None:
    assert as_kineto_reads_it(config_text(CaptureSpec(), PATH, start))["PROFILE_START_TIME"] == "0"


def test_python_functions_are_listed_and_switched_on_only_with_stacks() -> None:
    without = as_kineto_reads_it(config_text(CaptureSpec(), PATH, None))
    assert "python_function" not in without["ACTIVITY_TYPES"]
    assert without["PYTHON_STACK_TRACE"] == "false"
    with_stacks = as_kineto_reads_it(config_text(CaptureSpec(with_stack=True), PATH, None))
    assert "python_function" in with_stacks["ACTIVITY_TYPES"].split(",")
    assert with_stacks["PYTHON_STACK_TRACE"] == "true"


def test_only_what_was_asked_for_is_listed() -> None:
    cpu = set(activity_types(CaptureSpec(activities=(Activity.CPU,))))
    cuda = set(activity_types(CaptureSpec(activities=(Activity.CUDA,))))
    assert "cpu_op" in cpu
    assert "kernel" in cuda
    assert not cpu & cuda


@pytest.mark.parametrize("option", ["profile_memory", "with_flops"])
def test_an_option_that_kineto_ignores_is_refused(option: str) -> None:
    with pytest.raises(InvalidSpec, match=option):
        config_text(CaptureSpec.of({option: True}), PATH, None)


@pytest.mark.parametrize(
    "path",
    [
        "/a/x=y/trace.json",  # loses the whole request
        "/a/trace.json\nACTIVITIES_DURATION_MSECS=60000",  # would add a line of its own
        "/a/trace\r.json",
        "/a/#1/trace.json",  # the rest would be a comment
        "/a/trace",  # no pid would be added: ranks collide
        "/a/trace.json.gz",
        "/a/run.json.d/trace.json",  # the pid would go into the directory's name
        "/a/x.pt.trace.json",
        "/a/../etc/trace.json",
        "/a/\udcff/trace.json",  # bytes that are not UTF-8, as os.fsdecode writes them
        "trace.json",
        " /a/trace.json",
        "",
    ],
)
def test_a_path_that_kineto_would_cut_lose_or_move_is_refused(path: str) -> None:
    with pytest.raises(InvalidSpec, match="nothing was sent"):
        config_text(CaptureSpec(), path, None)


@given(st.text())
def test_a_path_is_refused_or_arrives_unchanged(name: str) -> None:
    path = f"/a/{name}/trace.json"
    try:
        check_output_path(path)
    except InvalidSpec:
        return
    got = as_kineto_reads_it(config_text(CaptureSpec(), path, None))
    assert got.keys() == KEYS
    assert got["ACTIVITIES_LOG_FILE"] == path


def test_the_finished_file_has_the_pid_in_its_name() -> None:
    assert traced_file("/a/trace.json", 17) == "/a/trace_17.json"


def test_a_start_needs_the_warm_up_and_the_margin() -> None:
    spec, now = CaptureSpec(warmup_ms=2000), 10**18
    soonest = now + START_MARGIN_NS + 2_000_000_000
    assert can_start_at(spec, soonest, now)
    assert not can_start_at(spec, soonest - 1, now)


def test_a_window_that_begins_at_once_begins_two_ticks_and_the_warm_up_later() -> None:
    spec = CaptureSpec(duration_ms=500, warmup_ms=1000)
    assert expected_window(spec, None, 0) == (3_000_000_000, 3_500_000_000)
    assert expected_window(spec, 7, 0) == (7, 500_000_007)
