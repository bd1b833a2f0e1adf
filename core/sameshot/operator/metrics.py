"""What the operator tells Prometheus, read from its state at every look. docs/metrics.md lists them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from functools import partial

from prometheus_client.core import Metric

import sameshot
from sameshot.arm.values import inside
from sameshot.kube.coordinators import Phase
from sameshot.kube.families import counter, gauge
from sameshot.operator.run import Operator
from sameshot.operator.sources import Source

_gauge, _counter = partial(gauge, "operator"), partial(counter, "operator")


class OperatorHealth:
    """Both in words; empty: all is well."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator

    def dead(self) -> str:
        if not self._operator.working:
            return "a task that works on jobs has ended"
        return "" if self._operator.watching.alive else "a thread that follows the API server has ended"

    def waits_for(self) -> str:
        return "" if self._operator.ready else self._operator.waits_for


class OperatorMetrics:
    """A collector. Called in a thread of its own: what it reads is replaced as a whole, or counted."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator

    def collect(self) -> Iterator[Metric]:
        operator = self._operator
        seen, queue = operator.seen, operator.queue
        yield _gauge("info", "What runs here.", ("version",), {(sameshot.__version__,): 1})
        phases = Counter(
            str(inside(each, "status").get("phase") or Phase.PENDING.value)
            for each in list(seen.all(Source.COORDINATORS))
        )
        yield _gauge(
            "coordinators", "CaptureCoordinators by phase.", ("phase",),
            {(each.value,): phases[each.value] for each in Phase},
        )  # fmt: skip
        yield _gauge(
            "armed_pods", "Armed pods by whether their job is known.", ("job",),
            {("known",): operator.armed.count - operator.armed.unknown, ("unknown",): operator.armed.unknown},
        )  # fmt: skip
        yield _gauge("jobs_unusable", "Jobs that no coordinator can be made for.", (), {(): operator.keeper.unusable})
        yield _gauge("jobs_held_back", "Jobs whose coordinator waits for room.", (), {(): operator.keeper.held_back})
        yield _gauge("jobs_failing", "Jobs and hooks whose last turn failed.", (), {(): queue.resting})
        yield _gauge("queue_length", "Jobs and hooks that wait for a turn.", (), {(): len(queue)})
        yield _counter("turns", "Turns of jobs and hooks.", (), {(): queue.done})
        yield _counter("turns_failed", "Turns that failed.", (), {(): queue.failures})
        restarts = operator.watching.restarts + operator.following.restarts
        yield _counter("watch_restarts", "Times that following was begun anew.", (), {(): restarts})
        yield _gauge(
            "kinds_left_out", "Kinds in namespaces of which there are more than are looked at.", (),
            {(): operator.seen.full},
        )  # fmt: skip
        yield _gauge(
            "hook_foreign", "Namespaces whose ConfigMap sameshot-hook is somebody else's.", (),
            {(): operator.hooks.foreign},
        )  # fmt: skip
        if operator.swept_at is not None:
            yield _gauge(
                "sweep_age_seconds", "Since everything was listed.", (), {(): max(time.time() - operator.swept_at, 0)}
            )
        yield _gauge(
            "authority_failing", "1: the authority could not be read or renewed the last time.", (),
            {(): bool(operator.authority_trouble)},
        )  # fmt: skip
        authority = operator.authority
        if authority is not None:
            yield _gauge(
                "authority_expires_timestamp_seconds", "When the authority of all certificates ends.", (),
                {(): authority.current.parsed.not_valid_after_utc.timestamp()},
            )  # fmt: skip
