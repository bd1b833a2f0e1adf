"""`sameshot demo`: a real two-node job on this machine, captured twice while it runs; the second time one rank is slow.

Nothing is staged: the training script knows nothing of us, and the demonstration fails when the analysis of the first
capture names a rank, when that of the second does not name the slow one, or when the job does not end by itself.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sameshot.cli.options import milliseconds
from sameshot.cli.tables import console, plain
from sameshot.errors import SameshotError, UsageError
from sameshot.model import Activity, CaptureSpec
from sameshot.profiler.daemon import BackendName

if TYPE_CHECKING:
    from rich.console import Console

    from sameshot.analysis.results import Summary
    from sameshot.local.demo.job import DemoJob
    from sameshot.local.run import LocalRun

SETTLED_STEPS = 40  # after this many the caches are warm and the first capture says something
SLOW_STEPS = 20  # of the slowed-down job before the second capture


def register(app: typer.Typer) -> None:
    app.command(
        epilog="Examples: sameshot demo | sameshot demo --duration 2s --slow-rank 1 | "
        "sameshot demo --backend dynolog --dynolog /usr/local/bin/dynolog | sameshot demo --keep"
    )(demo)


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the archive, the reports and the job's logs.")] = (
        Path("demo-out")
    ),
    nodes: Annotated[int, typer.Option(min=1, help="torchrun agents, each with a node agent beside it.")] = 2,
    ranks_per_node: Annotated[int, typer.Option(min=1)] = 2,
    loader_workers: Annotated[int, typer.Option(min=0, help="DataLoader workers (spawned) per rank.")] = 2,
    width: Annotated[int, typer.Option(min=8, help="Size of the model.")] = 256,
    duration: Annotated[str, typer.Option(help="Length of the windows.")] = "1s",
    with_stack: Annotated[bool, typer.Option("--with-stack", help="Record Python functions as well.")] = False,
    slow_rank: Annotated[int, typer.Option(min=0, help="The rank that is slowed down before the second capture.")] = 2,
    slow: Annotated[str, typer.Option(help="How long it sleeps in every step.")] = "30ms",
    backend: Annotated[BackendName, typer.Option(help="broker is built in; dynolog needs --dynolog.")] = (
        BackendName.BROKER
    ),
    dynolog: Annotated[
        Path | None,
        typer.Option(envvar="SAMESHOT_DYNOLOG", help="Program of the stock dynolog daemon.", show_default=False),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave the job running at the end, to be captured by hand (Ctrl-C ends).")
    ] = False,
) -> None:
    """Capture a real distributed job twice, and find the rank that was slowed down in between."""
    from sameshot.local.demo.job import DemoJob, JobShape
    from sameshot.local.run import LocalRun, LocalSetup

    shape = JobShape(nodes, ranks_per_node, loader_workers, width)
    if slow_rank >= shape.world_size:
        raise UsageError(f"--slow-rank {slow_rank} is not one of the {shape.world_size} ranks.")
    spec = CaptureSpec(duration_ms=milliseconds(duration), activities=(Activity.CPU,), with_stack=with_stack)
    screen = console()
    _clear(out)
    setup = LocalSetup(
        name="demo",
        archive=str((out / "archive").absolute()),
        nodes=tuple(f"node-{node}" for node in range(nodes)),
        labels={"demo": "true"},
        backend=backend,
        dynolog=dynolog if backend is BackendName.DYNOLOG else None,
        local_world_size=ranks_per_node,
    )
    with LocalRun(setup) as local, DemoJob(local, shape, out / "job") as job:
        _say(screen, f"training {shape.world_size} ranks on {nodes} nodes; logs in {out / 'job'}")
        job.wait_for_step(SETTLED_STEPS)
        _say(screen, f"step {job.steps()} is done: first capture")
        first = _capture(local, spec, out / "first", screen)
        job.slow_down(slow_rank, milliseconds(slow))
        job.wait_for_step(job.steps() + SLOW_STEPS)
        _say(screen, f"rank {slow_rank} now sleeps {slow} in every step: second capture of the running job")
        second = _capture(local, spec, out, screen)
        if keep:
            _hold(job, screen)
        _check_findings(first, second, slow_rank)
        job.finish()
        codes = job.wait()
        if any(codes):
            raise SameshotError(f"The job's launchers ended with {codes}, expected 0; see the logs in {out / 'job'}.")
        _say(screen, "the job ended by itself with exit code 0")
    _say(screen, f"open {out / 'report.html'} (before: {out / 'first' / 'report.html'})")


# What the demonstration leaves in its folder, and all that it ever removes.
_OURS = ("archive", "first", "job", "report.html", "summary.json")


def _clear(out: Path) -> None:
    """Make room for a new demonstration; raises UsageError rather than remove anything that is not of an older one."""
    out.mkdir(parents=True, exist_ok=True)
    foreign = sorted(path.name for path in out.iterdir() if path.name not in _OURS)
    if foreign:
        raise UsageError(
            f"{out} holds {foreign[0]!r}, which is not of a demonstration; name an empty folder with --out."
        )
    for path in out.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _capture(local: LocalRun, spec: CaptureSpec, out: Path, screen: Console) -> Summary:
    from sameshot.analysis import analyze, headline
    from sameshot.cli.progress import follow, print_result
    from sameshot.steps.verdict import exit_code

    with local.client() as client:
        asked = time.monotonic()
        view = follow(client.watch(client.start_capture(spec).capture_id), screen)
    if view is None or exit_code(view):
        state = "lost" if view is None else view.state.value
        raise SameshotError(f"The capture is {state}; the logs are in {local.folder.path}.")
    screen.print(f"manifest published {time.monotonic() - asked:.1f} s after the request")
    print_result(view, screen)
    summary = analyze(view.manifest_uri, out)
    for line in headline(summary):
        screen.print(plain(f"  {line}", "bold"), soft_wrap=True)
    return summary


def _check_findings(first: Summary, second: Summary, slow_rank: int) -> None:
    before = [late.rank for late in first.late.ranks]
    after = [late.rank for late in second.late.ranks]
    if before or after != [slow_rank]:
        raise SameshotError(
            f"The analysis named {before or 'no rank'} before rank {slow_rank} was slowed down and "
            f"{after or 'no rank'} after it. On a machine that is busy with other work try again with a larger --slow."
        )


def _hold(job: DemoJob, screen: Console) -> None:
    _say(screen, "the job goes on; in another terminal try: sameshot workers; sameshot capture --duration 1s --wait")
    _say(screen, "Ctrl-C ends it")
    try:
        while True:
            job.wait_for_step(job.steps() + 1)
            time.sleep(1)
    except KeyboardInterrupt:
        screen.print()


def _say(screen: Console, text: str) -> None:
    screen.print(plain(f"● {text}", "cyan"), soft_wrap=True)
