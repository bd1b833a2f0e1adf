"""What one sentence of the findings may say of its numbers."""

from __future__ import annotations

import msgspec
import pytest
from hand_made import US, WINDOW, rank, reduced

from sameshot.analysis.results import (
    Confidence,
    DeviceTimes,
    FindingKind,
    HostBound,
    NamedTime,
    RankSummary,
    StepMethod,
    Steps,
    Summary,
    TraceFacts,
)

WHOLE = WINDOW * US  # ns


def alone(**fields: object) -> RankSummary:
    return msgspec.structs.replace(rank(0, [], []), **{"main_thread": "9/9", **fields})


def saying(summary: Summary, kind: FindingKind) -> str:
    (found,) = (one.sentence for one in summary.findings if one.kind is kind)
    return found


def on_device(*, compute: float = 0.0, memory: float = 0.0) -> DeviceTimes:
    used, copied = round(compute * WHOLE), round(memory * WHOLE)
    return DeviceTimes(
        compute=used, communication=0, memory=copied, idle=WHOLE - used - copied, kernels=1, overlapped=0
    )


def host_bound(*inside: float) -> HostBound:
    """Half of the window; `inside` are shares of that, one operator each."""
    total = WHOLE // 2
    operators = tuple(NamedTime(f"aten::op{i}", 1, WHOLE, round(share * total)) for i, share in enumerate(inside))
    return HostBound(total=total, share=0.5, gaps=3, operators=operators, python=())


@pytest.mark.parametrize(
    ("inside", "words"),
    [
        ((0.6, 0.1), "for the thread that launches, mostly in aten::op0 (1 rank)"),
        ((0.12, 0.11), "for the thread that launches, 12 % of it in aten::op0 (1 rank)"),
        ((0.02, 0.01), "for the thread that launches (1 rank)"),
        ((), "for the thread that launches (1 rank)"),
    ],
)
def test_only_what_took_most_of_the_time_is_where_it_mostly_went(inside: tuple[float, ...], words: str) -> None:
    found = reduced([alone(device=on_device(compute=0.1), host_bound=host_bound(*inside))])
    assert saying(found, FindingKind.HOST_BOUND).endswith(words)


@pytest.mark.parametrize("confidence", [Confidence.HIGH, Confidence.MEDIUM, Confidence.LOW])
def test_the_time_of_a_step_says_how_sure_its_steps_are(confidence: Confidence) -> None:
    edges = (0, 100_000 * US, 200_000 * US)
    sentence = saying(
        reduced([alone(steps=Steps(StepMethod.REPEATING, confidence, "…", edges))]), FindingKind.STEP_TIME
    )
    doubt = "" if confidence is Confidence.HIGH else f"; inferred, confidence {confidence.value}"
    assert sentence == f"a step takes 100 ms (median; 2 steps on 1 rank{doubt})"


def test_shares_of_the_devices_name_copies_too_where_they_count() -> None:
    copying = saying(reduced([alone(device=on_device(compute=0.2, memory=0.3))]), FindingKind.GPUS)
    assert copying == "GPUs: 20 % computing, 30 % only copying, 50 % idle (1 rank)"
    hardly = saying(reduced([alone(device=on_device(compute=0.2, memory=0.001))]), FindingKind.GPUS)
    assert hardly == "GPUs: 20 % computing, 80 % idle (1 rank)"


def test_nobody_is_told_to_record_stacks_that_are_there() -> None:
    without = reduced([alone()])
    assert any("Record Python stacks" in note for note in without.notes)
    recorded = reduced([alone(trace=TraceFacts(1, {"python_function": 1}, {}, {}, 0, "0" * 64))])
    assert not any("Record Python stacks" in note for note in recorded.notes)
    assert any(note.startswith("Untraced time") for note in recorded.notes)


def test_nothing_is_said_of_a_main_thread_that_was_not_recorded() -> None:
    """A trace of devices alone: no event is no untraced time."""
    seen = reduced([alone()])
    assert saying(seen, FindingKind.MAIN_THREADS) == "main threads: 100 % untraced (Python, sleep or blocked) (1 rank)"
    assert seen.parts.total == WHOLE
    unseen = reduced([alone(main_thread=None, device=on_device(compute=0.5))])
    assert unseen.parts.total == 0
    assert not any(one.kind is FindingKind.MAIN_THREADS for one in unseen.findings)
    assert any("No event of a host thread was recorded" in note for note in unseen.notes)
    assert not any(note.startswith("Untraced") for note in unseen.notes)
