"""Steps are found where marks are, and a doubtful answer never says *high*."""

from __future__ import annotations

import numpy as np
import pytest

from sameshot.analysis.steps import Mark, infer_steps
from sameshot.analysis.summary import Confidence, StepMethod, Steps

ADAM, SGD = "Optimizer.step#AdamW.step", "Optimizer.step#SGD.step"


def marks(*ends: int, name: str = ADAM) -> list[Mark]:
    return [(end - 5, end, name) for end in ends]


def steps(found: list[Mark], backward: list[int] | None = None) -> Steps:
    return infer_steps(found, np.asarray(sorted(backward or []), dtype=np.int64))


def test_the_ends_of_optimizer_steps_are_the_edges() -> None:
    ends = list(range(100, 800, 100))
    found = steps(marks(*ends), [end - 50 for end in ends])
    assert (found.method, found.confidence) == (StepMethod.OPTIMIZER, Confidence.HIGH)
    assert list(found.edges) == ends
    assert found.count == 6


def test_profiler_steps_win() -> None:
    profiler = [(start, start + 95, f"ProfilerStep#{number}") for number, start in enumerate((0, 100, 200), 4)]
    found = steps([*profiler, *marks(90, 190, 290)])
    assert (found.method, found.confidence, found.edges) == (
        StepMethod.PROFILER_STEP,
        Confidence.HIGH,
        (0, 100, 200, 295),
    )


def test_a_single_profiler_step_is_no_basis_even_beside_optimizer_steps() -> None:
    found = steps([(0, 95, "ProfilerStep#4"), *marks(90, 190, 290, 390)])
    assert (found.method, found.confidence, found.count) == (StepMethod.UNKNOWN, Confidence.NONE, 0)
    assert "fewer than two whole training steps" in found.note


def test_calls_without_a_backward_pass_between_them_are_one_step() -> None:
    """Two parameter groups stepped one after the other: 12 calls, 6 steps."""
    ends = [time for step in range(100, 700, 100) for time in (step, step + 10)]
    found = steps(marks(*ends), [step - 40 for step in range(100, 700, 100)])
    assert found.count == 5
    assert found.confidence is Confidence.MEDIUM
    assert "12 optimizer calls were taken for 6 steps" in found.note


def test_two_optimizers_of_different_names_are_doubtful() -> None:
    ends = list(range(100, 800, 100))
    found = steps([*marks(*ends), *marks(*(end + 20 for end in ends), name=SGD)], [e - 50 for e in ends])
    assert found.count == 6
    assert found.confidence is not Confidence.HIGH


def test_two_optimizers_of_one_name_each_with_its_backward_pass_are_paired() -> None:
    ends = [time for step in range(100, 900, 100) for time in (step, step + 25)]
    found = steps(marks(*ends), [end - 3 for end in ends])
    assert found.count == 7
    assert found.confidence is Confidence.LOW


def test_uneven_steps_are_not_mistaken_for_two_optimizers() -> None:
    ends = [100, 190, 320, 400, 540, 610, 750, 830]
    found = steps(marks(*ends), [end - 50 for end in ends])
    assert found.count == 7
    assert found.confidence is Confidence.HIGH


def test_a_few_gaps_that_take_turns_are_counted_but_doubted() -> None:
    found = steps(marks(100, 300, 350, 550, 600), [50, 250, 320, 500, 580])
    assert found.count == 4
    assert found.confidence is Confidence.LOW


def test_gradient_accumulation_counts_optimizer_steps() -> None:
    ends = list(range(400, 2800, 400))
    found = steps(marks(*ends), [end - back for end in ends for back in (350, 250, 150, 50)])
    assert found.count == 5


@pytest.mark.parametrize("ends", [(), (100,), (100, 200)])
def test_fewer_than_two_whole_steps_are_unknown(ends: tuple[int, ...]) -> None:
    found = steps(marks(*ends))
    assert (found.method, found.confidence, found.edges) == (StepMethod.UNKNOWN, Confidence.NONE, ())
    assert found.note


def test_a_few_steps_are_never_of_high_confidence() -> None:
    assert steps(marks(100, 200, 300)).confidence is Confidence.MEDIUM
