"""`sameshot step cancel`."""

from __future__ import annotations

from typing import Annotated

import typer

from sameshot.cli.options import AddressOption, CaptureArgument, JobOption, milliseconds
from sameshot.cli.step.capture import CallerOption
from sameshot.cli.step.frame import ResultDirOption, ResultOption, reporting, stoppable
from sameshot.cli.step.given import StepCommand
from sameshot.errors import UsageError
from sameshot.steps.results import CancelResult


def register(group: typer.Typer) -> None:
    group.command(
        cls=StepCommand,
        epilog="Examples: sameshot step cancel 0197f3a2c4d17e0a8b54d6f1c2a3b4c5 --result cancel.json | "
        "sameshot step cancel --address 127.0.0.1:7000 --key $RUN/profile (exit handlers, which know no id)",
    )(cancel)


def cancel(
    capture_id: CaptureArgument = None,
    key: Annotated[
        str | None,
        typer.Option("--key", help="Or its request key: the newest capture of that key.", show_default=False),
    ] = None,
    address: AddressOption = "local",
    job: JobOption = None,
    uid: Annotated[
        str | None,
        typer.Option(help="Of several local jobs of the same name the one with this uid.", show_default=False),
    ] = None,
    caller: CallerOption = None,
    wait: Annotated[str, typer.Option(help="Longest wait for the manifest of what was kept.")] = "10s",
    result: ResultOption = None,
    result_dir: ResultDirOption = None,
) -> None:
    """Cancel a capture: what no worker has fetched is withdrawn, what was archived stays.

    May be repeated; a capture that is over stays what it is, and that is no error, nor is a key under which nothing
    was begun. Exit code 5: nobody knows a capture of this id.
    """
    with reporting("cancel", result, result_dir, of=CancelResult, facts=("request_key",)) as report:
        if (capture_id is None) == (key is None):
            raise UsageError("Name the capture by its id or by --key, and not by both.")
        report.knows(**({"request_key": key} if capture_id is None else {"capture_id": capture_id}))
        from sameshot.steps.cancel import cancel_async

        if job is not None and address != "local":
            raise UsageError("--job picks a job of this machine; with --address the coordinator serves one job only.")
        report.done(
            stoppable(
                cancel_async(
                    address if job is None else f"local:{job}",
                    capture_id,
                    request_key=key,
                    caller=caller,
                    uid=uid,
                    wait_s=milliseconds(wait) / 1000,
                )
            )
        )
