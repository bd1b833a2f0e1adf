"""From two sides to a `Comparison`. Pure."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Sequence

import msgspec
import numpy as np

import sameshot
from sameshot.analysis.compare import samples
from sameshot.analysis.compare.change import Change, Comparison, Outcome, change, relevant_ns, settled
from sameshot.analysis.compare.noise import LEAST, MeanOf, bound
from sameshot.analysis.compare.samples import (
    DEVICE_PARTS,
    Named,
    Side,
    device_per_step,
    over_steps,
    part_per_step,
)
from sameshot.analysis.job.findings import PART_WORDS
from sameshot.analysis.results import CollectiveRow, Part, RankSummary, Spread, Summary, Verdict
from sameshot.analysis.text import count, ms, percent

_MOST_ROWS = 50
_P10_TO_P90 = 2.563  # in σ of a normal distribution
_MEDIAN = 1.2533  # standard error of a median, in those of a mean
_TOLD = 4  # changes that a sentence names

DEVICE_WORDS = {
    "compute": "GPU computing",
    "communication": "GPU only communicating",
    "memory": "GPU only copying",
    "idle": "GPU idle",
}

NOISE_CAVEAT = (
    "Noise is what varies from step to step and from call to call within one capture. What varies from run to run "
    "(another machine, another placement) is not in it: repeat a capture before you trust a small difference."
)


def compare(before: Side, after: Side) -> Comparison:
    """What `after` does slower or faster than `before`, per training step."""
    was, now = samples.step_times(before), samples.step_times(after)
    relevant = relevant_ns(*(float(times.mean()) if len(times) else None for times in (was, now)))
    step = change("step time", "job", "step", was, now, relevant=relevant) if len(was) and len(now) else None
    kernels, appeared, vanished = _named("kernel", samples.kernels, before, after, relevant)
    operators, _, _ = _named("operator", samples.operators, before, after, relevant)
    found = Comparison(
        generator=f"sameshot {sameshot.__version__}",
        generated_at=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        before=before.summary.capture,
        after=after.summary.capture,
        ranks_before=len(before.ranks),
        ranks_after=len(after.ranks),
        incomplete=bool(before.summary.missing or after.summary.missing),
        sentences=(),
        warnings=tuple(_warnings(before, after)),
        step=step,
        parts=_largest(_parts("job", before.stepped, after.stepped, relevant)),
        waits=_largest(_waits(before, after, relevant)),
        ranks=_largest(_ranks(before, after, relevant)),
        kernels=kernels,
        operators=operators,
        collectives=_largest(_collectives(before.summary, after.summary)),
        appeared=appeared,
        vanished=vanished,
    )
    return msgspec.structs.replace(found, sentences=tuple(_sentences(found, before.summary, after.summary)))


def _largest(changes: Iterable[Change]) -> tuple[Change, ...]:
    return tuple(sorted(changes, key=lambda c: (-abs(c.delta), c.measure, c.where))[:_MOST_ROWS])


def _parts(
    where: str, before: Sequence[RankSummary], after: Sequence[RankSummary], relevant: float, tables: int = 1
) -> Iterator[Change]:
    """Where the time of a step goes, on the main thread and on the devices; one of so many such tables."""
    measures = [(f"main thread {PART_WORDS[part]}", part_per_step(part)) for part in Part]
    measures += [(DEVICE_WORDS[name], device_per_step(name)) for name in DEVICE_PARTS]
    tests = tables * len(measures)
    for name, value in measures:
        was, now = over_steps(before, value), over_steps(after, value)
        if len(was) and len(now) and (was.any() or now.any()):
            yield change(name, where, "step", was, now, relevant=relevant, tests=tests)


def _waits(before: Side, after: Side, relevant: float) -> Iterator[Change]:
    """Data wait that the GPU felt, by its spread over steps, and host-bound time, of which only the sum is known.

    (Data wait of the main thread is one of its parts.)
    """
    sides = (before, after)
    felt = [[w.felt_per_step for rank in side.stepped if (w := rank.data_wait) and w.felt_per_step] for side in sides]
    if all(felt):
        yield _of_spreads("data wait that the GPU felt", felt[0], felt[1], relevant)
    held = [
        [rank.host_bound.total / side.steps_done([rank]) for rank in side.stepped if rank.host_bound] for side in sides
    ]
    if all(held):
        was, now = (float(np.mean(values)) for values in held)
        counts = len(held[0]), len(held[1])  # ranks: how they differ says nothing of how a step does
        yield settled("GPU waits for the launching thread", "per rank", "step", was, now, None, counts, relevant)


def _of_spreads(measure: str, before: Sequence[Spread], after: Sequence[Spread], relevant: float) -> Change:
    """Medians, averaged over ranks; σ of a step's value from the distance of its 10th and 90th percentile.

    Ranks that train together feel the same steps: more of them make the average no surer.
    """
    centres, means, counts = [], [], []
    for spreads in (before, after):
        steps = min(one.count for one in spreads)
        variance = float(np.mean([((one.p90 - one.p10) / _P10_TO_P90) ** 2 for one in spreads]))
        centres.append(float(np.mean([one.median for one in spreads])))
        means.append(MeanOf(_MEDIAN**2 * variance / steps, steps) if steps >= LEAST else None)
        counts.append(steps)
    noise = bound(means[0], means[1])
    return settled(measure, "per rank", "step", centres[0], centres[1], noise, (counts[0], counts[1]), relevant)


def _ranks(before: Side, after: Side, relevant: float) -> Iterator[Change]:
    """Single ranks whose main thread or devices do something for longer or shorter than before."""
    earlier = {rank.identity.rank: rank for rank in before.stepped if rank.identity.rank is not None}
    for rank in after.stepped:
        known = earlier.get(rank.identity.rank) if rank.identity.rank is not None else None
        if known is not None and len(earlier) > 1:
            for one in _parts(rank.label, [known], [rank], relevant, tables=len(after.stepped)):
                if one.outcome in (Outcome.SLOWER, Outcome.FASTER):
                    yield one


def _named(
    measure: str, of: samples.OfSide, before: Side, after: Side, relevant: float
) -> tuple[tuple[Change, ...], tuple[str, ...], tuple[str, ...]]:
    """Kernels or operators per step and rank; those that only one side has are named apart.

    Of single calls only the spread is known, not in which step they were. Calls of one step, on all ranks, may vary
    together (a large batch is large for all of them), so only steps are counted as independent: the variance of a
    step's time is that of its c calls if they all vary alike, (c σ)².
    """
    was, now = of(before), of(after)
    tests = len(was.keys() & now.keys())
    steps = [side.steps_done() for side in (before, after)]
    if not all(steps):
        return (), (), ()

    def per_step(named: Named, side: int) -> float:
        return named.total / steps[side]

    def mean_of(named: Named, side: int) -> MeanOf | None:
        own = (before, after)[side]
        rounds = steps[side] / len(own.stepped)  # steps of one rank
        if named.variance is None or rounds < LEAST:
            return None
        return MeanOf((named.count / steps[side]) ** 2 * named.variance / rounds, rounds)

    changes = []
    for name in was.keys() & now.keys():
        noise = bound(mean_of(was[name], 0), mean_of(now[name], 1), tests)
        sides = per_step(was[name], 0), per_step(now[name], 1)
        changes.append(settled(measure, name, "step", *sides, noise, (was[name].count, now[name].count), relevant / 2))

    def only(mine: dict[str, Named], others: dict[str, Named], side: int) -> tuple[str, ...]:
        lone = sorted(((per_step(mine[name], side), name) for name in mine.keys() - others.keys()), reverse=True)
        return tuple(f"{name}: {ms(total)} per step" for total, name in lone[:_MOST_ROWS] if total >= relevant / 2)

    return _largest(changes), only(now, was, 1), only(was, now, 0)


def _collectives(before: Summary, after: Summary) -> Iterator[Change]:
    """Wait and transfer of one call, for kinds and sizes that both captures matched."""

    def rows(summary: Summary) -> dict[tuple[str, str], CollectiveRow]:
        return {(row.stream, row.signature): row for row in summary.collectives if row.matched and row.wait is not None}

    earlier = rows(before)
    for key, now in rows(after).items():
        if (was := earlier.get(key)) is None:
            continue
        where, matched = f"{now.signature} ({now.stream})", (was.matched, now.matched)
        for name, old, new in (
            ("transfer", was.mean_transfer, now.mean_transfer),
            ("wait for the last rank", was.mean_wait, now.mean_wait),
        ):
            if old is not None and new is not None:
                yield settled(name, where, "call", old, new, None, matched, 0.05 * max(old, new))


def _warnings(before: Side, after: Side) -> Iterator[str]:
    for what, side in (("earlier", before), ("later", after)):
        summary = side.summary
        if summary.missing:
            yield (
                f"The {what} capture lacks {', '.join(summary.missing_ranks)}: it rests on "
                f"{count(summary.analysed_ranks, 'rank')} of {summary.expected_ranks}."
            )
        if 0 < len(side.stepped) < len(side.ranks):
            yield (
                f"No steps could be recognised on {len(side.ranks) - len(side.stepped)} of "
                f"{count(len(side.ranks), 'rank')} of the {what} capture: they are left out."
            )
        if not side.stepped:
            yield f"No training steps could be recognised in the {what} capture, so nothing is compared per step."
    if before.summary.capture.series != after.summary.capture.series:
        yield (
            f"The captures belong to different series ({before.summary.capture.series or before.summary.capture.job} "
            f"and {after.summary.capture.series or after.summary.capture.job}): they may not be comparable."
        )
    if len(before.ranks) != len(after.ranks):
        yield f"The captures have {len(before.ranks)} and {count(len(after.ranks), 'rank')}."
    sizes = [side.summary.capture.world_size for side in (before, after)]
    if None not in sizes and sizes[0] != sizes[1]:
        yield f"The jobs had {sizes[0]} and {sizes[1]} ranks: a step does not do the same work."
    yield NOISE_CAVEAT


def _sentences(found: Comparison, before: Summary, after: Summary) -> Iterator[str]:
    """What a person should know first."""
    if (step := found.step) is None:
        yield "Step times can't be compared: at least one capture has no recognised steps"
    else:
        bound = "noise unknown, too few steps" if step.noise is None else f"noise ± {ms(step.noise)}"
        share = "" if step.share is None else f" ({'+' if step.delta > 0 else '−'}{percent(abs(step.share))})"
        rests = f"{bound}; {step.samples_before} and {count(step.samples_after, 'step')}"
        verb = {
            Outcome.SLOWER: f"A step got slower by {ms(step.delta)}{share}",
            Outcome.FASTER: f"A step got faster by {ms(-step.delta)}{share}",
            Outcome.SAME: "A step takes as long as before",
            Outcome.UNKNOWN: f"A step differs by {ms(step.delta)}{share}, which may be noise",
        }[step.outcome]
        yield f"{verb}: {ms(step.before)} before, {ms(step.after)} after ({rests})"
    for outcome, word in ((Outcome.SLOWER, "More time per step"), (Outcome.FASTER, "Less time per step")):
        told = [c for c in (*found.parts, *found.waits) if c.outcome is outcome]
        if told:
            listed = sorted(told, key=lambda c: -abs(c.delta))[:_TOLD]
            yield f"{word}: " + ", ".join(f"{c.measure} {_signed(c.delta)}" for c in listed)
    ranks = [c for c in found.ranks if c.outcome is Outcome.SLOWER]
    if ranks:
        yield "Ranks that changed most: " + ", ".join(
            f"{c.where} ({c.measure} {_signed(c.delta)})" for c in ranks[:_TOLD]
        )
    for noun, rows in (("kernels", found.kernels), ("operators", found.operators)):
        slower = [c for c in rows if c.outcome is Outcome.SLOWER]
        if slower:
            yield f"Slower {noun}: " + ", ".join(f"{c.where} {_signed(c.delta)} per step" for c in slower[:_TOLD])
    if text := _late(before, after):
        yield text


def _late(before: Summary, after: Summary) -> str:
    """Which rank is late now and was not before, and the reverse."""
    names = [{late.label for late in summary.late.ranks} for summary in (before, after)]
    if Verdict.UNKNOWN in (before.late.verdict, after.late.verdict):
        return ""
    parts = []
    if new := sorted(names[1] - names[0]):
        parts.append(f"{', '.join(new)} {'makes' if len(new) == 1 else 'make'} the others wait now, and did not before")
    if gone := sorted(names[0] - names[1]):
        parts.append(f"{', '.join(gone)} {'is' if len(gone) == 1 else 'are'} no longer late")
    return "; ".join(parts)


def _signed(delta: int) -> str:
    return f"+{ms(delta)}" if delta > 0 else ms(delta)
