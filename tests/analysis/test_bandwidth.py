"""Bandwidth of collectives, worked out by hand, and groups whose links are slow."""

from __future__ import annotations

import math

import pytest
from hand_made import group, rank, reduced, stream
from make_job import GpuJob
from planted import verdict

from sameshot.analysis import Summary
from sameshot.analysis.names import Collective
from sameshot.analysis.results import BandwidthRow
from sameshot.analysis.waiting.bandwidth import factor

CALLS = 8
ENDS = [10_000.0 + 10_000 * k + 37 * k * k for k in range(CALLS)]  # µs


def job(signature: str, durs: list[float], *, nodes: list[str] | None = None, size: int | None = None) -> Summary:
    """One group; `durs` per rank, µs."""
    key = "group 1 [all]"
    ranks = [
        rank(
            number,
            [stream(key, [signature] * CALLS, ENDS, [dur] * CALLS)],
            [group(key, size or len(durs))],
            node=nodes[number] if nodes else "n0",
        )
        for number, dur in enumerate(durs)
    ]
    return reduced(ranks)


def only(summary: Summary) -> BandwidthRow:
    (row,) = summary.bandwidth
    return row


@pytest.mark.parametrize(
    ("signature", "size", "algbw", "busbw"),
    [
        ("all_reduce 1000000 Float", 4_000_000, 100.0, 150.0),  # × 2·3/4
        ("all_gather 1000000 Float", 4_000_000, 100.0, 75.0),  # × 3/4
        ("reduce_scatter 2000000 Half", 4_000_000, 100.0, 75.0),
        ("all_to_all 500000 Long", 4_000_000, 100.0, 75.0),
    ],
)
def test_bandwidth_is_size_by_the_last_arrivers_duration_times_the_factor(
    signature: str, size: int, algbw: float, busbw: float
) -> None:
    """Four ranks; the last arriver's collectives last 40 µs, the others spin for up to 500 µs."""
    row = only(job(signature, [500.0, 40.0, 300.0, 200.0]))
    assert (row.bytes, row.ranks, row.calls, row.transfer) == (size, 4, CALLS, 40_000)
    assert (row.algbw_gb_per_s, row.busbw_gb_per_s) == (algbw, busbw)
    assert row.placement == "one node"
    assert row.relative is None, "there is nothing alike"


def test_factors_are_those_of_nccl_tests() -> None:
    eight = {kind: factor(kind, 8) for kind in Collective}
    assert eight[Collective.ALL_REDUCE] == pytest.approx(1.75)
    for kind in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_TO_ALL):
        assert eight[kind] == pytest.approx(0.875)
    for kind in (Collective.BROADCAST, Collective.REDUCE, Collective.SEND_RECV):
        assert eight[kind] == 1.0
    assert eight[Collective.BARRIER] is None
    assert factor(Collective.ALL_REDUCE, 2) == 1.0
    assert [factor(kind, 1) for kind in Collective] == [None] * len(Collective), "one rank moves nothing"


@pytest.mark.parametrize("signature", ["all_reduce", "all_reduce 1000", "all_reduce 1000 SomethingNew", "barrier"])
def test_without_a_size_there_is_no_bandwidth(signature: str) -> None:
    summary = job(signature, [500.0, 40.0, 300.0])
    assert summary.bandwidth == ()
    assert summary.waiting is not None, "the waits are known all the same"


def test_where_a_rank_of_the_group_is_missing_nobody_knows_the_transfer() -> None:
    assert job("all_reduce 1000000 Float", [500.0, 40.0, 300.0], size=4).bandwidth == ()


def test_placement_counts_nodes_and_is_unknown_without_them() -> None:
    assert only(job("all_reduce 9 Float", [50.0, 40.0, 30.0, 20.0], nodes=["a", "a", "b", "b"])).placement == "2 nodes"
    key = "group 1 [all]"
    ranks = [
        rank(r, [stream(key, ["all_reduce 9 Float"] * CALLS, ENDS, [30.0 + r] * CALLS)], [group(key, 2)], node=None)
        for r in range(2)
    ]
    assert only(reduced(ranks)).placement == "unknown"


def test_one_groups_slow_link_is_named_and_what_is_alike_is_not() -> None:
    """Four tensor parallel pairs, each inside a host; the third one's transfers take five times as long."""
    summary = verdict(GpuJob(hosts=4, gpus=2, tp=2, steps=12, slow_groups={("tp", 2): 5.0}, outliers=0.0))
    (link,) = summary.slow_links
    assert link.group == "group 3 [4, 5]"
    assert (link.labels, link.nodes) == (("rank 4", "rank 5"), ("node-2",))
    # 20 µs of each call are no transfer, 21 µs (five times that on the slow one) are, and ends differ by 5 to 30 µs.
    assert (20 + 21 + 5) / (20 + 105 + 30) < link.busbw_gb_per_s / link.usual_gb_per_s < (20 + 21 + 30) / (20 + 105 + 5)
    assert link.sentence.startswith("slow link: group 3 (tp) on node-2 reaches ")
    assert link.sentence in [finding.sentence for finding in summary.findings]
    relative = {row.group: row.relative for row in summary.bandwidth if "(tp)" in row.group or row.ranks == 2}
    assert len(relative) == 4
    assert all(0.8 < value < 1.3 for key, value in relative.items() if key != link.group and value is not None)
    assert summary.late.ranks == (), "a slow link makes no late rank"


def groups_of_two(cases: dict[str, tuple[int, float]]) -> Summary:
    """Pairs on one node each: name → (floats per all_reduce, transfer in µs)."""
    ranks = []
    for name, (floats, took) in cases.items():
        for member in range(2):
            key = f"group {name} [pair]"
            one = stream(key, [f"all_reduce {floats} Float"] * CALLS, ENDS, [took + member] * CALLS)
            ranks.append(rank(len(ranks), [one], [group(key, 2, name)], node=f"node-{name}"))
    return reduced(ranks)


def test_fewer_bytes_in_the_same_time_are_no_slow_link_but_latency() -> None:
    """100 µs whatever the size is; 2.3 and 3.8 MiB are alike, so the small one reaches 60 % of the rate."""
    summary = groups_of_two({"a": (600_000, 100.0), "b": (1_000_000, 100.0), "c": (1_000_000, 100.0)})
    assert [row.relative for row in summary.bandwidth if row.bytes == 2_400_000] == [0.6]
    assert summary.slow_links == ()


def test_fewer_bytes_in_a_longer_time_are_a_slow_link() -> None:
    summary = groups_of_two({"a": (600_000, 200.0), "b": (1_000_000, 100.0), "c": (1_000_000, 100.0)})
    assert [link.nodes for link in summary.slow_links] == [("node-a",)]


def test_equal_links_are_not_slow() -> None:
    summary = verdict(GpuJob(hosts=4, gpus=2, tp=2, steps=12))
    assert summary.slow_links == ()
    assert {row.placement for row in summary.bandwidth} == {"one node", "4 nodes"}
    expected = 4 * (1 << 20) / (20_000 + 4 * (1 << 20) / 200)  # GB/s: 20 µs and 200 GB/s inside a host
    inside = [row for row in summary.bandwidth if row.placement == "one node" and row.kind is Collective.ALL_REDUCE]
    assert all(math.isclose(row.algbw_gb_per_s, expected, rel_tol=0.35) for row in inside)
    assert inside
