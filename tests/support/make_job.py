"""A synthetic GPU (or gloo) training job on several hosts, simulated, with known truth.

    job = GpuJob(hosts=4, gpus=2, tp=2, clock_s=3.0, slow=(Slow(rank=5, cause="data", ms=8),))
    run = job.run()
    run.summaries()         one RankSummary per rank, made directly: fast enough for thousands of ranks
    run.trace(3)            the same rank as a Kineto-shaped document
    run.truth               what was planted

Ranks are laid out as Megatron does, tensor parallel innermost: rank = (dp · pp + pipeline stage) · tp + tp index. Every
step fetches a batch, computes `layers` forward layers (each ends in a collective of the tensor-parallel group), hands
over to the pipeline group, computes `buckets` backward pieces (each starts an all_reduce of the data-parallel group
beside compute), runs the optimizer and synchronises with the device. A collective ends everywhere at (the last arrival
+ its transfer + end skew), so a late rank makes its peers wait as in reality, and through them other groups.

Everything is deterministic by `seed`. All simulated times are true time in integer ns; only what is recorded passes
through the host's clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from sameshot.analysis.results import (
    Confidence,
    DeviceTimes,
    Group,
    PartTimes,
    RankSummary,
    StepMethod,
    Steps,
    Stream,
    TraceFacts,
)
from sameshot.model import Identity

Ints = npt.NDArray[np.int64]

BASE_NS = 1_790_000_000_000_000_000
"""baseTimeNanoseconds of every trace."""

START_NS = 4_000_000_000
"""True time after BASE_NS at which the simulation begins, so that a clock 3 s behind stays positive."""

US, MS = 1_000, 1_000_000
FETCH = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
OPTIMIZER = "Optimizer.step#AdamW.step"
GEMM = "ampere_sgemm_128x64_tn"

_NCCL = {
    "all_reduce": ("allreduce", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"),
    "all_gather": ("_allgather_base", "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"),
    "reduce_scatter": (
        "_reduce_scatter_base",
        "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    ),
    "send_recv": ("send", "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"),
}
_BYTES_PER_NS = {True: 200.0, False: 25.0}  # inside one host, between hosts


@dataclass(frozen=True)
class Slow:
    """A rank that is late by `ms` in every step from `first` on (inclusive) to `last` (exclusive)."""

    rank: int
    cause: str  # "compute", "host" (untraced Python), "data", or "inherited": once, before the window of `from_step`
    ms: float
    first: int = 0
    last: int = 1 << 30


@dataclass(frozen=True)
class GpuJob:
    """Times are ms unless they say otherwise."""

    hosts: int = 2
    gpus: int = 4
    tp: int = 1
    pp: int = 1
    islands: int = 1  # groups never cross the border of an island of hosts
    steps: int = 30
    layers: int = 4
    buckets: int = 4
    compute: float = 20.0
    data: float = 1.0
    python: float = 0.5
    jitter: float = 1.0  # mean of an exponential delay per rank and step, in compute
    wobble: float = 0.02  # relative spread of each kernel's duration
    common_jitter: float = 1.0  # mean of an exponential that all ranks share (batches differ)
    periodic: bool = False  # no jitter of any kind: only the ends' skew is left
    skew_us: tuple[float, float] = (5.0, 30.0)
    outliers: float = 0.05  # share of ends that come `outlier_ms` late
    outlier_ms: tuple[float, float] = (0.1, 1.0)
    clock_s: float = 0.0  # hosts' clocks are off by up to this, either way
    drift_ppm: float = 0.0  # and drift by up to this, either way
    lag: float = 0.0  # windows begin and end up to this much apart
    missing: float = 0.0  # share of communication events that are not recorded
    grad_norm: bool = False  # one tiny all_reduce of the whole island before the optimizer: it connects all hosts
    group_args: bool = True
    seq: bool = False
    truncate: int = 30  # ranks that a recorded list holds, as in torch (ParamCommsUtils, kTruncatLength)
    graphs: bool = False  # CUDA graphs: device work without a launch on the CPU
    marks: str = "profiler"  # or "optimizer", or "none"
    slow: tuple[Slow, ...] = ()
    slow_groups: dict[tuple[str, int], float] = field(default_factory=dict)  # (family, number) → transfer times this
    from_step: int | None = (
        None  # each rank's window begins with this step of its own (as with torch.profiler's schedule)
    )
    backend: str = "nccl"  # or "gloo": CPU only, one group
    named_hosts: bool = True
    seed: int = 0

    @property
    def world(self) -> int:
        return self.hosts * self.gpus

    def host_of(self, rank: int) -> int:
        return rank // self.gpus

    def run(self) -> Run:
        return _Simulation(self).run()


@dataclass(frozen=True)
class Family:
    """The process groups of one kind. `group[r]` is the number of rank r's group, `members[g]` its ranks."""

    name: str  # tp, pp, dp or world: the recorded description
    first: int  # number of the first group's recorded name
    group: Ints
    members: tuple[tuple[int, ...], ...]

    def recorded(self, number: int, truncate: int) -> tuple[str, str]:
        """Name and list of ranks as Kineto writes them."""
        ranks = self.members[number]
        text = [str(rank) for rank in ranks]
        if len(ranks) > truncate:
            text = [*text[: truncate - 1], "...", text[-1]]
        return str(self.first + number), f"[{', '.join(text)}]"


