"""How fast collectives move data once everybody is there, and which groups are slower than others like them.

    t      = the last arriver's duration (the waiting of the others is no transfer)
    algbw  = S / t          S in bytes: all_reduce in, all_gather out, reduce_scatter in, all_to_all in
    busbw  = algbw × factor

with the factors of NVIDIA's nccl-tests (doc/PERFORMANCE.md), which make busbw comparable with the links' own speed
whatever the number of ranks is. Without a size in the trace there is no row; nor for a group of one rank, nor where not
all ranks of the group were recorded: the last to come may be missing.

A slow link is a group that reaches far less than others of the same kind, number of ranks, placement and size (to a
factor of two), *and* whose transfers themselves last longer than theirs: what takes as long for fewer bytes is bound by
latency, and its rate says nothing about the link.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median

import msgspec
import numpy as np

from sameshot.analysis.communication.sizes import message_bytes
from sameshot.analysis.names import Collective
from sameshot.analysis.results import BandwidthRow, RankSummary, SlowLink
from sameshot.analysis.text import count, percent, size
from sameshot.analysis.waiting.arrivals import Arrivals

_SLOW = 0.7  # of what others like it reach
_SLOW_OF_TWO = 0.5  # where there is only one to compare with
_LEAST_CALLS = 3
_NOISE = 20_000  # ns; ends differ by up to 30 µs in one call, their median over calls by less
_MOST_LINKS = 16
_MANY = 16


def factor(kind: Collective, ranks: int) -> float | None:
    """busbw / algbw; None where that has no meaning."""
    if ranks < 2:
        return None
    if kind is Collective.ALL_REDUCE:
        return 2 * (ranks - 1) / ranks
    if kind in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_TO_ALL):
        return (ranks - 1) / ranks
    return 1.0 if kind in (Collective.BROADCAST, Collective.REDUCE, Collective.SEND_RECV) else None


def bandwidth(ranks: Sequence[RankSummary], streams: Sequence[Arrivals]) -> list[BandwidthRow]:
    """One row per group, kind and size, the longest in all first."""
    found: list[tuple[int, BandwidthRow]] = []
    for one in streams:
        if one.found.source == "gloo" or not one.complete:
            continue
        placement = _placement(ranks, one)
        for signature, transfers in _transfers(one).items():
            kind, volume = _parsed(signature)
            times = factor(kind, len(one.found.ranks)) if kind is not None else None
            took = int(np.median(transfers))
            if kind is None or volume is None or times is None or took <= 0:
                continue
            alg = volume / took  # bytes per ns are GB per s
            row = BandwidthRow(
                group=one.found.key,
                kind=kind,
                bytes=volume,
                ranks=len(one.found.ranks),
                placement=placement,
                calls=len(transfers),
                transfer=took,
                algbw_gb_per_s=round(alg, 3),
                busbw_gb_per_s=round(alg * times, 3),
                relative=None,
            )
            found.append((took * len(transfers), row))
    by_likeness: defaultdict[_Likeness, list[tuple[str, float]]] = defaultdict(list)
    for _, row in found:
        by_likeness[_likeness(row)].append((row.group, row.busbw_gb_per_s))
    usual = {alike: _usual(rates) for alike, rates in by_likeness.items()}
    rows = []
    for _, row in sorted(found, key=lambda item: (-item[0], item[1].group, item[1].kind, item[1].bytes)):
        others = usual[_likeness(row)][row.group]
        relative = round(row.busbw_gb_per_s / others, 3) if others else None
        rows.append(msgspec.structs.replace(row, relative=relative))
    return rows


_Likeness = tuple[Collective, int, int, str]


def _likeness(row: BandwidthRow) -> _Likeness:
    """Equal for what may be compared: kind, number of ranks, size to a factor of two, and placement."""
    return row.kind, row.ranks, row.bytes.bit_length(), row.placement


def _usual(values: Sequence[tuple[str, float]]) -> dict[str, float | None]:
    """For each group the median of the others' (of many: of all, which is the same)."""
    groups = {group for group, _ in values}
    if len(groups) > _MANY:
        middle = median(value for _, value in values)
        return dict.fromkeys(groups, middle)
    rest = {one: [value for group, value in values if group != one] for one in groups}
    return {one: median(others) if others else None for one, others in rest.items()}


