"""`jobs` and `workers`: what runs here, and who is registered."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from sameshot.cli.options import Output, OutputOption, pairs, print_json
from sameshot.cli.tables import console, table
from sameshot.cli.where import Where, at_job, dial

if TYPE_CHECKING:
    from sameshot.model import Worker


def register(app: typer.Typer) -> None:
    app.command(epilog="Example: sameshot jobs --label team=nlp -o json")(jobs)
    app.command(epilog="Example: sameshot workers --job bert")(at_job(workers))


def jobs(
    label: Annotated[list[str] | None, typer.Option(help="key=value; all must match.", show_default=False)] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the armed jobs that run on this machine."""
    from sameshot.client.local import jobs as running_jobs

    found = running_jobs(pairs(label or [], "label"))
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
