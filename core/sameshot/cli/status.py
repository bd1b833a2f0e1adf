"""`sameshot status`: what of a cluster is in place for captures, what is wrong, and how to mend it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Annotated

import typer

from sameshot.cli.options import JobOption, Output, OutputOption, print_json
from sameshot.cli.tables import console, table
from sameshot.cli.where import (
    AllNamespacesOption,
    ContextOption,
    KubeconfigOption,
    NamespaceOption,
    api_of,
    namespace_or_all,
)
from sameshot.kube import names

if TYPE_CHECKING:
    from rich.console import Console

    from sameshot.steps.health import Finding, JobRow, Seen


def register(app: typer.Typer) -> None:
    app.command(
        epilog="Examples: sameshot status -n ml | sameshot status -A | sameshot status -n ml --job llama-7b -o json"
    )(status)


def status(
    namespace: NamespaceOption = None,
    all_namespaces: AllNamespacesOption = False,
    job: JobOption = None,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
    system_namespace: Annotated[
        str, typer.Option(metavar="NAME", help="Where the operator runs.")
    ] = names.SYSTEM_NAMESPACE,
    agents_namespace: Annotated[str, typer.Option(metavar="NAME", help="Where agents run.")] = names.AGENTS_NAMESPACE,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show a cluster's armed jobs, their coordinators, agents and policies, and what is wrong with them.

    Exit code 0: nothing is wrong that could be seen; 1: something is, each with a sentence on how to mend it. What you
    may not read is named, and is no error.
    """
    from sameshot.steps.health import Severity, judge, look, rows

    logging.getLogger("sameshot.kube").setLevel(logging.ERROR)  # what could not be read is told below
    where = namespace_or_all(namespace, all_namespaces, context, kubeconfig)
    elsewhere = {"system_namespace": system_namespace, "agents_namespace": agents_namespace}
    seen = look(api_of(context, kubeconfig), where, job=job, **elsewhere)
    findings = judge(seen)
    if output is Output.JSON:
        seen_ = {name: getattr(seen, name) for name in ("namespaces", "agents", "operators", "pods", "unread")}
        print_json({"jobs": rows(seen), **seen_, "findings": findings})
    else:
        screen = console()
        show_jobs(rows(seen), screen)
        _show(seen, findings, screen)
    raise typer.Exit(1 if any(each.severity is Severity.PROBLEM for each in findings) else 0)


def show_jobs(found: list[JobRow], screen: Console) -> None:
    """The jobs of a cluster, a line each."""
    if not found:
        screen.print("no armed job")
        return
    listing = table(
        "namespace", "job", "attempt", "coordinator", "ranks", "pods", "endpoint", whole=("namespace", "job")
    )
    for row in found:
        listing.add_row(
            row.namespace,
            row.job,
            str(row.attempt),
            row.phase or "none",
            f"{_number(row.registered)}/{_number(row.expected)}",
            f"{row.running}/{row.pods}",
            row.endpoint,
        )
    screen.print(listing)


def _show(seen: Seen, findings: list[Finding], screen: Console) -> None:
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
            + ("" if space.cluster_policy else "; the cluster's own policy, which you may not read, can be tighter")
        )
    for unread in seen.unread:
        screen.print(f"not looked at: {unread.what}; you may not read that", style="yellow")
    for each in findings:
        style = "red" if each.severity.value == "problem" else "yellow"
        screen.print()
        screen.print(f"{each.severity.value}: {each.wrong}", style=style)
        screen.print(f"  {each.mend}")
    if not findings:
        screen.print()
        screen.print("nothing is wrong, as far as can be seen", style="green")


def _number(value: int | None) -> str:
    return "?" if value is None else str(value)
