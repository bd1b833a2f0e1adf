"""What to be careful about: warnings, and notes on how the numbers came about."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from sameshot.analysis.job.capture import artifact_of_rank
from sameshot.analysis.job.rows import ALL_DETAILS, ALL_TIMELINES, NOTABLE
from sameshot.analysis.results import (
    RankSummary,
    StepMethod,
)
from sameshot.analysis.text import count, ms, some_of, uncapitalised
from sameshot.manifest import Manifest, Provenance, Target

DATA_WAIT_CAVEAT = "Waiting for data says nothing about whether the batch size is already at its ceiling."


def warnings(
    manifest: Manifest,
    ranks: Sequence[RankSummary],
    targets: dict[str, Target],
    common: int | None,
    *,
    compared: bool = False,
) -> Iterable[str]:
    """`common`: time that all windows share by the clocks, in ns; `compared`: collectives of several ranks match."""
    spec = manifest.capture.spec if manifest.capture.provenance is Provenance.CAPTURED else None
    asked = spec.duration_ms * 1_000_000 if spec is not None else 0
    window = asked or int(np.median([rank.window for rank in ranks] or [0]))
    if len(ranks) > 1 and common is not None:
        if common <= 0 and compared:
            yield (
                f"By their clocks the windows of these {count(len(ranks), 'rank')} share no time ({ms(-common)} lie "
                "between them), but their collectives match: ranks are compared by these, and the clocks are wrong."
            )
        elif common <= 0:
            yield (
                f"The windows of these {count(len(ranks), 'rank')} share no time (by their clocks {ms(-common)} lie "
                "between them): ranks are not compared with each other."
            )
        elif 2 * common < window:
            yield (
                f"All {count(len(ranks), 'rank')} share only {ms(common)} of a {ms(window)} window: "
                "comparisons between ranks rest on little."
            )
    tardy = [r.label for r in ranks if (a := artifact_of_rank(targets, r)) is not None and a.late_start]
    if tardy:
        yield f"The offered start could not be met on {some_of(tardy)}: {_its(tardy)} window began late."
    doubles = [
        f"rank {rank}" for rank, n in Counter(r.identity.rank for r in ranks).items() if n > 1 and rank is not None
    ]
    if doubles:
        yield f"More than one trace claims {some_of(doubles)}; each is shown under its target's name as well."
    unknown: Counter[str] = Counter()
    for rank in ranks:
        unknown.update(rank.trace.unknown_categories)
    if unknown:
        listed = ", ".join(f"{name!r} ({times})" for name, times in unknown.most_common(8))
        yield f"Events of unknown categories were counted but not interpreted: {listed}."
    if ranks and not any(rank.steps.count for rank in ranks):
        yield f"No training steps could be recognised: {uncapitalised(ranks[0].steps.note)}"


def _its(names: Sequence[str]) -> str:
    return "its" if len(names) == 1 else "their"


def notes_on(ranks: Sequence[RankSummary]) -> Iterable[str]:
    if any(rank.steps.method is StepMethod.OPTIMIZER for rank in ranks):
        yield (
            "A wall-clock window has no ProfilerStep marks, because nobody calls profiler.step(): steps are inferred "
            "from the ends of Optimizer.step."
        )
    notes: defaultdict[str, list[str]] = defaultdict(list)
    for rank in ranks:
        if rank.steps.method in (StepMethod.UNKNOWN, StepMethod.REPEATING) or "(" in rank.steps.note:
            notes[rank.steps.note].append(rank.label)
        for oddity, times in rank.trace.oddities.items():
            notes[f"Strange values in the trace: {oddity} ({times})."].append(rank.label)
        for stream in rank.streams:
            if stream.left_out:
                notes[
                    f"{stream.left_out} collective(s) of {stream.key} were still running when the recording ended (or "
                    "were too many) and are left out."
                ].append(rank.label)
    for note, labels in notes.items():
        yield f"{some_of(labels)}: {note}"
    if len(ranks) > ALL_DETAILS:
        without = "tables" if len(ranks) <= ALL_TIMELINES else "tables and timelines"
        yield (
            f"Of {len(ranks)} ranks, {without} are kept here only for those that stand out and for {NOTABLE} evenly "
            "spread ones; sums rest on all."
        )
    if ranks and not any(rank.device is not None for rank in ranks):
        yield "No GPU activity was recorded: the breakdown is of main threads."
    if hostless := [rank.label for rank in ranks if rank.main_thread is None]:
        yield f"{some_of(hostless)}: No event of a host thread was recorded, so nothing is known of the main thread."
    if len(hostless) < len(ranks):
        yield _untraced(ranks)
    yield DATA_WAIT_CAVEAT


def _untraced(ranks: Sequence[RankSummary]) -> str:
    if any("python_function" in rank.trace.by_category for rank in ranks):
        return "Untraced time has no event but those of Python: Python code, sleeping or blocking calls."
    return (
        "Untraced time has no event: Python code, sleeping or blocking calls. Record Python stacks to see what runs "
        "there."
    )
