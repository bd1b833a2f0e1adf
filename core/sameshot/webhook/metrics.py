"""What the webhook tells Prometheus. docs/metrics.md lists it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from cryptography import x509
from prometheus_client.core import Metric, SummaryMetricFamily

import sameshot
from sameshot.kube.families import counter, gauge
from sameshot.webhook.certificates import Certificates
from sameshot.webhook.desk import Desk

_gauge, _counter = partial(gauge, "webhook"), partial(counter, "webhook")


class WebhookHealth:
    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def dead(self) -> str:
        return self._desk.stuck()

    def waits_for(self) -> str:
        return "ending" if self._desk.closing else ""


class WebhookMetrics:
    """A collector. Called in a thread of its own: it reads numbers that only ever grow."""

    def __init__(self, desk: Desk, certificates: Certificates) -> None:
        self._desk = desk
        self._certificates = certificates

    def collect(self) -> Iterator[Metric]:
        tally = self._desk.tally
        yield _gauge("info", "What runs here.", ("version",), {(sameshot.__version__,): 1})
        yield _counter(
            "reviews", "Pods by what became of them; none was kept from starting.", ("outcome",),
            {(outcome,): count for outcome, count in tally.reviews.items()},
        )  # fmt: skip
        seconds = SummaryMetricFamily("sameshot_webhook_review_seconds", "From a whole review to its answer.")
        seconds.add_metric((), tally.answered, tally.seconds)
        yield seconds
        yield _gauge("held_bytes", "Bodies that are read, or reviewed.", (), {(): self._desk.held_bytes})
        if (ends := self._ends()) is not None:
            yield _gauge("certificate_expires_timestamp_seconds", "When the certificate in use ends.", (), {(): ends})

    def _ends(self) -> float | None:
        try:
            return x509.load_pem_x509_certificate(self._certificates.chain).not_valid_after_utc.timestamp()
        except ValueError:
            return None
