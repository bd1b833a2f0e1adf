"""`sameshot step capture`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sameshot.cli.options import AddressOption
from sameshot.cli.step.frame import ResultDirOption, ResultOption, reporting, say, stoppable
from sameshot.cli.step.given import StepCommand
from sameshot.steps.request import Action
from sameshot.steps.results import CaptureResult

if TYPE_CHECKING:
    from sameshot.client import CaptureView

CallerOption = Annotated[
    str | None, typer.Option("--caller", help="On whose behalf; default: the OS user.", show_default=False)
]


def register(group: typer.Typer) -> None:
    group.command(
        cls=StepCommand,
        epilog="Examples: sameshot step capture --key nightly-7 --job bert --duration 2s --result capture.json | "
        "sameshot step capture --address 127.0.0.1:7000 --key $RUN/profile --min-ranks 7 --if-busy skip "
        "--result-dir /tmp/out",
    )(capture)


def capture(
    key: Annotated[
        str, typer.Option("--key", help="The request key: a retry with the same one finds its capture again.")
    ],
    address: AddressOption = "local",
    job: Annotated[
        str | None,
        typer.Option("--job", "-j", help="The job's name; another one at the address is refused.", show_default=False),
    ] = None,
    uid: Annotated[str | None, typer.Option(help="Only the job with this uid.", show_default=False)] = None,
    attempt: Annotated[int | None, typer.Option(help="Only this attempt of it.", show_default=False)] = None,
    duration: Annotated[str, typer.Option(help="Length of the window: 2s, 500ms.")] = "2s",
    activities: Annotated[str, typer.Option(help="Comma-separated: cpu, cuda, xpu, mtia.")] = "cpu,cuda",
    with_stack: Annotated[bool, typer.Option("--with-stack", help="Record Python functions (large traces).")] = False,
    record_shapes: Annotated[bool, typer.Option("--record-shapes", help="Record operator input shapes.")] = False,
    warmup: Annotated[str, typer.Option(help="Profiler warm-up before the window, whole seconds.")] = "1s",
    min_ranks: Annotated[
        int | None,
        typer.Option(help="So many verified traces are enough; default: all ranks.", show_default=False),
    ] = None,
    if_unavailable: Annotated[
        Action, typer.Option(help="The job has ended, is not armed, or is another attempt.", case_sensitive=False)
    ] = Action.FAIL,
    if_busy: Annotated[
        Action, typer.Option(help="Another capture of the job is running; wait: queue up.", case_sensitive=False)
    ] = Action.WAIT,
    timeout: Annotated[str, typer.Option(help="Of the whole step; then the capture is cancelled.")] = "15m",
    caller: CallerOption = None,
    result: ResultOption = None,
    result_dir: ResultDirOption = None,
) -> None:
    """Capture a window of every rank of a job, and wait until it is proven.

    SIGTERM and Ctrl-C leave the capture running: start the step again with the same key to go on waiting for it, or use
    `sameshot step cancel`. Exit code 0: enough was captured, or it was skipped as asked for (then capture_id is empty).
    """
    with reporting("capture", result, result_dir, of=CaptureResult, facts=("state",)) as report:
        report.knows(request_key=key)
        from sameshot.steps.capture import run
        from sameshot.steps.options import capture_request

        request = capture_request(
            {
                "duration": duration,
                "activities": activities,
                "with_stack": with_stack,
                "record_shapes": record_shapes,
                "warmup": warmup,
                "job": job,
                "uid": uid,
                "attempt": attempt,
                "min_ranks": min_ranks,
                "if_unavailable": if_unavailable,
                "if_busy": if_busy,
                "timeout": timeout,
            },
            address=f"local:{job}" if address == "local" and job is not None else address,
            request_key=key,
            caller=caller,
        )

        def seen(view: CaptureView) -> None:
            report.knows(
                capture_id=view.capture_id,
                n=view.n,
                job=view.job,
                state=view.state,
                manifest_uri=view.manifest_uri,
                expected=view.expected,
                archived=view.archived,
            )
            report.when_signalled = (
                f"Capture {view.capture_id} goes on: wait for it with the same --key, or cancel it with "
                f"`sameshot step cancel {view.capture_id}`."
            )

        report.done(stoppable(run(request, say, seen)))
