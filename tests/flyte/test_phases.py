"""The table from a capture's state to a task's phase: every state, over or not, and every error."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sameshot import errors
from sameshot.api.views import CaptureView
from sameshot.errors import SameshotError
from sameshot.model import CaptureState, Identity, JobRef, Nobody, TargetFact
from sameshot.steps.follow import is_over
from sameshot.steps.results import CaptureResult
from sameshot.steps.verdict import judge
from sameshot_flyte.phases import NOT_BEGUN, UNDER_WAY, Phase, ended, refused

JOB = JobRef("ml", "bert", "u1", 0)
S, P, F, C, U = (CaptureState(each) for each in ("SUCCEEDED", "PARTIAL", "FAILED", "CANCELLED", "UNKNOWN"))
TERMINAL = {Phase.SUCCEEDED, Phase.RETRYABLE_FAILED, Phase.FAILED, Phase.ABORTED}


def view(state: CaptureState, **more: Any) -> CaptureView:
    return CaptureView(capture_id="0" * 32, job=JOB, state=state, manifest_uri=more.pop("manifest_uri", "m"), **more)


def ranks(archived: int, of: int = 4) -> dict[str, Any]:
    targets = tuple(TargetFact(f"n/c/{rank}", Identity(rank=rank)) for rank in range(of))
    return {"expected": of, "archived": archived, "failed": of - archived, "targets": targets}


def told(capture: CaptureView, min_ranks: int | None = None, timed_out: bool = False) -> Phase:
    return ended(CaptureResult(exit_code=judge(capture, min_ranks).exit_code, timed_out=timed_out))


def test_names_are_flytes_own() -> None:
    idl = pytest.importorskip("flyteidl.core.execution_pb2")
    assert {each.value for each in Phase} < set(idl.TaskExecution.Phase.keys())


def test_terminal_is_what_flyte_calls_so() -> None:
    assert {each for each in Phase if each.terminal} == TERMINAL


def test_every_state_of_a_capture_that_is_not_over_has_a_phase_that_is_not_terminal() -> None:
    assert set(UNDER_WAY) == set(CaptureState)
    assert not TERMINAL & {*UNDER_WAY.values(), NOT_BEGUN}
    assert [UNDER_WAY[state] for state in list(CaptureState)[:4]] == ["QUEUED", "INITIALIZING", "RUNNING", "RUNNING"]
    assert {UNDER_WAY[state] for state in (S, P, F, C, U)} == {Phase.RUNNING}  # ended, and not published


def test_phases_before_a_capture_runs_come_in_flytes_order() -> None:
    order = list(Phase)
    before = [NOT_BEGUN, *(UNDER_WAY[state] for state in list(CaptureState)[:4])]
    assert before == sorted(before, key=order.index)


@pytest.mark.parametrize(
    ("capture", "min_ranks", "phase"),
    [
        (view(S, published=True, **ranks(4)), None, "SUCCEEDED"),
        (view(S, published=True, **ranks(4)), 4, "SUCCEEDED"),
        (view(P, published=True, **ranks(3)), None, "FAILED"),  # the same key gives the same capture
        (view(P, published=True, **ranks(3)), 4, "FAILED"),
        (view(P, published=True, **ranks(3)), 3, "SUCCEEDED"),
        (view(P, published=True, **ranks(3)), 1, "SUCCEEDED"),
        (view(F, published=True, **ranks(0)), None, "RETRYABLE_FAILED"),  # … and after this one a new one
        (view(F, published=True, **ranks(0)), 1, "RETRYABLE_FAILED"),
        (view(F, nobody=Nobody.ENDED, converged_at_ns=1), None, "RETRYABLE_FAILED"),
        (view(F, nobody=Nobody.NOT_ARMED, converged_at_ns=1), None, "RETRYABLE_FAILED"),
        (view(F, nobody=Nobody.SILENT, converged_at_ns=1), None, "RETRYABLE_FAILED"),
        (view(F, nobody=Nobody.BROKEN), None, "RETRYABLE_FAILED"),
        (view(C, published=True, **ranks(2)), None, "FAILED"),  # somebody said stop
        (view(C, published=True, **ranks(2)), 1, "FAILED"),
        (view(C), None, "FAILED"),
        (view(U), None, "RETRYABLE_FAILED"),  # lost
        (view(S, manifest_uri="", **ranks(4)), None, "RETRYABLE_FAILED"),  # never published
        (view(P, manifest_uri="", **ranks(3)), 1, "RETRYABLE_FAILED"),
        (view(S), None, "RETRYABLE_FAILED"),  # no coordinator says so: there is no success without a trace
    ],
)
def test_every_way_to_be_over(capture: CaptureView, min_ranks: int | None, phase: str) -> None:
    assert is_over(capture)
    assert told(capture, min_ranks) == phase


@pytest.mark.parametrize("capture", [view(C, published=True, **ranks(2)), view(C)])
def test_a_cancel_of_our_own_at_the_deadline_may_be_tried_again(capture: CaptureView) -> None:
    assert told(capture, timed_out=True) == "RETRYABLE_FAILED"


def test_what_is_good_enough_is_so_after_the_deadline_too() -> None:
    assert told(view(S, published=True, **ranks(4)), timed_out=True) == "SUCCEEDED"


def test_skipped_as_asked_for_is_a_success() -> None:
    assert ended(CaptureResult(message="Skipped: it has ended.")) == "SUCCEEDED"


# By hand: what the same words would be answered again (DESIGN's table of errors), and what may be better next time.
FOR_GOOD = {"UsageError", "InvalidSpec", "PolicyRefused", "RequestKeyConflict", "PartialCapture"}
FOR_GOOD |= {"CaptureCancelled", "Denied"}


@pytest.mark.parametrize(
    "error",
    [each for _, each in inspect.getmembers(errors, inspect.isclass) if issubclass(each, SameshotError)],
    ids=lambda error: error.__name__,
)
def test_every_error_fails_for_good_or_may_be_tried_again(error: type[SameshotError]) -> None:
    assert refused(error.exit_code) == ("FAILED" if error.__name__ in FOR_GOOD else "RETRYABLE_FAILED")


VIEWS = st.builds(
    view,
    st.sampled_from(CaptureState),
    published=st.booleans(),
    manifest_uri=st.sampled_from(["", "m"]),
    expected=st.integers(0, 3),
    archived=st.integers(0, 3),
    nobody=st.sampled_from([None, *Nobody]),
    converged_at_ns=st.sampled_from([None, 1]),
    cancel_requested=st.booleans(),
)


@given(VIEWS, st.sampled_from([None, 1, 2]), st.booleans())
def test_terminal_exactly_when_over(capture: CaptureView, min_ranks: int | None, timed_out: bool) -> None:
    assert not UNDER_WAY[capture.state].terminal
    if is_over(capture):
        phase = told(capture, min_ranks, timed_out)
        assert phase in TERMINAL
        assert phase is not Phase.ABORTED  # back ends drop the words of it
    if told(capture, min_ranks, timed_out) is Phase.SUCCEEDED:
        enough = capture.state is P and min_ranks is not None and capture.archived >= min_ranks
        assert capture.published
        assert capture.state is S or enough


@given(VIEWS)
def test_nothing_but_a_publication_makes_a_success(capture: CaptureView) -> None:
    assert told(msgspec.structs.replace(capture, published=False), 1) is not Phase.SUCCEEDED
