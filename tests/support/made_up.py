"""Summaries with every measure filled in, of as many ranks as wanted: what the page has to cope with.

The numbers are made up and only plausible: what is tested with them is how they are shown.
"""

from __future__ import annotations

import random

import msgspec

from sameshot.analysis.names import Collective
from sameshot.analysis.results import (
    Alignment,
    BandwidthRow,
    CaptureInfo,
    Cause,
    Clocks,
    CollectiveRow,
    CommunicationRow,
    Confidence,
    CopyRow,
    DataWait,
    DeviceTimes,
    Finding,
    FindingKind,
    Group,
    HostBound,
    HostClock,
    IdleRow,
    Imbalance,
    KernelRow,
    Lateness,
    LateRank,
    Launches,
    Lost,
    MissingRank,
    Moment,
    NamedTime,
    PartTimes,
    Pause,
    QueueRow,
    RankRow,
    SlowLink,
    Spread,
    StepMethod,
    Straggler,
    Summary,
    Timeline,
    TraceFacts,
    Verdict,
)

MS = 1_000_000
WINDOW = 1000 * MS
LATE = 2

_KERNELS = (
    ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "communication"),
    ("ampere_sgemm_128x64_tn", "compute"),
    ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int, float*)", "compute"),
    ("void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, cutlass::bfloat16_t> >", "compute"),
    ("Memcpy HtoD (Pinned -> Device)", "memory"),
    ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_64x3_tn_align8>", "compute"),
)  # fmt: skip


