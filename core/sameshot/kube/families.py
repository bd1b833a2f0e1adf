"""The metrics of one part, as families that are made anew at every look: `sameshot_<part>_<name>`.

prometheus-client is imported here and by the server (scrape.py), so a part without metrics needs none.
"""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

Values = Mapping[tuple[str, ...], float]
"""By the values of the labels, in their order; `{(): value}` where there are none."""


def gauge(part: str, name: str, words: str, labels: tuple[str, ...], values: Values) -> Metric:
    return _filled(GaugeMetricFamily(f"sameshot_{part}_{name}", words, labels=labels), values)


def counter(part: str, name: str, words: str, labels: tuple[str, ...], values: Values) -> Metric:
    """Since the start; Prometheus adds `_total` to the name."""
    return _filled(CounterMetricFamily(f"sameshot_{part}_{name}", words, labels=labels), values)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, values: Values) -> Metric:
    for key, value in values.items():
        family.add_metric(list(key), value)
    return family
