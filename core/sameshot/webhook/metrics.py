"""What the webhook tells Prometheus. docs/metrics.md lists it."""

from __future__ import annotations

from collections.abc import Iterator

from cryptography import x509
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily

import sameshot
from sameshot.webhook.certificates import Certificates
from sameshot.webhook.desk import Desk


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
        info = GaugeMetricFamily("sameshot_webhook_info", "What runs here.", labels=("version",))
        info.add_metric((sameshot.__version__,), 1)
        yield info
        reviews = CounterMetricFamily(
            "sameshot_webhook_reviews", "Pods by what became of them; none was kept from starting.", labels=("outcome",)
        )
        for outcome, count in tally.reviews.items():
            reviews.add_metric((outcome,), count)
        yield reviews
        seconds = SummaryMetricFamily("sameshot_webhook_review_seconds", "From a whole review to its answer.")
        seconds.add_metric((), tally.answered, tally.seconds)
        yield seconds
        held = GaugeMetricFamily("sameshot_webhook_held_bytes", "Bodies that are read, or reviewed.")
        held.add_metric((), self._desk.held_bytes)
        yield held
        if (ends := self._ends()) is not None:
            expires = GaugeMetricFamily(
                "sameshot_webhook_certificate_expires_timestamp_seconds", "When the certificate in use ends."
            )
            expires.add_metric((), ends)
            yield expires

    def _ends(self) -> float | None:
        try:
            return x509.load_pem_x509_certificate(self._certificates.chain).not_valid_after_utc.timestamp()
        except ValueError:
            return None
