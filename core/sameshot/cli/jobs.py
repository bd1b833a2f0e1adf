"""`jobs` and `workers`: what runs here or in a cluster, and who is registered."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sameshot.cli.options import Output, OutputOption, pairs, print_json
from sameshot.cli.tables import console, table
from sameshot.cli.where import (
    AllNamespacesOption,
    ContextOption,
    KubeconfigOption,
    NamespaceOption,
    Where,
    api_of,
    at_job,
    dial,
    in_cluster,
    namespace_or_all,
)

if TYPE_CHECKING:
    from sameshot.model import Worker


def register(app: typer.Typer) -> None:
    app.command(epilog="Examples: sameshot jobs --label team=nlp -o json | sameshot jobs -n ml")(jobs)
    app.command(epilog="Examples: sameshot workers --job bert | sameshot workers -n ml --job llama-7b")(at_job(workers))


def jobs(
    label: Annotated[list[str] | None, typer.Option(help="key=value; all must match.", show_default=False)] = None,
    namespace: NamespaceOption = None,
    all_namespaces: AllNamespacesOption = False,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the armed jobs that run on this machine, or with --namespace or -A in a cluster."""
    wanted = pairs(label or [], "label")
    if in_cluster(namespace, all_namespaces, context, kubeconfig):
        where = namespace_or_all(namespace, all_namespaces, context, kubeconfig)
        _in_cluster(wanted, where, context, kubeconfig, output)
        return
    from sameshot.client.local import jobs as running_jobs

    found = running_jobs(wanted)
    if output is Output.JSON:
        print_json(found)
        return
    listing = table("job", "uid", "series", "labels", "running for", "coordinator", whole=("job", "coordinator"))
    for info in found:
        listing.add_row(
            info.job.name,
            info.job.uid[:12],
            info.series,
            ",".join(f"{key}={value}" for key, value in sorted(info.labels.items())),
            f"{(time.time_ns() - info.started_at_ns) / 1e9:.0f} s",
            info.coordinator,
        )
    console().print(listing)


def _in_cluster(
    wanted: dict[str, str], namespace: str | None, context: str | None, kubeconfig: Path | None, output: Output
) -> None:
    from sameshot.cli.status import show_jobs
    from sameshot.steps.health import look_at_jobs, rows

    found = rows(look_at_jobs(api_of(context, kubeconfig), namespace, wanted))
    if output is Output.JSON:
        print_json(found)
    else:
        show_jobs(found, console())


def workers(where: Where, output: OutputOption = Output.TABLE) -> None:
    """List a job's registered workers, and the ranks that nobody covers."""
    with dial(where) as client:
        listing = client.workers()
    if output is Output.JSON:
        print_json(listing)
        return
    rows = table("rank", "target", "pid", "state", "torch", "last poll", "note", whole=("target",))
    for worker in sorted(listing.workers, key=_order):
        registration = worker.registration
        rows.add_row(
            "?" if registration.rank is None else str(registration.rank),
            registration.target_id,
            str(registration.pid),
            _state(worker),
            registration.torch_version or "?",
            "" if worker.last_poll_age_s is None else f"{worker.last_poll_age_s:.1f} s ago",
            worker.note,
        )
    screen = console()
    screen.print(rows)
    expected = "unknown" if listing.world_size is None else str(listing.world_size)
    screen.print(f"world size {expected}, generation {listing.generation or '-'}")
    if listing.missing_ranks:
        screen.print(f"nobody covers rank {', '.join(map(str, listing.missing_ranks))}", style="red")
    for agent in listing.agents:
        if not agent.reachable:
            screen.print(f"agent {agent.node or agent.address} does not answer: {agent.detail}", style="red")


def _state(worker: Worker) -> str:
    if not worker.alive:
        return "gone"
    return worker.registration.phase.value if worker.current else "not current"


def _order(worker: Worker) -> tuple[int, str]:
    rank = worker.registration.rank
    return (1 << 31 if rank is None else rank), worker.registration.uuid