@dataclass(frozen=True)
class Truth:
    """What was planted and what followed. Ranks × collectives, in true time."""

    clock_ns: Ints  # per host: how far its clock is ahead of true time in the middle of the run
    drift_ppm: npt.NDArray[np.float64]  # per host
    middle_ns: int  # true time (after BASE_NS) at which clock_ns holds exactly
    families: dict[str, Family]
    slow: tuple[Slow, ...]
    edges: Ints  # rank × (steps + 1): borders of its steps, true time after BASE_NS
    arrival: dict[str, Ints]  # family → collective × rank: when it came
    end: dict[str, Ints]  # family → collective × rank
    kept: dict[str, npt.NDArray[np.bool_]]  # family → collective × rank: is it in that rank's trace?

    def local(self, host: int, at: Ints | int) -> Ints:
        """True time (after BASE_NS) → that host's clock (after BASE_NS)."""
        moments = np.asarray(at, dtype=np.int64)
        drifted = np.rint((moments - self.middle_ns) * (self.drift_ppm[host] * 1e-6)).astype(np.int64)
        return np.asarray(moments + self.clock_ns[host] + drifted, dtype=np.int64)

    def offset_to(self, reference: int, host: int, at: int) -> int:
        """What must be added to `host`'s clock to get `reference`'s, at this true time."""
        return int(self.local(reference, at) - self.local(host, at))


@dataclass(frozen=True)
class _Record:
    """One thing that every rank did (or those with `who`)."""

    what: str  # annotation, op, runtime, kernel, copy, nccl, gloo
    name: str
    start: Ints
    end: Ints
    launch: int | None = None  # index of the record that launched it
    family: str | None = None
    kind: str | None = None
    nelems: int | None = None
    number: int = 0  # the how-manieth collective of its family
    on_host: bool = True


