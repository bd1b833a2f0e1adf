"""The threat model and the webhook's page are held to the tests and the code that they name."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from kubernetes_objects import kustomized

from sameshot.arm import labels
from sameshot.cli.main import application
from sameshot.webhook.desk import THREADS, Limits
from sameshot.webhook.server import WebhookConfig

REPO = Path(__file__).parents[2]
FIRST = REPO / "README.md"
THREATS, WEBHOOK, README = (REPO / each for each in ("docs/threat-model.md", "docs/webhook.md", "deploy/README.md"))


@cache
def functions_of(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_every_test_that_the_threat_model_names_is_there() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", THREATS.read_text())
    assert len(named) > 30
    missing = [
        f"{file}::{name}"
        for file, name in named
        if not (REPO / file).is_file() or (name and name not in functions_of(REPO / file))
    ]
    assert missing == []


def test_every_row_about_an_attack_names_a_test_or_says_that_there_is_none() -> None:
    parts = re.split(r"^## ", THREATS.read_text(), flags=re.MULTILINE)
    about = [part for part in parts if part.startswith(("A hostile", "A curious", "The network"))]
    rows = [line for part in about for line in part.splitlines() if line.startswith("| ") and "what holds" not in line]
    assert len(rows) > 15
    assert [row for row in rows if not re.search(r"`tests/|\*by design\*|\*\*not defended yet\*\*", row)] == []


def test_every_capability_of_the_agent_has_a_row_and_no_other_has() -> None:
    (daemon_set,) = [each for each in kustomized(REPO / "deploy/agent") if each["kind"] == "DaemonSet"]
    added = daemon_set["spec"]["template"]["spec"]["containers"][0]["securityContext"]["capabilities"]["add"]
    table = THREATS.read_text().split("## What each right of the agent is for")[1].split("\n## ")[0]
    assert re.findall(r"^\| ([A-Z_]+) \|", table, re.MULTILINE) == added


def test_the_webhooks_page_says_the_numbers_and_names_that_hold() -> None:
    text, limits = WEBHOOK.read_text(), Limits()
    config = WebhookConfig(certificate=REPO, key=REPO)
    for said in (
        f"{limits.body_within_s:g} s for the body",
        f"{limits.review_within_s:g} s for the review",
        f"above {limits.body_bytes >> 20} MiB",
        f"above {limits.large_bytes >> 10} KiB",
        f"above {limits.held_bytes >> 20} MiB of bodies",
        f"fail after {limits.stuck_after_s:g} s",
        f"closed after {config.first_request_within_s:g} s",
        f"above {config.connections} the",
        f"goes on serving for {config.drain_s:g} s",
        f"port {config.listen.rpartition(':')[2]}",
        f"`{labels.ARMED}`",
        f"`{labels.NOT_ARMED}`",
        f"`{labels.ARM_LABEL}: {labels.ENABLED}`",
        f"`{labels.ARM_LABEL}: {labels.DISABLED}`",
    ):
        assert said in text, said
    (deployment,) = [each for each in kustomized(REPO / "deploy/webhook/base") if each["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    memory = int(container["resources"]["limits"]["memory"].removesuffix("Mi"))
    assert f"limit is {memory} MiB" in text
    # At rest, one large review beside small ones, all bodies (twice, while they are joined), what connections buffer.
    at_most = 50 + 55 * (limits.body_bytes + THREADS * limits.large_bytes) / 2**20 + 2 * limits.held_bytes / 2**20
    assert at_most + config.connections * 128 / 1024 < memory
    assert limits.body_within_s + limits.review_within_s < 2.0  # what an API server waits


def test_the_first_page_and_the_help_name_what_there_is_for_clusters() -> None:
    section = FIRST.read_text().split("\n## On Kubernetes\n")[1].split("\n## ")[0]
    offered = {command.name or command.callback.__name__ for command in application().registered_commands}
    shown = set(re.findall(r"(?:^\$ |`)sameshot (\w+)", section, re.MULTILINE))
    assert {"arm", "webhook", "status", "capture", "analyze"} <= shown <= offered
    assert "it has not run in a cluster" in section


@pytest.mark.parametrize("page", ["argo.md", "kfp.md"])
def test_pages_of_engines_say_how_their_image_is_built(page: str) -> None:
    text = (REPO / "docs" / page).read_text()
    assert "](../deploy/containers/steps.Containerfile)" in text
    assert re.search(r"podman build -f deploy/containers/steps\.Containerfile -t \S+/sameshot/steps:\d", text)


@pytest.mark.parametrize(
    "page",
    [FIRST, THREATS, WEBHOOK, README, *(REPO / "docs" / f"{name}.md" for name in ("arming", "kubernetes", "metrics"))],
    ids=lambda page: f"{page.parent.name}-{page.name}",
)
def test_folders_and_pages_that_are_named_are_there(page: Path) -> None:
    text = page.read_text()
    for folder in re.findall(r"(?:apply -k |`)(deploy/[\w/.-]+)", text):
        assert (REPO / folder).exists(), folder
    for link in re.findall(r"\]\(([^)#]+)", text):
        if "://" not in link:
            assert (page.parent / link).exists(), link
