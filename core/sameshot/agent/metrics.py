"""What an agent tells Prometheus, read from its state at every look: nothing is counted for it while a capture runs.

docs/metrics.md lists them; metrics and their labels are named for what was observed, and none has a label that a job's
owner chooses (there may be any number of those).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

from prometheus_client.core import Metric

import sameshot
from sameshot.agent import podfs, room
from sameshot.agent.agent import Agent
from sameshot.agent.coordinators import Coordinators
from sameshot.kube.families import counter, gauge
from sameshot.model import FailureReason, Phase, TargetState

_gauge, _counter = partial(gauge, "agent"), partial(counter, "agent")

ENDED = "ended"
MEASURED_EVERY_S = 10.0  # what lies in the spool: one look at each of its files


class AgentMetrics:
    """A collector. Reads folders (O(files), not their bytes): a disk that hangs costs a look, and no capture."""

    def __init__(self, agent: Agent, clock: Callable[[], float] = time.monotonic) -> None:
        self._agent = agent
        self._clock = clock
        self._spool: tuple[float, int] | None = None

    def collect(self) -> Iterator[Metric]:
        agent, config = self._agent, self._agent.config
        yield _gauge(
            "info", "What runs here.", ("node", "version", "backend"),
            {(config.node, sameshot.__version__, config.backend.value): 1},
        )  # fmt: skip
        yield _gauge("serving", "1 while coordinators are served.", (), {(): int(not agent.health.waits_for())})
        yield _gauge("directories", "Armed pods of this node that are served.", (), {(): len(_dirs(agent))})
        yield self._workers()
        yield self._targets()
        yield _counter(
            "targets_ended", "Targets that came to their end here: archived, or the reason why not.", ("outcome",),
            {("archived",): 0, **{(each.value,): 0 for each in FailureReason}, **agent.journal.ended},
        )  # fmt: skip
        yield _counter(
            "archive_failures", "Uploads that failed; each is tried again until its own deadline.", (),
            {(): agent.archive.failures},
        )  # fmt: skip
        yield _gauge("spool_bytes", "What lies in the spool.", (), {(): self._spool_bytes()})
        yield _gauge(
            "spool_free_bytes", "What may still be written to its file system.", (), {(): _free(agent)}
        )  # fmt: skip
        yield _gauge(
            "spool_kept_traces", "Traces here that are in no archive and will be in none by themselves.", (),
            {(): agent.ttl.kept()},
        )  # fmt: skip
        yield _counter(
            "spool_lost_files", "Files that left the spool after its TTL and were in no archive.", (),
            {(): agent.ttl.lost_files},
        )  # fmt: skip
        yield _counter("spool_lost_bytes", "The same in bytes.", (), {(): agent.ttl.lost_bytes})
        yield _gauge("keep_free_bytes", "What a capture must leave of that.", (), {(): config.keep_free_bytes})
        heard_at = getattr(config.worker_dirs, "heard_at", None)
        if heard_at is not None:
            yield _gauge(
                "api_list_age_seconds", "Since the API server was last heard of the node's pods; a minute is usual.",
                (), {(): self._clock() - heard_at},
            )  # fmt: skip
        if isinstance(config.callers, Coordinators):
            yield from _reviews(config.callers)

    def _workers(self) -> Metric:
        found = Counter(
            known.registration.phase.value if known.worker.current else ENDED
            for known in self._agent.registrations.all()
        )
        return _gauge(
            "workers", "Registered workers by phase; ended: those whose registration is still there, or was replaced.",
            ("phase",), {(name,): found[name] for name in (*(each.value for each in Phase), ENDED)},
        )  # fmt: skip

    def _targets(self) -> Metric:
        """The queues, too: ANNOUNCED waits for a verifier or is read, VERIFIED waits for an upload or is on its way."""
        states = [TargetState.PENDING, TargetState.DISPATCHED, TargetState.QUEUED, TargetState.CONSUMED,
                  TargetState.ANNOUNCED, TargetState.VERIFIED]  # fmt: skip
        found = Counter(target.fact.state for capture in self._agent.book for target in capture.open_targets)
        return _gauge(
            "targets", "Targets under way by state; announced: to be verified, verified: to be archived.", ("state",),
            {(each.name.lower(),): found[each] for each in states},
        )  # fmt: skip

    def _spool_bytes(self) -> int:
        now = self._clock()
        if self._spool is None or now - self._spool[0] >= MEASURED_EVERY_S:
            self._spool = (now, podfs.used_bytes(self._agent.config.spool))
        return self._spool[1]


def _reviews(callers: Coordinators) -> Iterator[Metric]:
    tally = callers.reviews.tally
    yield _counter(
        "token_reviews", "Questions to the API server whose token it is, by its answer.", ("answer",),
        {
            ("allowed",): tally.asked - tally.denied - tally.unanswered,
            ("denied",): tally.denied,
            ("none",): tally.unanswered,
        },
    )  # fmt: skip
    yield _counter("calls_refused", "Calls without a valid token, or for another's job.", (), {(): callers.refused})
    yield _counter(
        "calls_on_last_word", "Calls answered by the last word on their token, as the API server did not answer.", (),
        {(): tally.held},
    )  # fmt: skip


def _dirs(agent: Agent) -> list[object]:
    return list(agent.config.worker_dirs.current())


def _free(agent: Agent) -> float:
    try:
        return room.free_bytes(agent.config.spool)
    except OSError:
        return float("nan")
