"""docs/metrics.md names all metrics of all parts, with their labels, and no others."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from kubernetes_objects import kustomized, pod_templates

from sameshot.kube import names

REPO = Path(__file__).parents[2]
PAGE = REPO / "docs/metrics.md"
PARTS = ["agent", "coordinator", "operator", "webhook"]
TALLIES = ("token", "access")  # of a coordinator: who calls, and what they may
Found = dict[str, tuple[str, ...]]  # metric → labels


def in_code(part: str) -> Found:
    """Every family that a part's collector makes, read from its source."""
    tree = ast.parse((REPO / f"core/sameshot/{part}/metrics.py").read_text())
    found: Found = {}
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.args:
            for name in _texts(call.args[0]):
                if kind := _kind(call.func.id, name):
                    whole = name if name.startswith("sameshot_") else f"sameshot_{part}_{name}"
                    found[f"{whole}_total" if kind == "counter" else whole] = _labels(call)
    return found


def _kind(called: str, name: str) -> str:
    if called in ("_gauge", "_counter"):
        return called[1:]
    made = called in ("GaugeMetricFamily", "SummaryMetricFamily", "CounterMetricFamily")
    return called.removesuffix("MetricFamily").lower() if made and name.startswith("sameshot_") else ""


def _texts(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr) and isinstance(node.values[0], ast.FormattedValue):
        rest = "".join(each.value for each in node.values[1:] if isinstance(each, ast.Constant))
        yield from (f"{name}{rest}" for name in TALLIES)


def _labels(call: ast.Call) -> tuple[str, ...]:
    given = [each.value for each in call.keywords if each.arg == "labels"] or call.args[2:3]
    return tuple(ast.literal_eval(given[0])) if given and isinstance(given[0], ast.Tuple) else ()


def on_page(part: str) -> Found:
    section = PAGE.read_text().split(f"\n## {part.capitalize()}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \|([^|]*)\|[^|]+\|$", section, re.MULTILINE)
    assert len(rows) == section.count("\n| `")
    return {name: tuple(re.findall(r"`(\w+)`", labels)) for name, labels in rows}


@pytest.mark.parametrize("part", PARTS)
def test_the_page_has_all_metrics_and_no_others(part: str) -> None:
    assert on_page(part) == in_code(part)
    assert len(on_page(part)) >= 5


def test_every_part_with_metrics_is_on_the_page() -> None:
    assert sorted(path.parent.name for path in (REPO / "core/sameshot").rglob("metrics.py")) == PARTS


def test_alerts_ask_for_metrics_and_values_that_there_are() -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    known = {name for part in PARTS for name in on_page(part)}
    for rule in yaml.safe_load(block)["groups"][0]["rules"]:
        asked = set(re.findall(r"sameshot_\w+", rule["expr"]))
        assert asked
        assert asked <= known, asked - known


def test_ports_and_annotations_are_as_the_page_says() -> None:
    ports = {}
    for owner, template in pod_templates(kustomized(REPO / "deploy/overlays/cluster-wide")):
        marks, (container,) = template["metadata"].get("annotations", {}), template["spec"]["containers"]
        if owner["kind"] == "CronJob":
            assert not marks
            continue
        assert (marks["prometheus.io/scrape"], marks["prometheus.io/path"]) == ("true", "/metrics")
        port = marks["prometheus.io/port"]
        assert f"--metrics=0.0.0.0:{port}" in container["args"]
        assert {"name": "metrics", "containerPort": int(port), "protocol": "TCP"} in container["ports"]
        ports[owner["metadata"]["name"]] = int(port)
    assert ports == {"sameshot-agent": names.METRICS_PORT, "sameshot-operator": 9465, "sameshot-webhook": 9466}
    assert f"port {names.METRICS_PORT}, the operator's 9465, the webhook's 9466" in PAGE.read_text()
