"""What it takes to be named: the numbers of the rule that the package states."""

from __future__ import annotations

LEAST_STEPS = 5
STEADY = 0.8  # of the steps, late by half of the threshold

# The threshold is the largest of these three.
SHARE_OF_STEP = {"gloo": 0.2, "nccl": 0.05}
TIMES_NOISE = 3
FLOOR = {"gloo": 8_000_000, "nccl": 500_000}  # ns

# Against chance (see `chance`).
BY_CHANCE = 0.01  # that anyone at all is named in a job of equal ranks
SURELY_BY_CHANCE = 0.000_1  # that anyone is named with high confidence
TIMES_ERROR, TIMES_ERROR_SURE = 4.0, 6.0  # and never less than so many standard errors

# A single moment.
SHARE_OF_WINDOW = 0.05
SHARE_OF_WAITING = 0.5
TIMES_OTHERS = 4  # without steps: the most expensive moment of any other rank

METHOD = (
    "Late = its collectives are steadily shorter than the typical rank's, because it comes last and the others wait. "
    "Named only with a median of at least the threshold per step, half of it in 4 of 5 steps, 5 steps or more, by so "
    "much more than it varies from step to step that in 99 of 100 jobs of equal ranks nobody would be named by chance, "
    "unless starts by one clock contradict it, and, on CPU jobs, only if one part of its main thread exceeds the other "
    "ranks' by enough to explain it. "
    "With fewer steps, a GPU job's most expensive single moment is named if it makes up at least half of all waiting."
)