class _Simulation:
    def __init__(self, job: GpuJob) -> None:
        self.job = job
        self.dice = np.random.default_rng(job.seed)
        self.ranks = np.arange(job.world)
        self.records: list[_Record] = []
        self.h = np.full(job.world, START_NS, dtype=np.int64) + self._uniform(0, 0.3)
        self.c = self.h.copy()
        self.families = _families(job)
        self.m = {name: self.h.copy() for name in self.families}
        self.count = dict.fromkeys(self.families, 0)
        self.arrivals: dict[str, list[Ints]] = {name: [] for name in self.families}
        self.ends: dict[str, list[Ints]] = {name: [] for name in self.families}

    def run(self) -> Run:
        job = self.job
        edges = [self.h.copy()]
        for step in range(job.steps):
            self.h = self.h + self._extra("inherited", step)
            begin = self.h.copy()
            if step == job.from_step:
                edges[-1] = begin
            (self._gloo_step if job.backend == "gloo" else self._gpu_step)(step)
            if job.marks == "profiler":
                self._add("annotation", f"ProfilerStep#{step}", begin, self.h)
            edges.append(self.h.copy())
        return self._recorded(np.stack(edges, axis=1))

    # -- one step

    def _gpu_step(self, step: int) -> None:
        job = self.job
        self._fetch(step)
        self._op("aten::copy_", "copy", "Memcpy HtoD (Pinned -> Device)", self._ms(0.2))
        shared = self._exponential(job.common_jitter, 1)
        slower = (self._exponential(job.jitter) + shared + self._extra("compute", step)) // job.layers
        forward = self._ms(job.compute / 3 / job.layers)
        for layer in range(job.layers):
            self._op("aten::mm", "kernel", GEMM, self._wobbled(forward) + slower)
            if "tp" in self.families:
                self._collective("tp", "reduce_scatter" if layer % 2 else "all_reduce", 1 << 20, waits=True)
        if "pp" in self.families:
            self._collective("pp", "send_recv", 1 << 19, waits=True)
        backward = self._ms(job.compute * 2 / 3 / job.buckets)
        for bucket in range(job.buckets):
            self._op(
                "autograd::engine::evaluate_function: MmBackward0", "kernel", GEMM + "_bw", self._wobbled(backward)
            )
            if "dp" in self.families:
                self._collective("dp", "all_reduce", (4 << 20) if bucket else (3 << 20), waits=False)
        for done in self.m.values():
            self.c = np.maximum(self.c, done)
        if "world" in self.families:
            self._collective("world", "all_reduce", 1, waits=True)
        begin = self.h.copy()
        self._op("aten::_foreach_addcdiv_", "kernel", "multi_tensor_apply_kernel", self._wobbled(self._ms(0.4)))
        self._add("annotation", OPTIMIZER, begin, self.h) if job.marks != "none" else None
        end = np.maximum(self.h + 5 * US, self.c + 4 * US)
        self._add("runtime", "cudaDeviceSynchronize", self.h, end)
        self.h = end + 10 * US

    def _gloo_step(self, step: int) -> None:
        job = self.job
        self._fetch(step)
        slower = self._exponential(job.jitter) + self._extra("compute", step)
        work = self._wobbled(self._ms(job.compute)) + slower
        for name, share in (("aten::linear", 0.4), ("autograd::engine::evaluate_function: AddmmBackward0", 0.6)):
            length = (work * share).astype(np.int64)
            self._add("op", name, self.h, self.h + length)
            self.h = self.h + length
        self._add("op", "c10d::allreduce_", self.h, self.h + 100 * US)
        arrival = self.h + 120 * US
        end = self._join("dp", arrival, 1 << 20)
        self._add("gloo", "gloo:all_reduce", arrival, end, family="dp", kind="all_reduce", number=self.count["dp"] - 1)
        self.h = end + 20 * US
        if job.marks != "none":
            self._add("annotation", OPTIMIZER, self.h, self.h + 800 * US)
        self._add("op", "aten::addcdiv_", self.h + 100 * US, self.h + 600 * US)
        self.h = self.h + 900 * US

    def _fetch(self, step: int) -> None:
        job = self.job
        length = self._wobbled(self._ms(job.data)) + self._extra("data", step)
        self._add("annotation", FETCH, self.h, self.h + length)
        self.h = self.h + length + self._ms(job.python) + self._extra("host", step)

    # -- what a rank does

    def _op(self, op: str, what: str, kernel: str, length: Ints | int) -> None:
        self._add("op", op, self.h, self.h + 14 * US)
        call = "cudaMemcpyAsync" if what == "copy" else "cudaLaunchKernel"
        self._add("runtime", call, self.h + 4 * US, self.h + 10 * US)
        launch = len(self.records) - 1
        start = np.maximum(self.h + 12 * US, self.c)
        self.c = start + length
        self._add(what, kernel, start, self.c, launch=launch, on_host=False)
        self.h = self.h + 16 * US

    def _collective(self, family: str, kind: str, nelems: int, *, waits: bool) -> None:
        self._add("op", f"c10d::{_NCCL[kind][0]}_", self.h, self.h + 40 * US)
        self._add("runtime", "cudaLaunchKernelExC", self.h + 20 * US, self.h + 30 * US)
        launch = len(self.records) - 1
        arrival = np.maximum.reduce([self.h + 33 * US, self.c, self.m[family]])
        end = self._join(family, arrival, 4 * nelems)
        self.m[family] = end
        if waits:
            self.c = end
        self.h = self.h + 45 * US
        self._add(
            "nccl",
            _NCCL[kind][1],
            arrival,
            end,
            launch=launch,
            family=family,
            kind=kind,
            nelems=nelems,
            number=self.count[family] - 1,
            on_host=False,
        )

    def _join(self, family: str, arrival: Ints, size: int) -> Ints:
        """The ends of a collective that begins when the last member arrives."""
        job, found = self.job, self.families[family]
        last = np.full(len(found.members), 0, dtype=np.int64)
        np.maximum.at(last, found.group, arrival)
        transfer = np.empty(len(found.members), dtype=np.int64)
        for number, members in enumerate(found.members):
            inside = members[0] // job.gpus == members[-1] // job.gpus
            factor = 2 * (len(members) - 1) / len(members) * job.slow_groups.get((family, number), 1.0)
            transfer[number] = 20 * US + size * factor / _BYTES_PER_NS[inside]
        skew = self.dice.uniform(*job.skew_us, job.world) * US
        late = self.dice.random(job.world) < job.outliers
        skew[late] += self.dice.uniform(*job.outlier_ms, int(late.sum())) * MS
        end = np.asarray((last + transfer)[found.group] + skew.astype(np.int64), dtype=np.int64)
        self.count[family] += 1
        self.arrivals[family].append(arrival)
        self.ends[family].append(end)
        return end

    def _add(self, what: str, name: str, start: Ints, end: Ints, **more: Any) -> None:
        self.records.append(_Record(what, name, start.copy(), end.copy(), **more))

    # -- times

    def _ms(self, ms: float) -> int:
        return round(ms * MS)

    def _uniform(self, low: float, high: float) -> Ints:
        return (self.dice.uniform(low, high, self.job.world) * MS).astype(np.int64)

    def _exponential(self, mean: float, size: int | None = None) -> Ints:
        if self.job.periodic or not mean:
            return np.zeros(size or self.job.world, dtype=np.int64)
        return (self.dice.exponential(mean, size or self.job.world) * MS).astype(np.int64)

    def _wobbled(self, length: int) -> Ints:
        if self.job.periodic:
            return np.full(self.job.world, length, dtype=np.int64)
        return (length * self.dice.normal(1.0, self.job.wobble, self.job.world).clip(0.5, 2)).astype(np.int64)

    def _extra(self, cause: str, step: int) -> Ints:
        extra = np.zeros(self.job.world, dtype=np.int64)
        for slow in self.job.slow:
            once = cause != "inherited" or step == max(slow.first, self.job.from_step or 0)
            if slow.cause == cause and once and slow.first <= step < slow.last:
                extra[slow.rank] += self._ms(slow.ms)
        return extra

    # -- what is recorded of it

    def _recorded(self, edges: Ints) -> Run:
        job, dice = self.job, self.dice
        if job.from_step is not None:
            begin = edges[:, job.from_step].copy()
        else:
            begin = edges[:, 0].min() + (dice.uniform(0, job.lag, job.world) * MS).astype(np.int64)
        end = edges[:, -1].max() - (dice.uniform(0, job.lag, job.world) * MS).astype(np.int64)
        middle = int(edges.mean())
        clock = (dice.uniform(-job.clock_s, job.clock_s, job.hosts) * 1e9).astype(np.int64)
        drift = dice.uniform(-job.drift_ppm, job.drift_ppm, job.hosts)
        arrival = {name: np.stack(each) for name, each in self.arrivals.items() if each}
        ends = {name: np.stack(each) for name, each in self.ends.items() if each}
        kept = {
            name: (arrival[name] >= begin) & (ends[name] <= end) & (dice.random(arrival[name].shape) >= job.missing)
            for name in arrival
        }
        truth = Truth(clock, drift, middle, self.families, job.slow, edges, arrival, ends, kept)
        return Run(job, truth, self.records, begin, end)


