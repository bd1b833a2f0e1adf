"""`sameshot status`: what of a cluster is in place for captures, what is wrong, and how to mend it."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Annotated

import typer

from sameshot.cli.options import JobOption, Output, OutputOption, print_json
from sameshot.cli.tables import console, table
from sameshot.cli.where import (
    NAMESPACE_ENV,
    AllNamespacesOption,
    ContextOption,
    KubeconfigOption,
    api_of,
    own_namespace,
)
from sameshot.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from sameshot.steps.health import Finding, Seen


def register(app: typer.Typer) -> None:
    app.command(
        epilog="Examples: sameshot status -n ml | sameshot status -A | sameshot status -n ml --job llama-7b -o json"
    )(status)


def status(
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace",
            "-n",
            envvar=NAMESPACE_ENV,
            help="Look at this one; default: that of the kubeconfig's context.",
            show_default=False,
        ),
    ] = None,
    all_namespaces: AllNamespacesOption = False,
    job: JobOption = None,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show a cluster's armed jobs, their coordinators, agents and policies, and what is wrong with them.

    Exit code 0: nothing is wrong that could be seen; 1: something is, each with a sentence on how to mend it. What you
    may not read is named, and is no error.
    """
    from sameshot.steps.health import Severity, judge, look

    logging.getLogger("sameshot.kube").setLevel(logging.ERROR)  # what could not be read is told below
    if all_namespaces and namespace is not None and os.environ.get(NAMESPACE_ENV) != namespace:
        raise UsageError("Name one namespace with -n, or ask for all with -A.")
    where = None if all_namespaces else namespace or own_namespace(context, kubeconfig)
    seen = look(api_of(context, kubeconfig), where, job=job)
    findings = judge(seen)
    if output is Output.JSON:
        print_json({"seen": seen, "findings": findings})
    else:
        _show(seen, findings, console())
    raise typer.Exit(1 if any(each.severity is Severity.PROBLEM for each in findings) else 0)


def _show(seen: Seen, findings: list[Finding], screen: Console) -> None:
    rows = table("namespace", "job", "attempt", "coordinator", "ranks", "pods", "endpoint", whole=("namespace", "job"))
    for one, _ in sorted(seen.coordinators, key=lambda each: (each[0].metadata.namespace, each[0].spec.job.name)):
        pods = [pod for pod in seen.pods if pod.job == one.job and not pod.ended]
        rows.add_row(
            one.metadata.namespace,
            one.spec.job.name,
            str(one.spec.job.attempt),
            one.status.phase.value,
            f"{_number(one.status.registered)}/{_number(one.status.expected)}",
            f"{sum(pod.running for pod in pods)}/{len(pods)}",
            one.status.endpoint,
        )
    screen.print(rows)
    if not seen.coordinators:
        screen.print("no job with a coordinator", style="dim")
    if seen.agents is not None:
        nodes = {pod.node for pod in seen.pods if pod.armed and pod.running and pod.node}
        ready = {each.node for each in seen.agents if each.ready}
        screen.print(
            f"agents: {len(ready)} of {len(seen.agents)} Ready; of {len(nodes)} nodes with armed pods "
            f"{len(nodes & ready)} are served"
        )
    for space in seen.namespaces:
        policy = space.policy
        screen.print(
            f"namespace {space.name}: windows up to {policy.max_duration_ms} ms "
            f"({policy.max_duration_with_stack_ms} ms with stacks), "
            f"{policy.min_interval_ms} ms between captures, {policy.max_captures_at_once} at once"
        )
    for unread in seen.unread:
        screen.print(f"not looked at: {unread.what}; you may not read that", style="yellow")
    for each in findings:
        style = "red" if each.severity.value == "problem" else "yellow"
        screen.print(f"\n{each.severity.value}: {each.wrong}", style=style, markup=False)
        screen.print(f"  {each.mend}", markup=False)
    if not findings:
        screen.print("\nnothing is wrong, as far as can be seen", style="green")


def _number(value: int | None) -> str:
    return "?" if value is None else str(value)
