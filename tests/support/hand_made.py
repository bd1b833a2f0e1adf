"""Summaries of ranks whose collectives are written down by hand. Times are µs."""

from __future__ import annotations

from collections.abc import Sequence

from gloo_job import BASE_NS
from planted import manifest_of_ranks

from sameshot.analysis import RankSummary, Summary, reduce_ranks
from sameshot.analysis.results import Confidence, Group, PartTimes, StepMethod, Steps, Stream, TraceFacts
from sameshot.model import Identity

US = 1_000
WINDOW = 1_000_000  # µs


def group(key: str, size: int, name: str | None = "1") -> Group:
    return Group(key, name, None, None, size)


def stream(key: str, signatures: Sequence[str], ends: Sequence[float], durs: Sequence[float]) -> Stream:
    """Collectives that end at `ends` and last `durs`, numbered, so that nothing has to be guessed."""
    kinds = list(dict.fromkeys(signatures))
    return Stream(
        key=key,
        source="nccl",
        signatures=tuple(kinds),
        signature=tuple(kinds.index(one) for one in signatures),
        start=tuple(round((end - dur) * US) for end, dur in zip(ends, durs, strict=True)),
        dur=tuple(round(dur * US) for dur in durs),
        seq=tuple(range(1, len(ends) + 1)),
    )


def rank(number: int, streams: Sequence[Stream], groups: Sequence[Group], *, node: str | None = "n0") -> RankSummary:
    return RankSummary(
        target_id=f"{node}/main/{number}",
        identity=Identity(rank=number, node=node, host=node, container="main"),
        window_start_ns=BASE_NS,
        window_end_ns=BASE_NS + WINDOW * US,
        trace=TraceFacts(1, {}, {}, {}, 0, "0" * 64),
        main_thread=None,
        parts=PartTimes(untraced=WINDOW * US),
        device=None,
        operators=(),
        kernels=(),
        untraced_python=(),
        steps=Steps(StepMethod.UNKNOWN, Confidence.NONE, "No marks."),
        streams=tuple(streams),
        timeline=None,
        groups=tuple(groups),
    )


def reduced(ranks: Sequence[RankSummary], world_size: int | None = None) -> Summary:
    return reduce_ranks(manifest_of_ranks(ranks, world_size), list(ranks))