def _families(job: GpuJob) -> dict[str, Family]:
    """Tensor, pipeline and data parallel groups inside each island; a kind whose groups have one member is left out."""
    if job.backend == "gloo":
        everybody = tuple(range(job.world))
        return {"dp": Family("dp", 0, np.zeros(job.world, dtype=np.int64), (everybody,))}
    island = job.world // job.islands
    dp = island // (job.tp * job.pp)
    assert dp * job.tp * job.pp * job.islands == job.world, "the layout does not fill the world"
    ranks = np.arange(job.world).reshape(job.islands, dp, job.pp, job.tp)
    found, first = {}, 1
    for name, axis in (("tp", 3), ("pp", 2), ("dp", 1)):
        members = np.moveaxis(ranks, axis, -1).reshape(-1, ranks.shape[axis])
        if members.shape[1] > 1:
            group = np.empty(job.world, dtype=np.int64)
            group[members] = np.arange(len(members))[:, None]
            found[name] = Family(name, first, group, tuple(tuple(row) for row in members.tolist()))
            first += len(members)
    if job.grad_norm:
        islands = ranks.reshape(job.islands, -1)
        group = np.repeat(np.arange(job.islands), islands.shape[1])
        found["world"] = Family("world", first, group, tuple(tuple(row) for row in islands.tolist()))
    return found


