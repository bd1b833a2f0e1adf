"""Which coordinator a command line means: on one machine nothing changes, a cluster only counts where one is said."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from sameshot.cli.main import invoke
from sameshot.cli.where import NAMESPACE_ENV, Where, address_of, at_job
from sameshot.errors import UsageError


def meant(where: Where, environment: dict[str, str] | None = None, *, plugin: bool = False) -> str:
    def own_namespace(context: str | None, kubeconfig: Path | None) -> str:
        return f"own-of-{context or 'current'}"

    return address_of(where, environment or {}, own_namespace, plugin=plugin)


@pytest.mark.parametrize(
    ("where", "environment", "plugin", "address"),
    [
        # one machine
        (Where(), {}, False, "local"),
        (Where(job="bert"), {}, False, "local:bert"),
        (Where(job="bert"), {"KUBECONFIG": "/there", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}, False, "local:bert"),
        (Where(address="local", address_given=True, job="bert"), {NAMESPACE_ENV: "ml"}, False, "local:bert"),
        (Where(address="local", address_given=True), {}, True, "local"),
        (Where(address="10.0.0.7:7000"), {}, False, "10.0.0.7:7000"),
        (Where(address="10.0.0.7:7000"), {NAMESPACE_ENV: "ml"}, True, "10.0.0.7:7000"),
        # a cluster
        (Where(namespace="ml", job="llama-7b"), {}, False, "kube:ml/llama-7b"),
        (Where(namespace="ml"), {}, False, "kube:ml"),
        (Where(job="bert"), {NAMESPACE_ENV: "ml"}, False, "kube:ml/bert"),
        (Where(namespace="dev", job="bert"), {NAMESPACE_ENV: "ml"}, False, "kube:dev/bert"),
        (Where(job="bert"), {}, True, "kube:own-of-current/bert"),
        (Where(job="bert", context="prod"), {}, False, "kube:own-of-prod/bert?context=prod"),
        (Where(job="bert", service_account="bot"), {}, False, "kube:own-of-current/bert?service-account=bot"),
        (Where(address="10.0.0.7:7000", namespace="ml", job="bert"), {}, False, "kube:ml/bert"),  # of the environment
        (Where(address="kube:ml", job="bert"), {}, False, "kube:ml/bert"),
        (Where(address="kube:ml/bert?attempt=2", address_given=True, context="prod"), {}, False,
         "kube:ml/bert?attempt=2&context=prod"),
        (Where(namespace="ml", job="bert", wait_for="2m"), {}, False, "kube:ml/bert?wait=120s"),
        (Where(namespace="ml", kubeconfig=Path("/etc/kube/config")), {}, False, "kube:ml?kubeconfig=/etc/kube/config"),
    ],
)  # fmt: skip
def test_what_stands_on_the_command_line_wins_and_a_cluster_is_never_meant_by_chance(
    where: Where, environment: dict[str, str], plugin: bool, address: str
) -> None:
    assert meant(where, environment, plugin=plugin) == address


@pytest.mark.parametrize(
    ("where", "said"),
    [
        (Where(address="10.0.0.7:7000", address_given=True, job="bert"), "serves one job only"),
        (Where(address="10.0.0.7:7000", job="bert"), "serves one job only"),
        (Where(address="10.0.0.7:7000", address_given=True, namespace="ml"), "leave it out"),
        (Where(address="local", address_given=True, context="prod"), "leave it out"),
        (Where(address="kube:ml/bert", address_given=True, namespace="dev"), "two namespaces"),
        (Where(address="kube:ml/bert", address_given=True, job="gpt"), "another"),
        (Where(namespace="ml", job="bert?attempt=1&wait"), "no address"),
        (Where(namespace="ML"), "no name of a namespace"),
        (Where(namespace="ml", wait_for="soon"), "--wait-for"),
    ],
)
def test_options_that_contradict_each_other_are_refused(where: Where, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        meant(where)


def test_a_hint_names_the_same_job_again_and_can_be_copied() -> None:
    assert Where(job="bert").again == " --job bert"
    assert Where(namespace="ml", job="bert", context="my prod").again == " -n ml --job bert --context 'my prod'"
    assert Where(address="10.0.0.7:7000").again == ""  # it stands in the environment
    assert Where(address="10.0.0.7:7000", address_given=True).again == " --address 10.0.0.7:7000"


def test_whether_an_address_is_the_environments_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Where] = []
    app = typer.Typer()

    @app.command()
    @at_job
    def command(where: Where) -> None:
        seen.append(where)

    monkeypatch.setenv("SAMESHOT_ADDRESS", "10.0.0.7:7000")
    app([], standalone_mode=False)
    app(["--address", "10.0.0.7:7000"], standalone_mode=False)
    monkeypatch.delenv("SAMESHOT_ADDRESS")
    app(["--job", "bert"], standalone_mode=False)
    assert seen == [
        Where(address="10.0.0.7:7000"),
        Where(address="10.0.0.7:7000", address_given=True),
        Where(job="bert"),
    ]


def test_on_one_machine_no_cluster_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "broken"))
    (tmp_path / "broken").write_text("{")
    monkeypatch.setenv("SAMESHOT_RUNTIME_DIR", str(tmp_path / "none"))
    monkeypatch.delenv(NAMESPACE_ENV, raising=False)
    monkeypatch.delenv("SAMESHOT_ADDRESS", raising=False)
    assert invoke(["captures", "--job", "bert"]) == 6
    assert "on this machine" in capsys.readouterr().err
    assert invoke(["jobs"]) == 0
