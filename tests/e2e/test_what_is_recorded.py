"""What was asked for is in the traces, what was not asked for is not, and what can't be served is refused before."""

from __future__ import annotations

import json
from typing import Any

import pytest
from live import LiveJob, events

from sameshot.errors import InvalidSpec, PolicyRefused
from sameshot.model import CaptureState

pytestmark = pytest.mark.live


def categories(trace: bytes) -> set[str]:
    return {each["cat"] for each in events(trace) if "cat" in each}


def has_shapes(trace: bytes) -> bool:
    return any("Input Dims" in each.get("args", {}) for each in events(trace))


@pytest.mark.full
def test_python_functions_and_shapes_are_recorded_on_request_only(job: LiveJob) -> None:
    plain = job.capture(duration_ms=200)
    rich = job.capture(duration_ms=200, with_stack=True, record_shapes=True)
    assert plain.state is rich.state is CaptureState.SUCCEEDED
    for trace in job.traces_of(plain).values():
        assert "cpu_op" in categories(trace)
        assert "python_function" not in categories(trace)
        assert not has_shapes(trace)
    for trace in job.traces_of(rich).values():
        assert {"cpu_op", "python_function"} <= categories(trace)
        assert has_shapes(trace)


@pytest.mark.parametrize(
    ("spec", "refusal"),
    [
        ({"with_stak": True}, InvalidSpec),
        ({"activities": ["gpu"]}, InvalidSpec),
        ({"duration_ms": 60_000}, PolicyRefused),
        ({"duration_ms": 5_000, "with_stack": True}, PolicyRefused),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else value.__name__,
)
def test_what_cannot_be_served_is_refused_before_anything_is_dispatched(
    job: LiveJob, spec: dict[str, Any], refusal: type[Exception]
) -> None:
    with job.local.client() as client:
        before = client.captures()
        with pytest.raises(refusal):
            job.start(**spec)
        assert client.captures() == before
