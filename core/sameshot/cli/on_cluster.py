"""`sameshot analyze --on-cluster`: what it tells, and how it ends."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import typer

from sameshot.cli import tables
from sameshot.cli.options import Output, pairs, print_json
from sameshot.cli.telling import say
from sameshot.cli.where import api_of
from sameshot.errors import UsageError


def analyze_on_cluster(
    manifest: str,
    results: str,
    *,
    namespace: str | None,
    context: str | None,
    kubeconfig: Path | None,
    wait: bool,
    output: Output,
    requests: str | None,
    limits: str | None,
    **more: Any,
) -> None:
    """Make the Job and follow it; leaves by `typer.Exit`. `more` are fields of `AnalysisJob`; None: as there."""
    from sameshot.steps.image import IMAGE_ENV
    from sameshot.steps.on_cluster import AnalysisJob, follow, job_of, namespace_of, submit

    where = namespace or namespace_of(manifest)
    if where is None:
        raise UsageError(
            f"Where {manifest} lies does not tell its job's namespace (…/<namespace>/<job>/<attempt>/<capture id>); "
            "say with --namespace where the Job is to run."
        )
    amounts = {"requests": requests, "limits": limits}
    more |= {name: pairs(text.split(","), name) for name, text in amounts.items() if text is not None}
    more["image"] = more.get("image") or os.environ.get(IMAGE_ENV) or None
    said = {name: value for name, value in more.items() if value is not None}
    asked = AnalysisJob(manifest=manifest, results=results, namespace=where, **said)
    job_of(asked)  # refused before anybody is asked
    api = api_of(context, kubeconfig)
    job = submit(api, asked, say)
    if not wait:
        if output is Output.JSON:
            print_json({"namespace": job.namespace, "job": job.name, "found": job.found})
        else:
            tables.say(f"Job {job.name} in namespace {job.namespace}: {job.hints}")
        return
    try:
        finished = follow(api, job, say)
    except KeyboardInterrupt:
        say("")  # after the terminal's ^C
        say(f"Job {job.name} stays: {job.hints}", fg="yellow")
        raise
    if output is Output.JSON:
        print_json({"namespace": job.namespace, "job": job.name, "exit_code": finished.exit_code, **finished.result})
        if finished.exit_code:
            say(finished.message, fg="red")
    else:
        tables.say(finished.message)
        for sentence in finished.result.get("findings") or ():
            tables.say(f"  {sentence}")
        if report := finished.result.get("report_uri"):
            tables.say(f"report: {report}, numbers: {finished.result.get('summary_uri')}")
    raise typer.Exit(finished.exit_code)
