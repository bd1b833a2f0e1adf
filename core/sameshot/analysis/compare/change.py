"""One measure of two captures: the difference, and whether it is more than noise.

    delta = mean(after) - mean(before)          means, because then the parts of a step add up to the step

What is noise is said in `noise`. Steps of one capture show what varies from step to step. What varies from run to run
(another machine, another placement) does not show in them: captures of two runs can differ by more than this noise
although the program is the same.
"""

from __future__ import annotations

import enum

import msgspec

from sameshot.analysis.compare.noise import Floats, bound, of_samples
from sameshot.analysis.results import CaptureInfo
from sameshot.analysis.results.common import ns

COMPARISON_SCHEMA = "sameshot.dev/comparison/v1"

_RELEVANT = 0.01  # of a step: smaller differences are real, perhaps, but nobody's problem


class Outcome(enum.StrEnum):
    SLOWER = "slower"
    FASTER = "faster"
    SAME = "same"  # no more than noise, or than a hundredth of a step
    UNKNOWN = "unknown"  # too few samples to say what is noise


class Change(msgspec.Struct, frozen=True, rename=ns("before", "after", "delta", "noise")):
    """One measure in both captures, in ns per step (`per` = "step"), call or window. `delta` = after - before.

    `where` is the whole job, a rank, a kernel or a collective; `samples_*` is how many numbers each side rests on.
    """

    measure: str
    where: str
    per: str
    before: int
    after: int
    delta: int
    noise: int | None
    share: float | None  # of the value before
    outcome: Outcome
    samples_before: int
    samples_after: int


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that two captures differ in. `changes` are sorted by the size of their delta per step."""

    schema: str = COMPARISON_SCHEMA
    generator: str
    generated_at: str
    before: CaptureInfo
    after: CaptureInfo
    ranks_before: int
    ranks_after: int
    incomplete: bool  # a rank is missing from either capture
    sentences: tuple[str, ...]
    warnings: tuple[str, ...]
    step: Change | None
    parts: tuple[Change, ...]  # main thread and devices, per step
    waits: tuple[Change, ...]  # data wait, host-bound time, waiting for late ranks
    ranks: tuple[Change, ...]  # step parts and device time of single ranks that changed
    kernels: tuple[Change, ...]
    operators: tuple[Change, ...]
    collectives: tuple[Change, ...]
    appeared: tuple[str, ...]  # kernels that are among the largest of the later capture only, with their time per step
    vanished: tuple[str, ...]

    @property
    def changes(self) -> tuple[Change, ...]:
        step = () if self.step is None else (self.step,)
        return (*step, *self.parts, *self.waits, *self.ranks, *self.kernels, *self.operators, *self.collectives)


def change(
    measure: str, where: str, per: str, before: Floats, after: Floats, *, relevant: float, tests: int = 1
) -> Change:
    """Compare two series of samples, in ns, of which `tests` such pairs are looked at.

    `relevant` (ns): smaller differences are SAME whatever the noise.
    """
    noise = bound(of_samples(before), of_samples(after), tests)
    samples = len(before), len(after)
    return settled(measure, where, per, float(before.mean()), float(after.mean()), noise, samples, relevant)


def settled(
    measure: str,
    where: str,
    per: str,
    was: float,
    now: float,
    noise: float | None,
    samples: tuple[int, int],
    relevant: float,
) -> Change:
    """A change whose noise is known already."""
    delta = now - was
    if noise is None:
        outcome = Outcome.UNKNOWN if abs(delta) > relevant else Outcome.SAME
    elif abs(delta) <= max(noise, relevant):
        outcome = Outcome.SAME
    else:
        outcome = Outcome.SLOWER if delta > 0 else Outcome.FASTER
    return Change(
        measure=measure,
        where=where,
        per=per,
        before=round(was),
        after=round(now),
        delta=round(now) - round(was),
        noise=None if noise is None else round(noise),
        share=delta / was if was else None,
        outcome=outcome,
        samples_before=samples[0],
        samples_after=samples[1],
    )


def relevant_ns(step_before: float | None, step_after: float | None) -> float:
    """The smallest difference per step that is worth a word."""
    steps = [step for step in (step_before, step_after) if step]
    return _RELEVANT * min(steps) if steps else 0.0
