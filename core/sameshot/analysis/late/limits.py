"""What it takes to be named: the numbers of the rule that the package states."""

from __future__ import annotations

LEAST_STEPS = 5
STEADY = 0.8  # of the steps, late by half of the threshold

# The threshold is the largest of these three.
SHARE_OF_STEP = {"gloo": 0.2, "nccl": 0.05}
TIMES_NOISE = 3
FLOOR = {"gloo": 8_000_000, "nccl": 500_000}  # ns

# A single moment.
SHARE_OF_WINDOW = 0.05
SHARE_OF_WAITING = 0.5

METHOD = (
    "Late = its collectives are steadily shorter than the typical rank's, because it comes last and the others wait. "
    "Named only with a median of at least the threshold per step, half of it in 4 of 5 steps, 5 steps or more, "
    "and, on CPU jobs, only if one part of its main thread exceeds the other ranks' by enough to explain it. "
    "With fewer steps, a GPU job's most expensive single moment is named if it makes up at least half of all waiting."
)
