"""What a coordinator tells Prometheus, read from its state at every look: nothing is counted while a capture runs.

docs/metrics.md lists them. Every series is of one job attempt, which the scraper's own labels (pod, namespace) and
`sameshot_coordinator_info` name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial

from prometheus_client.core import Metric

import sameshot
from sameshot.coordinator.book import Book
from sameshot.coordinator.config import CoordinatorConfig
from sameshot.coordinator.record import CaptureRecord
from sameshot.kube.families import counter, gauge
from sameshot.kube.reviews import Tally
from sameshot.model import CaptureState, TargetState

_gauge, _counter = partial(gauge, "coordinator"), partial(counter, "coordinator")


class CoordinatorMetrics:
    """A collector. Called in a thread of its own: it only reads what the event loop's thread replaces as a whole."""

    def __init__(
        self, config: CoordinatorConfig, book: Book, tallies: Mapping[str, Tally], policy_trouble: object
    ) -> None:
        self._config = config
        self._book = book
        self._tallies = tallies
        self._policy = policy_trouble

    def collect(self) -> Iterator[Metric]:
        config, book = self._config, self._book
        job, records = config.job, book.records()
        yield _gauge(
            "info", "Whom it serves.", ("job_namespace", "job", "uid", "attempt", "version", "backend"),
            {(job.namespace, job.name, job.uid, str(job.attempt), sameshot.__version__, config.backend.value): 1},
        )  # fmt: skip
        states = Counter(record.state for record in records)
        yield _gauge(
            "captures", "Captures in its memory by state; ended ones are forgotten by and by.", ("state",),
            {(each.value,): states[each] for each in CaptureState if each is not CaptureState.UNKNOWN},
        )  # fmt: skip
        yield _gauge("captures_unsettled", "Captures it still works on.", (), {(): book.unsettled})
        running = [record for record in records if not record.settled.is_set()]
        targets = Counter(fact.state for record in running for fact in record.targets.facts)
        yield _gauge(
            "targets", "Targets of captures that run, by state.", ("state",),
            {(each.name.lower(),): targets[each] for each in TargetState},
        )  # fmt: skip
        yield from self._workers()
        yield from _last(next((each for each in reversed(records) if each.settled.is_set()), None))
        yield _gauge("retired", "1 while no new capture is taken.", (), {(): int(bool(book.retirement.words))})
        yield _gauge(
            "policy_unreadable", "1 while the policy's file can't be read and the last good one stays.", (),
            {(): int(bool(getattr(self._policy, "trouble", "")))},
        )  # fmt: skip
        for name, tally in self._tallies.items():
            yield _counter(
                f"{name}_reviews", "Questions to the API server about callers, by its answer.", ("answer",),
                {
                    ("allowed",): tally.asked - tally.denied - tally.unanswered,
                    ("denied",): tally.denied,
                    ("none",): tally.unanswered,
                },
            )  # fmt: skip
            yield _counter(
                f"{name}_reviews_held", "Calls let through by its last word, as it did not answer.", (),
                {(): tally.held},
            )  # fmt: skip

    def _workers(self) -> Iterator[Metric]:
        roster = self._book.roster
        links = roster.named
        yield _gauge(
            "agents", "Nodes with pods of the job, by whether their agent answered the last question.", ("answers",),
            {("yes",): sum(each.answers for each in links), ("no",): sum(not each.answers for each in links)},
        )  # fmt: skip
        registered, world_size = roster.registered()
        if registered is not None:
            yield _gauge("workers_registered", "Ranks that a live worker covers.", (), {(): registered})
        if registered is not None and world_size is not None:
            yield _gauge("workers_missing", "Ranks that nobody covers.", (), {(): world_size - registered})
        yield _gauge(
            "directory_unknown", "1 until the API server has told the job's pods and the agents.", (),
            {(): int(bool(roster.trouble))},
        )  # fmt: skip


def _last(record: CaptureRecord | None) -> Iterator[Metric]:
    """Of the capture that converged last."""
    if record is None or record.converged_at_ns is None:
        return
    facts = record.targets.facts
    yield _gauge(
        "last_capture_targets", "Targets of the last capture that converged, by outcome.", ("outcome",),
        {
            ("archived",): sum(each.artifact is not None for each in facts),
            ("failed",): sum(each.failure is not None for each in facts),
        },
    )  # fmt: skip
    took_s = (record.converged_at_ns - record.accepted_at_ns) / 1e9
    yield _gauge("last_capture_seconds", "From its acceptance to its convergence.", (), {(): took_s})
    yield _gauge("last_capture_timestamp_seconds", "When it converged.", (), {(): record.converged_at_ns / 1e9})
    yield _gauge("last_capture_published", "1 when its manifest is in the archive.", (), {(): int(record.published)})
    if record.common_window_ns is not None:
        yield _gauge(
            "last_capture_common_window_seconds", "What its traces have in common; negative: nothing.", (),
            {(): record.common_window_ns / 1e9},
        )  # fmt: skip