def spread(median: int, count: int = 40) -> Spread:
    return Spread(count, median, median * 9 // 10, median * 12 // 10, median * 8 // 10, median * 15 // 10)


def full(ranks: int = 8, *, missing: int = 0, seed: int = 1, names: int = 20) -> Summary:
    """A GPU job of so many analysed ranks, 8 a node; rank 2 makes the others wait."""
    dice = random.Random(seed)
    rows = tuple(_rank(rank, dice, names) for rank in range(ranks))
    late = LateRank(
        label=f"rank {LATE}",
        rank=LATE,
        node="node-0",
        lateness_per_step=6 * MS,
        share_of_step=0.24,
        late_in_share=0.97,
        cause=Cause.DATA_WAIT,
        excess=PartTimes(operators=MS, communication=-6 * MS, data_wait=6 * MS, untraced=200_000),
        python="train.py(41): step",
        confidence=Confidence.HIGH,
        sentence=f"rank {LATE} (node-0) is late: the {ranks - 1} others wait 6 ms of every 25 ms step for it",
        lost=Lost(compute=200_000, host=300_000, data_wait=6 * MS, other_group=-500_000),
        victims=ranks - 1,
        waiting=700 * MS,
        collective="all_reduce, group dp",
        collectives=300,
    )
    whole = sum(row.waited or 0 for row in rows)
    caused = {row.label: whole // 100 // ranks for row in rows}
    caused[late.label] = whole - sum(caused.values()) + caused[late.label]
    return Summary(
        generator="sameshot 0.0",
        generated_at="2026-11-30T00:00:00Z",
        capture=CaptureInfo(
            capture_id="0193-abc",
            manifest="s3://traces/team/llm/0/0193-abc/manifest.json",
            manifest_sha256="5" * 64,
            provenance="captured",
            namespace="team",
            job="llm-7b",
            job_uid="u",
            attempt=1,
            series="llm",
            outcome="PARTIAL" if missing else "SUCCEEDED",
            world_size=ranks + missing,
            asked_window=WINDOW,
            frozen_at="2026-11-30T00:00:00.000000Z",
        ),
        expected_ranks=ranks + missing,
        analysed_ranks=ranks,
        missing=tuple(
            MissingRank(rank, f"pod-{rank}/main/0", f"pod-{rank} on node-{rank // 8}", "WORKER_EXITED", "it died")
            for rank in range(ranks, ranks + missing)
        ),
        warnings=("Events of unknown categories were counted but not interpreted: 'mystery' (3).",),
        findings=(
            Finding(FindingKind.LATE_RANK, f"{late.sentence} (confidence high)", late.label),
            Finding(FindingKind.STEP_TIME, f"a step takes 25 ms (median; 40 steps on {ranks} ranks)"),
            Finding(
                FindingKind.DATA_WAIT,
                f"waiting for data takes 6 ms of each 25 ms step (rank 2; 1 of {ranks} ranks is data-bound)",
                "rank 2",
            ),
            Finding(
                FindingKind.HOST_BOUND,
                "host-bound: GPUs wait 9 % of the time for the thread that launches, mostly in aten::item "
                f"({ranks} ranks)",
            ),
            Finding(
                FindingKind.COMMUNICATION, f"exposed communication: 20 % of GPU time, 1.6 GPU-s on {ranks} ranks"
            ),
            Finding(
                FindingKind.SLOW_LINK,
                "the ranks of node-1 reach 20 GB/s in all_reduce of 25 MiB, others 45.9 GB/s",
                "g1",
            ),
            Finding(FindingKind.GPUS, "GPUs: 61 % computing, 21 % only communicating, 15 % idle"),
        ),
        common_window=980 * MS,
        cross_rank=True,
        late=Lateness(
            verdict=Verdict.LATE,
            reason="Steady over 40 matched steps; a rank must be later than 5 ms to be named.",
            ranks=(late,),
            rests_on_ranks=ranks,
            rests_on_steps=40,
            rests_on_collectives=320,
            step_time=25 * MS,
            threshold=5 * MS,
            method="Late = its collectives are steadily shorter than the typical rank's.",
        ),
        step_time=spread(25 * MS, 40 * ranks),
        step_ranks=ranks,
        parts=_sum(PartTimes, [row.parts for row in rows]),
        device=_sum(DeviceTimes, [row.device for row in rows if row.device]),
        device_ranks=ranks,
        ranks=rows,
        operators=tuple(
            NamedTime(f"aten::operator_{i}", 400, 90 * MS // (i + 1), 60 * MS // (i + 1)) for i in range(names)
        ),
        kernels=tuple(NamedTime(name, 40, 9 * MS, 9 * MS) for name, _ in _KERNELS),
        collectives=tuple(
            CollectiveRow(
                stream=f"dp-{i}",
                kind=kind.value,
                signature=f"{kind.value} {1 << (20 + i)} float",
                ranks=ranks,
                matched=40,
                unmatched=i,
                wait=None if kind is Collective.BROADCAST else 40 * MS,
                transfer=None if kind is Collective.BROADCAST else 9 * MS,
                mean_wait=None if kind is Collective.BROADCAST else MS,
                mean_transfer=None if kind is Collective.BROADCAST else 225_000,
                longest_wait=None if kind is Collective.BROADCAST else 8 * MS,
                last_arriver=None if kind is Collective.BROADCAST else f"rank {LATE}",
                last_arriver_share=None if kind is Collective.BROADCAST else 0.9,
            )
            for i, kind in enumerate((Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.BROADCAST))
        ),
        alignments=tuple(
            Alignment("dp", f"rank {rank}", "rank 0", "sequence", 0, 21_000, -3_000_000, 320, "")
            for rank in range(1, min(ranks, 1000))
        ),
        notes=("No trace was harmed.",),
        clocks=Clocks(
            reference="node-0",
            hosts=tuple(
                HostClock(
                    f"node-{host}", 0, None if host == 3 else host * 1_234_567, None, 11_000, 30_000, 900,
                    "no path to the reference" if host == 3 else "",
                )
                for host in range((ranks + 7) // 8)
            ),
            note="Offsets from the ends of symmetric collectives.",
        ),
        stragglers=tuple(
            Straggler(row.label, row.node, row.last_arrivals or 0, 320, caused[row.label],
                      caused[row.label] / whole, "data_wait" if row.rank == LATE else "host",
                      {"data_wait" if row.rank == LATE else "host": caused[row.label] * 3 // 4,
                       "unknown": caused[row.label] // 4}, MS if row.rank == 1 else 0)
            for row in rows
        ),
        waiting=whole,
        bandwidth=tuple(
            BandwidthRow(f"g{i}", Collective.ALL_REDUCE, 25 << 20, 8, "one node", 40, MS, 26.2, 45.9, 1 - i / 2 % 1)
            for i in range(max(ranks // 8, 2))
        ),
        slow_links=(
            SlowLink("g1", ("rank 8", "rank 9"), ("node-1",), Collective.ALL_REDUCE, 25 << 20, 20.0, 45.9,
                     "the ranks of node-1 reach 20 GB/s in all_reduce of 25 MiB, others 45.9 GB/s"),
        ),
        imbalance=(Imbalance("compute", ranks, 600 * MS, 780 * MS, 0.3, f"rank {LATE}"),),
        moments=tuple(
            Moment("dp", "all_reduce", ranks, f"rank {LATE}", "data_wait", 20 * MS * i, 1000 + i, MS, 70 * MS - i,
                   "rank 1", 19 * MS * i, 7000 + i, 9 * MS)
            for i in range(24)
        ),
        groups=tuple(Group(f"g{i}", f"dp-{i}", "[0, 1, 2, …", "data parallel", 8) for i in range(max(ranks // 8, 2))),
    )  # fmt: skip


def _sum(kind: type, values: list) -> object:
    return kind(**{name: sum(getattr(value, name) for value in values) for name in kind.__struct_fields__})


def _rank(rank: int, dice: random.Random, names: int) -> RankRow:
    late = rank == LATE
    data = (240 if late else 20) * MS + dice.randrange(MS)
    parts = PartTimes(500 * MS, 120 * MS, data, 30 * MS, 90 * MS, WINDOW - 740 * MS - data)
    idle = (330 if late else 150) * MS + dice.randrange(MS)
    device = DeviceTimes(600 * MS, WINDOW - 640 * MS - idle, 40 * MS, idle, 5000, 130 * MS, 10 * MS)
    words = ("operators", "communication", "data_wait", "untraced", "backward_thread", "runtime")
    return RankRow(
        label=f"rank {rank}",
        rank=rank,
        target_id=f"pod-{rank // 8}/main/{rank % 8}",
        node=f"node-{rank // 8}",
        pod=f"pod-{rank // 8}",
        window=WINDOW,
        window_start_at="2026-11-30T00:00:01Z",
        starts_after=dice.randrange(10 * MS) if rank else 0,
        late_start=rank == 5,
        main_thread="4711 / 4711",
        parts=parts,
        device=device,
        step_count=40,
        step_method=StepMethod.OPTIMIZER,
        step_confidence=Confidence.HIGH,
        step_note="from the ends of Optimizer.step",
        step_time=spread(25 * MS),
        step_parts=parts,
        collectives=320,
        waited=dice.randrange(90 * MS, 130 * MS) if not late else 1000,
        last_arrivals=300 if late else 2,
        lateness_per_step=6 * MS if late else dice.randrange(-100_000, 100_000),
        operators=tuple(NamedTime(f"aten::operator_{i}", 40, 9 * MS, 6 * MS) for i in range(names)),
        kernels=(),
        untraced_python=(NamedTime("train.py(41): step", 40, 90 * MS, 60 * MS),),
        timeline=_timeline(dice, words, late),
        trace=TraceFacts(
            events=dice.randrange(300_000, 330_000),
            by_category={"cpu_op": 200_000, "kernel": 5000, "cuda_runtime": 90_000, "mystery": 3},
            unknown_categories={"mystery": 3} if rank % 4 == 0 else {},
            oddities={"duration is negative": 2} if rank == 1 else {},
            raw_size=96 << 20,
            raw_sha256="a" * 64,
        ),
        idle=tuple(IdleRow(f"0:{7 + i}", 60 * MS, 50 * MS, 11 * MS) for i in range(2)),
        kernel_rows=tuple(
            KernelRow(name if i < len(_KERNELS) else f"{name}_{i}", kind, 40, 900 * MS // (i + 1), 0.2 / (i + 1), MS,
                      90_000, MS // 2, MS, 2 * MS, 4 * MS, dice.randrange(5 * MS, 9 * MS))
            for i, (name, kind) in enumerate((_KERNELS * names)[:names])
        ),
        copies=(CopyRow("HtoD pinned", 40, 12 * MS, 300 << 20, 24.8), CopyRow("memset", 400, MS, None, None)),
        launches=Launches(5000, spread(6000), spread(90_000), spread(120_000), 31, 2, 4, 200),
        queues=(QueueRow("0:7", 11.25, 400, 0.05), QueueRow("0:20", 0.3, 4, 0.81)),
        host_bound=HostBound(90 * MS, 0.09, 77, (NamedTime("aten::item", 40, 70 * MS, 70 * MS),), ()),
        data_wait=DataWait("dataloader", 40, data, data - 9 * MS, 9 * MS, 3, data / WINDOW, spread(6 * MS),
                           spread(7 * MS), late, "waiting for data takes 6 ms of each 25 ms step" if late else ""),
        pauses=(Pause("gc", 2, 71 * MS, 60 * MS, 123_456),) if late else (),
        communication=tuple(
            CommunicationRow("nccl", f"g{rank // 8}", kind, 25 << 20, "Float", 40, 90 * MS, 60 * MS, spread(2 * MS))
            for kind in (Collective.ALL_REDUCE, Collective.ALL_GATHER)
        ),
        device_timeline=_timeline(dice, ("compute", "communication", "idle", "memory"), late),
        step_edges=tuple(range(5 * MS, WINDOW, 25 * MS)),
    )  # fmt: skip


def _timeline(dice: random.Random, words: tuple[str, ...], late: bool) -> Timeline:
    """A repeating step of many short runs, a little different on each rank: hard to compress."""
    runs, left = [], 480
    while left:
        for word in words:
            length = min(left, dice.randrange(1, 5) + (2 if late and word == "data_wait" else 0))
            left -= length
            if length:
                runs.append((word, length))
    return Timeline(480, tuple(runs))


def hostile(summary: Summary, text: str) -> Summary:
    """The same with this text wherever a trace, a manifest or a node can put one."""
    row = summary.ranks[0]
    evil = msgspec.structs.replace(
        row,
        target_id=text,
        node=text,
        step_note=text,
        main_thread=text,
        trace=msgspec.structs.replace(
            row.trace, by_category={text: 1}, unknown_categories={text: 1}, oddities={text: 1}
        ),
        kernel_rows=tuple(msgspec.structs.replace(kernel, name=text) for kernel in row.kernel_rows[:1]),
        untraced_python=(NamedTime(text, 1, 1, 1),),
        idle=(IdleRow(text, 1, 1, 1),),
        queues=(QueueRow(text, 1.0, 1, 0.5),),
        copies=(CopyRow(text, 1, 1, 1, 1.0),),
        pauses=(Pause(text, 1, 1, 1, 1),),
        host_bound=HostBound(1, 0.5, 1, (NamedTime(text, 1, 1, 1),), (NamedTime(text, 1, 1, 1),)),
        timeline=Timeline(1, ((text, 1),)),
    )
    late = msgspec.structs.replace(summary.late.ranks[0], label=text, node=text, python=text, sentence=text)
    return msgspec.structs.replace(
        summary,
        capture=msgspec.structs.replace(
            summary.capture, job=text, namespace=text, capture_id=text, manifest=text, frozen_at=text
        ),
        warnings=(text,),
        findings=tuple(Finding(kind, text, text) for kind in FindingKind),
        notes=(text,),
        late=msgspec.structs.replace(summary.late, ranks=(late,), reason=text, method=text),
        missing=(MissingRank(None, text, text, text, text),),
        ranks=(evil, *summary.ranks[1:]),
        operators=(NamedTime(text, 1, 1, 1),),
        collectives=(msgspec.structs.replace(summary.collectives[0], stream=text, signature=text, last_arriver=text),),
        alignments=(Alignment(text, text, text, text, 0, 0, 0, 0, text),),
        clocks=Clocks(text, (HostClock(text, 0, 0, None, 0, 0, 0, text),), text),
        groups=(Group(text, text, text, text, 1),),
        slow_links=(msgspec.structs.replace(summary.slow_links[0], sentence=text, group=text),),
        imbalance=(msgspec.structs.replace(summary.imbalance[0], measure=text, label=text),),
        stragglers=(Straggler(text, text, 1, 1, 1, 0.5, text, {text: 1}),),
        moments=(Moment(text, text, 2, text, text, 1, 1, 1, 1, text, 1, 1, 1),),
    )
