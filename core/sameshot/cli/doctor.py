"""`sameshot doctor`: what would fail here, and how to mend it."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from sameshot.cli.options import JobOption, Output, OutputOption, print_json
from sameshot.cli.shown import shown
from sameshot.cli.tables import console
from sameshot.errors import NoSuchJob


def register(app: typer.Typer) -> None:
    app.command(
        epilog="Examples: sameshot doctor | sameshot doctor --python /opt/train/bin/python -o json | "
        "sameshot doctor --dynolog 127.0.0.1:1778"
    )(doctor)


def doctor(
    python: Annotated[str, typer.Option(help="The interpreter that training uses.")] = sys.executable,
    dynolog: Annotated[
        str | None, typer.Option(help="host:port of a stock dynolog daemon that must answer.", show_default=False)
    ] = None,
    job: JobOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Try what a capture needs on this machine. Exit code 1 when something would fail."""
    from rich.text import Text

    from sameshot.client.local import jobs as running_jobs
    from sameshot.local.doctor import Verdict, examine

    style = {Verdict.OK: "green", Verdict.WARNING: "yellow", Verdict.PROBLEM: "bold red"}
    jobs = [info for info in running_jobs({}) if job in (None, info.job.name)]
    if job is not None and not jobs:
        raise NoSuchJob(f"No armed job named {job!r} runs on this machine; see `sameshot jobs`.")
    screen = console(quiet=output is Output.JSON)
    findings = []
    for finding in examine(jobs, python=python, dynolog=dynolog):
        findings.append(finding)
        screen.print(
            Text.assemble(
                (f"{finding.verdict.value:>8}", style[finding.verdict]), shown(f"  {finding.check}: {finding.detail}")
            ),
            soft_wrap=True,
        )
        if finding.remedy:
            screen.print(f"{'':10}→ {finding.remedy}", soft_wrap=True)
    if output is Output.JSON:
        print_json(findings)
    raise typer.Exit(1 if any(finding.verdict is Verdict.PROBLEM for finding in findings) else 0)
