"""From what the nodes say about their workers to the closed set of targets of one capture. Pure.

The registration's RANK and WORLD_SIZE are the only authority. Of several world sizes the latest registered one wins
(the others are leftovers of an earlier start), and every rank of it becomes a target: covered by a live worker, or
failed from the start with the reason why nobody covers it. A smaller set that looks complete can't come out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from sameshot.model import (
    Failure,
    FailureReason,
    Identity,
    Nobody,
    Phase,
    Registration,
    TargetFact,
    TargetState,
    Worker,
    generation_of,
)

if TYPE_CHECKING:  # a coordinator of one machine knows no pods
    from sameshot.coordinator.podwords import PodsSeen

# Registrations are written by training processes; a world beyond this is a mistake or an attack, never a job.
MAX_WORLD_SIZE = 1 << 16
MAX_WORDS = 3  # places where nobody registered, or pods that can't be captured, that are told about


class Seen(msgspec.Struct, frozen=True):
    """What one agent said about the job's workers: now, or, where it is `silent` (why, in words), at an earlier time.

    `agent` is what it is known by, in a cluster its node.

    `workers` is None when it never said anything. `unregistered` are its words about places of this job where nobody
    has registered.
    """

    agent: str
    node: str = ""
    workers: tuple[Worker, ...] | None = None
    silent: str | None = None
    unregistered: tuple[str, ...] = ()


class Planned(msgspec.Struct, frozen=True):
    """One target, and the agent that is responsible for it (None: nobody is)."""

    fact: TargetFact
    agent: str | None = None


class Frozen(msgspec.Struct, frozen=True):
    """The closed set. `world_size` is None, and `targets` empty, when no worker of this job is known at all.

    `message` says what doesn't fit together, in words; empty when everything does. `nobody` says why there are no
    targets; None: there are.
    """

    world_size: int | None = None
    generation: str = ""
    targets: tuple[Planned, ...] = ()
    message: str = ""
    nobody: Nobody | None = None

    @property
    def missing_ranks(self) -> tuple[int, ...]:
        """Ranks that no live worker covers."""
        ranks = (each.fact.identity.rank for each in self.targets if each.fact.state is TargetState.FAILED)
        return tuple(sorted(rank for rank in ranks if rank is not None))


def dispatchable(worker: Worker) -> bool:
    """This worker can be asked for a window now, if it belongs to the set."""
    registration = worker.registration
    return (
        worker.alive
        and worker.current
        and registration.phase is not Phase.EXITING
        and registration.rank is not None
        and registration.local_rank is not None
        and registration.world_size is not None
        and 0 <= registration.rank < registration.world_size <= MAX_WORLD_SIZE
    )


def freeze(seen: Sequence[Seen], pods: PodsSeen | None = None, last_seen: Mapping[int, Registration] = {}) -> Frozen:
    """Close the set with what is known now: what agents say, what is known about the job's pods (None: it has none),
    and who was last seen as each rank at any earlier time."""
    answered = [(each, worker) for each in seen if each.silent is None for worker in each.workers or ()]
    earlier = [(each, worker) for each in seen if each.silent is not None for worker in each.workers or ()]
    if pods is not None:  # what a silent agent said of a pod that has gone since is no debt of its node
        earlier = [pair for pair in earlier if pods.runs(pair[1].registration.pod_uid)]
    usable = [(each, worker.registration) for each, worker in answered if dispatchable(worker)]
    owed = [(each, worker.registration) for each, worker in earlier if dispatchable(worker)]
    world_size = _latest_world_size(usable) or _latest_world_size(owed)
    if world_size is None:
        nobody, words = _nobody(seen, pods)
        return Frozen(message=words, nobody=nobody)

    remarks: list[str] = []
    covered = _one_per_rank(_of_world(usable, world_size), remarks)
    taken = {registration.target_id for _, registration in covered.values()}
    lost = {
        rank: pair
        for rank, pair in _one_per_rank(_of_world(owed, world_size), []).items()
        if rank not in covered and pair[1].target_id not in taken
    }
    taken |= {registration.target_id for _, registration in lost.values()}
    gone = _one_per_rank(
        [
            (each, worker.registration)
            for each, worker in answered
            if not dispatchable(worker) and worker.registration.world_size == world_size
        ],
        [],
    )
    targets = [_covered(*covered[rank]) for rank in sorted(covered)]
    lacks = _Lacks(
        gone=gone,
        last_seen={rank: each for rank, each in last_seen.items() if each.world_size == world_size},
        pods=pods,
        unheard=[each for each in seen if each.silent is not None and each.workers is None],
        why=_few([words for each in seen for words in each.unregistered] + (pods.troubles if pods else [])),
    )
    for rank in range(world_size):
        if rank in covered:
            continue
        if rank in lost:
            targets.append(_unreachable(*lost[rank]))
        else:
            targets.append(_uncovered(rank, world_size, taken, lacks))
            taken.add(targets[-1].fact.target_id)
    remarks += _disagreements(covered, usable, world_size)
    return Frozen(
        world_size=world_size,
        generation=generation_of(pair[1].uuid for pair in (*covered.values(), *lost.values())),
        targets=tuple(sorted(targets, key=lambda each: each.fact.identity.rank or 0)),
        message=" ".join(remarks),
    )


_Pair = tuple[Seen, Registration]


def _latest_world_size(pairs: Iterable[_Pair]) -> int | None:
    latest = max(
        (registration for _, registration in pairs),
        key=lambda each: (each.registered_at_ns, each.world_size or 0, each.uuid),
        default=None,
    )
    return None if latest is None else latest.world_size


def _of_world(pairs: Iterable[_Pair], world_size: int) -> list[_Pair]:
    return [pair for pair in pairs if pair[1].world_size == world_size]


def _one_per_rank(pairs: Iterable[_Pair], remarks: list[str]) -> dict[int, _Pair]:
    """The latest registration of each rank; no two of them under one target id."""
    by_rank: dict[int, _Pair] = {}
    by_target: dict[str, int] = {}
    for pair in sorted(pairs, key=lambda pair: (-pair[1].registered_at_ns, pair[1].uuid)):
        registration = pair[1]
        rank = registration.rank
        if rank is None:
            continue
        if rank in by_rank:
            remarks.append(
                f"Rank {rank} is registered twice: {by_rank[rank][1].target_id} is the later one and is captured, "
                f"{registration.target_id} is left out."
            )
        elif registration.target_id in by_target:
            remarks.append(
                f"{registration.target_id} is registered as rank {by_target[registration.target_id]} and as rank "
                f"{rank}; the later one counts."
            )
        else:
            by_rank[rank] = pair
            by_target[registration.target_id] = rank
    return by_rank


def _covered(seen: Seen, registration: Registration) -> Planned:
    return Planned(TargetFact(registration.target_id, registration.identity), seen.agent)


def _unreachable(seen: Seen, registration: Registration) -> Planned:
    detail = (
        f"The agent of {seen.node or seen.agent} does not answer ({seen.silent}), so rank {registration.rank} could "
        "not be asked; the identity is from its last answer."
    )
    return Planned(_failed(registration.target_id, registration.identity, FailureReason.AGENT_UNREACHABLE, detail))


@dataclasses.dataclass(frozen=True)
class _Lacks:
    """All that may explain a rank that no live worker covers.

    `gone`: registrations that their agents still know, of workers that can't be asked; `last_seen`: those that were
    alive at an earlier look; `unheard`: nodes of which nothing was ever heard; `why`: words about places and pods.
    """

    gone: Mapping[int, _Pair]
    last_seen: Mapping[int, Registration]
    pods: PodsSeen | None
    unheard: Sequence[Seen]
    why: str

    def about(self, registration: Registration) -> str:
        """What became of its pod, as a sentence to be added; empty: nothing is seen from here."""
        words = "" if self.pods is None else self.pods.about(registration.pod_uid, registration.pod)
        return f" {words}" if words else ""


def _few(words: Sequence[str]) -> str:
    more = f" … and {len(words) - MAX_WORDS} more like these." if len(words) > MAX_WORDS else ""
    return " ".join(words[:MAX_WORDS]) + more


def _uncovered(rank: int, world_size: int, taken: set[str], lacks: _Lacks) -> Planned:
    """A rank of the world that no live worker covers: what is known about it decides the reason."""
    gone, before = lacks.gone.get(rank), lacks.last_seen.get(rank)
    if gone is not None and gone[1].target_id not in taken:
        registration = gone[1]
        what = "is exiting" if registration.phase is Phase.EXITING else "is not alive any more"
        detail = (
            f"Rank {rank} was registered by pid {registration.pid} on {registration.target_id}, but it {what}."
            f"{lacks.about(registration)}"
        )
        return Planned(_failed(registration.target_id, registration.identity, FailureReason.WORKER_EXITED, detail))
    left = "" if before is None else f" It was last seen alive on {before.target_id}.{lacks.about(before)}"
    if lacks.unheard:
        who = "; ".join(f"{each.agent} ({each.silent})" for each in lacks.unheard[:5])
        who += "; …" if len(lacks.unheard) > 5 else ""
        detail = (
            f"Rank {rank} of {world_size} is registered on no node that answers; it may be on one that never did: "
            f"{who}.{left}"
        )
        return Planned(_failed(f"rank/{rank}", Identity(rank=rank), FailureReason.AGENT_UNREACHABLE, detail))
    if before is not None and gone is None and before.target_id not in taken:
        detail = f"Rank {rank} of {world_size} is not registered any more.{left}"
        return Planned(_failed(before.target_id, before.identity, FailureReason.WORKER_EXITED, detail))
    last = ""
    if gone is not None:
        last = f" now; it was last seen on {gone[1].target_id}, which has another rank since"
    elif before is not None:
        last = f" now; it was last seen on {before.target_id}, which has another rank since"
    why = lacks.why or "Was its process armed, and has it imported torch?"
    detail = f"Rank {rank} of {world_size} never registered{last}. {why}"
    return Planned(_failed(f"rank/{rank}", Identity(rank=rank), FailureReason.NEVER_REGISTERED, detail))


def _failed(target_id: str, identity: Identity, reason: FailureReason, detail: str) -> TargetFact:
    return TargetFact(
        target_id, identity, state=TargetState.FAILED, failure=Failure(reason, detail, TargetState.PENDING)
    )


def _disagreements(covered: dict[int, _Pair], usable: Sequence[_Pair], world_size: int) -> list[str]:
    remarks = []
    others = sorted({pair[1].world_size or 0 for pair in usable} - {world_size})
    if others:
        left_out = sum(pair[1].world_size != world_size for pair in usable)
        sizes = ", ".join(map(str, others))
        remarks.append(
            f"{left_out} workers of another world size ({sizes}) are left out; the latest registered size is "
            f"{world_size}."
        )
    places: dict[tuple[str, str], int | None] = {}
    for _, registration in covered.values():
        place = (registration.pod or registration.node or "node", registration.container)
        places[place] = registration.local_world_size
    if places and None not in places.values():
        counted = sum(size or 0 for size in places.values())
        if counted != world_size:
            remarks.append(
                f"{len(places)} pods or nodes with live workers expect {counted} workers in all, WORLD_SIZE says "
                f"{world_size}."
            )
    return remarks


def _nobody(seen: Sequence[Seen], pods: PodsSeen | None) -> tuple[Nobody, str]:
    """Why no worker can be asked, and the same in words. Of a node that is silent nothing is known, so nothing is
    claimed of the job either."""
    if not seen:
        if pods is None:
            return Nobody.SILENT, "No node agent is known to this coordinator, so no worker can be either."
        if pods.all_ended:
            return Nobody.ENDED, f"No pod of this job runs any more. {_few(pods.troubles)}"
        words = _few(pods.troubles) or "There is no pod of it that has the label sameshot.dev/arm=enabled."
        return Nobody.SILENT, f"No pod of this job is on a node yet. {words}"
    silent = [each for each in seen if each.silent is not None]
    if len(silent) == len(seen):
        return Nobody.SILENT, f"None of {len(seen)} agents answers ({silent[0].agent}: {silent[0].silent})."
    also = f"; {len(silent)} agents do not answer ({silent[0].agent}: {silent[0].silent})" if silent else ""
    workers = [worker for each in seen for worker in each.workers or ()]
    unregistered = _few([words for each in seen for words in each.unregistered] + (pods.troubles if pods else []))
    if not workers:
        words = f"No worker of this job is registered on any of {len(seen)} nodes{also}" + (
            f". {unregistered}" if unregistered else ": was it armed and is it running?"
        )
        return Nobody.SILENT if silent else Nobody.NOT_ARMED, words
    note = next((worker.note for worker in workers if worker.note), "not alive, exiting, or without a rank yet")
    words = f"None of {len(workers)} registered workers can be captured now ({note}){also}."
    if silent:
        return Nobody.SILENT, words
    here = any(each.alive and each.current and each.registration.phase is not Phase.EXITING for each in workers)
    return Nobody.NOT_ARMED if here else Nobody.ENDED, words