@dataclass(frozen=True)
class Run:
    """A finished run: traces, summaries and truth."""

    job: GpuJob
    truth: Truth
    records: list[_Record]
    begin: Ints  # per rank, true time: what starts earlier is not in its trace
    end: Ints

    def identity(self, rank: int) -> Identity:
        host = self.job.host_of(rank)
        named = f"host-{host}" if self.job.named_hosts else None
        return Identity(
            rank=rank,
            local_rank=rank % self.job.gpus,
            pod=f"pod-{host}",
            node=f"node-{host}" if named else None,
            container="main",
            host=named,
            pid=1000 + rank,
        )

    def target_id(self, rank: int) -> str:
        return f"node-{self.job.host_of(rank)}/main/{rank % self.job.gpus}"

    # -- summaries, made directly

    def summaries(self) -> list[RankSummary]:
        first, last = self._windows()
        collectives = {
            name: [record for record in self.records if record.family == name] for name in self.truth.arrival
        }
        sums = {what: self._sum(what) for what in ("fetch", "op", "kernel", "copy", "nccl", "gloo", "runtime")}
        found = []
        for rank in range(self.job.world):
            streams, groups = self._streams(rank, int(first[rank]), collectives)
            window = int(last[rank] - first[rank])
            parts = {
                "data_wait": int(sums["fetch"][rank]),
                "operators": int(sums["op"][rank]),
                "runtime": int(sums["runtime"][rank]),
                "communication": int(sums["gloo"][rank]),
            }
            parts["untraced"] = window - sum(parts.values())
            found.append(
                RankSummary(
                    target_id=self.target_id(rank),
                    identity=self.identity(rank),
                    window_start_ns=BASE_NS + int(first[rank]),
                    window_end_ns=BASE_NS + int(last[rank]),
                    trace=TraceFacts(len(self.records), {}, {}, {}, 0, "0" * 64),
                    main_thread=f"{1000 + rank}/{1000 + rank}",
                    parts=PartTimes(**parts),
                    device=self._device(rank, window, sums) if self.job.backend == "nccl" else None,
                    operators=(),
                    kernels=(),
                    untraced_python=(),
                    steps=self._steps(rank, int(first[rank])),
                    streams=streams,
                    timeline=None,
                    groups=groups,
                )
            )
        return found

    def _windows(self) -> tuple[Ints, Ints]:
        """First and last recorded moment of each rank by its host's clock."""
        far = 1 << 62
        first, last = np.full(self.job.world, far), np.full(self.job.world, -far)
        for record in self.records:
            kept = self._kept(record)
            first = np.minimum(first, np.where(kept, record.start, far))
            last = np.maximum(last, np.where(kept, record.end, -far))
        hosts = np.arange(self.job.world) // self.job.gpus
        return self._local(hosts, first), self._local(hosts, last)

    def _local(self, hosts: Ints, at: Ints) -> Ints:
        truth = self.truth
        drifted = np.rint((at - truth.middle_ns) * (truth.drift_ppm[hosts] * 1e-6)).astype(np.int64)
        return np.asarray(at + truth.clock_ns[hosts] + drifted, dtype=np.int64)

    def _kept(self, record: _Record) -> npt.NDArray[np.bool_]:
        if record.family is not None:
            return self.truth.kept[record.family][record.number]
        if self.job.graphs and record.what in ("op", "runtime") and not record.name.startswith("cudaDevice"):
            return np.zeros(self.job.world, dtype=np.bool_)
        return np.asarray((record.start >= self.begin) & (record.end <= self.end), dtype=np.bool_)

    def _sum(self, what: str) -> Ints:
        total = np.zeros(self.job.world, dtype=np.int64)
        for record in self.records:
            if (record.what == what and what != "annotation") or (what == "fetch" and record.name == FETCH):
                if what == "runtime" and record.name != "cudaDeviceSynchronize":
                    continue
                total += np.where(self._kept(record), record.end - record.start, 0)
        return total

    def _device(self, rank: int, window: int, sums: dict[str, Ints]) -> DeviceTimes:
        """Rough: communication counts as exposed as far as there is room for it."""
        compute, nccl, memory = (int(sums[what][rank]) for what in ("kernel", "nccl", "copy"))
        exposed = min(nccl, window - compute - memory)
        return DeviceTimes(
            compute=compute,
            communication=exposed,
            memory=memory,
            idle=window - compute - memory - exposed,
            kernels=sum(record.what in ("kernel", "nccl") for record in self.records),
            overlapped=nccl - exposed,
        )

    def _steps(self, rank: int, first: int) -> Steps:
        if self.job.marks == "none":
            return Steps(StepMethod.UNKNOWN, Confidence.NONE, "No marks.")
        edges = self.truth.edges[rank]
        inside = edges[(edges >= self.begin[rank]) & (edges <= self.end[rank])]
        local = self.truth.local(self.job.host_of(rank), inside) - first
        method = StepMethod.PROFILER_STEP if self.job.marks == "profiler" else StepMethod.OPTIMIZER
        parts = tuple(PartTimes(untraced=int(length)) for length in np.diff(local))
        return Steps(method, Confidence.HIGH, "planted", tuple(local.tolist()), parts)

    def _streams(
        self, rank: int, first: int, collectives: dict[str, list[_Record]]
    ) -> tuple[tuple[Stream, ...], tuple[Group, ...]]:
        job, host = self.job, self.job.host_of(rank)
        streams, groups = [], []
        for order, (name, records) in enumerate(collectives.items()):
            kept = np.flatnonzero(self.truth.kept[name][:, rank])
            start = self.truth.local(host, self.truth.arrival[name][kept, rank])
            end = self.truth.local(host, self.truth.end[name][kept, rank])
            texts = [self._signature(record) for record in records]
            signatures = tuple(dict.fromkeys(texts[k] for k in kept.tolist()))
            codes = {text: code for code, text in enumerate(signatures)}
            family = self.truth.families[name]
            number = int(family.group[rank])
            label, members = family.recorded(number, job.truncate)
            key = f"communication stream {order}"
            if job.backend == "gloo":
                key = "gloo"
            elif self.has_args:
                key = f"group {label} {members}"
                groups.append(Group(key, label, members, name, len(family.members[number])))
            streams.append(
                Stream(
                    key=key,
                    source=job.backend,
                    signatures=signatures,
                    signature=tuple(codes[texts[k]] for k in kept.tolist()),
                    start=tuple((start - first).tolist()),
                    dur=tuple((end - start).tolist()),
                    seq=tuple((kept + 1).tolist()) if job.seq and job.backend == "nccl" else None,
                )
            )
        return tuple(sorted(streams, key=lambda stream: stream.key)), tuple(groups)

    @property
    def has_args(self) -> bool:
        return self.job.group_args and not self.job.graphs

    def _signature(self, record: _Record) -> str:
        if self.job.backend == "gloo" or not self.has_args:
            return str(record.kind)
        return f"{record.kind} {record.nelems} Float"

    # -- traces as Kineto writes them

    def traces(self) -> dict[int, dict[str, Any]]:
        return {rank: self.trace(rank) for rank in range(self.job.world)}

    def trace(self, rank: int) -> dict[str, Any]:
        """One rank's document; `json.dumps(…)` are its bytes. Events are not sorted by time, as in real ones."""
        job = self.job
        events: list[dict[str, Any]] = [
            {"ph": "M", "name": "process_name", "ts": 0.0, "pid": 1000 + rank, "tid": 0, "args": {"name": "python"}}
        ]
        for index, record in enumerate(self.records):
            if self._kept(record)[rank]:
                events.append(self._event(rank, index, record))
        head: dict[str, Any] = {"schemaVersion": 1, "displayTimeUnit": "ms", "baseTimeNanoseconds": BASE_NS}
        if job.backend == "nccl":
            head["deviceProperties"] = [{"id": rank % job.gpus, "name": "Synthetic GPU", "numSms": 108}]
            head["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": job.world}
        return {**head, "traceEvents": events, "traceName": f"/tmp/rank{rank}.json"}

    def _event(self, rank: int, index: int, record: _Record) -> dict[str, Any]:
        start, end = self.truth.local(self.job.host_of(rank), np.array([record.start[rank], record.end[rank]]))
        pid = 1000 + rank
        event: dict[str, Any] = {
            "ph": "X",
            "cat": _CATEGORIES[record.what],
            "name": record.name,
            "pid": pid,
            "tid": pid,
        }
        event |= {"ts": int(start) / US, "dur": int(end - start) / US, "args": {"External id": index}}
        if record.what == "gloo":
            event["tid"] = 5000 + record.number % 2
        elif record.what == "runtime":
            event["args"] |= {"correlation": index}
        elif not record.on_host:
            families = list(self.truth.families)
            stream = 7 if record.family is None else 20 + 4 * families.index(record.family)
            device = rank % self.job.gpus
            event |= {"pid": device, "tid": stream}
            event["args"] |= {"correlation": record.launch, "device": device, "stream": stream, "context": 1}
            if record.what == "copy":
                event["args"] |= {"bytes": 1 << 22}
            elif record.family is not None and self.has_args:
                event["args"] |= self._group_args(rank, record)
        return event

    def _group_args(self, rank: int, record: _Record) -> dict[str, Any]:
        family = self.truth.families[str(record.family)]
        number = int(family.group[rank])
        name, members = family.recorded(number, self.job.truncate)
        args = {
            "Collective name": _NCCL[str(record.kind)][0],
            "In msg nelems": record.nelems,
            "Out msg nelems": record.nelems,
            "Group size": len(family.members[number]),
            "dtype": "Float",
            "Process Group Name": name,
            "Process Group Description": family.name,
            "Process Group Ranks": members,
        }
        return args | ({"Seq": record.number + 1} if self.job.seq else {})


_CATEGORIES = {
    "annotation": "user_annotation",
    "gloo": "user_annotation",
    "op": "cpu_op",
    "runtime": "cuda_runtime",
    "kernel": "kernel",
    "nccl": "kernel",
    "copy": "gpu_memcpy",
}