def _transfers(one: Arrivals) -> dict[str, list[int]]:
    """Signature → the last arriver's durations."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for column, took in zip(one.at.tolist(), one.dur.min(axis=0).tolist(), strict=True):
        found[one.found.signatures[column]].append(took)
    return found


def _parsed(signature: str) -> tuple[Collective | None, int | None]:
    """Kind and bytes from "all_reduce 4194304 Float"."""
    kind, *rest = signature.split(" ")
    if kind not in set(Collective) or len(rest) != 2 or not rest[0].isdigit():
        return None, None
    return Collective(kind), message_bytes(int(rest[0]), rest[1])


def _nodes(ranks: Sequence[RankSummary], one: Arrivals) -> tuple[str, ...] | None:
    nodes = [ranks[i].identity.node or ranks[i].identity.host for i in one.found.ranks]
    return None if any(node is None for node in nodes) else tuple(sorted({str(node) for node in nodes}))


def _placement(ranks: Sequence[RankSummary], one: Arrivals) -> str:
    nodes = _nodes(ranks, one)
    return "unknown" if nodes is None else "one node" if len(nodes) == 1 else f"{len(nodes)} nodes"


def slow_links(
    ranks: Sequence[RankSummary], streams: Sequence[Arrivals], rows: Sequence[BandwidthRow], labels: Sequence[str]
) -> list[SlowLink]:
    """Groups that reach far less than others like them; of each group the case that costs most."""
    alike: defaultdict[_Likeness, set[str]] = defaultdict(set)
    transfers: defaultdict[_Likeness, list[tuple[str, float]]] = defaultdict(list)
    for row in rows:
        alike[_likeness(row)].add(row.group)
        transfers[_likeness(row)].append((row.group, float(row.transfer)))
    others_take = {likeness: _usual(times) for likeness, times in transfers.items()}
    of_group = {one.found.key: one for one in streams}
    found: dict[str, tuple[float, SlowLink]] = {}
    for row in rows:
        if row.relative is None or row.calls < _LEAST_CALLS:
            continue
        others = len(alike[_likeness(row)]) - 1
        # By its rate, and by the clock: the bytes of what is alike may differ by a factor of two.
        reached = max(row.relative, (others_take[_likeness(row)][row.group] or 0.0) / row.transfer)
        longer = row.transfer * (1 - reached)
        if reached >= (_SLOW if others > 1 else _SLOW_OF_TWO) or longer < _NOISE:
            continue
        cost = longer * row.calls
        if row.group in found and found[row.group][0] >= cost:
            continue
        one = of_group[row.group]
        usual = round(row.busbw_gb_per_s / row.relative, 3) if row.relative else 0.0
        nodes = _nodes(ranks, one) or ()
        places = f" on {', '.join(nodes[:4])}{' …' if len(nodes) > 4 else ''}" if nodes else ""
        found[row.group] = (
            cost,
            SlowLink(
                group=row.group,
                labels=tuple(labels[i] for i in one.found.ranks),
                nodes=nodes,
                kind=row.kind,
                bytes=row.bytes,
                busbw_gb_per_s=row.busbw_gb_per_s,
                usual_gb_per_s=usual,
                sentence=f"slow link: {one.where}{places} reaches {row.busbw_gb_per_s:.1f} GB/s (bus) in "
                f"{row.kind.value} of {size(row.bytes)}, {percent(row.relative)} of the {usual:.1f} GB/s of "
                f"{count(others, 'group')} like it",
            ),
        )
    return [link for _, link in sorted(found.values(), key=lambda item: -item[0])[:_MOST_LINKS]]
