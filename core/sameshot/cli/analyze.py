"""`sameshot analyze`: from a manifest to findings and a report, on this machine or as a Job of a cluster."""

from __future__ import annotations

import enum
import gc
from pathlib import Path
from typing import Annotated

import typer

from sameshot.cli.bars import bar
from sameshot.cli.options import Output, OutputOption, WorkersOption, print_json
from sameshot.cli.tables import say
from sameshot.cli.where import ContextOption, KubeconfigOption
from sameshot.errors import UsageError
from sameshot.lean import import_numpy


class Engine(enum.StrEnum):
    NATIVE = "native"
    HTA = "hta"


def register(app: typer.Typer) -> None:
    app.command(
        epilog="Examples: sameshot analyze demo-out/archive/local/demo/0/<capture id>/manifest.json --out report | "
        "sameshot analyze s3://traces/dev/local/bert/0/<capture id> --out report | sameshot analyze cap --out report "
        "(cap made by sameshot manifest create) | as a Job in a cluster: sameshot analyze "
        "s3://traces/ml/llama-7b/0/<capture id>/manifest.json --out s3://results/profiling --on-cluster"
    )(analyze)


def analyze(
    manifest: Annotated[str, typer.Argument(help="Path or URI of a manifest, or of the folder that holds it.")],
    out: Annotated[
        str, typer.Option(help="Folder for report.html, summary.json and tables; with --on-cluster s3://bucket/prefix.")
    ] = "sameshot-report",
    engine: Annotated[
        Engine, typer.Option(help="hta: run HolisticTraceAnalysis as well (pip install 'sameshot[hta]').")
    ] = Engine.NATIVE,
    hta_rounding: Annotated[
        bool,
        typer.Option("--hta-rounding", help="Compute tables/*.parquet as HTA does, in whole µs, to compare with it."),
    ] = False,
    fetch_pattern: Annotated[
        str | None,
        typer.Option(
            help="Regular expression of the annotations that fetch a batch, where it is not torch's DataLoader.",
            show_default=False,
        ),
    ] = None,
    workers: WorkersOption = None,
    on_cluster: Annotated[
        bool, typer.Option("--on-cluster", help="Analyse in a pod of a cluster, near the archive, and follow it.")
    ] = False,
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", "-n", help="Of that pod; default: that of the manifest's job.", show_default=False),
    ] = None,
    image: Annotated[
        str | None,
        typer.Option(
            help="Of that pod: where you pushed sameshot/steps of this very version. Default: $SAMESHOT_STEPS_IMAGE.",
            show_default=False,
        ),
    ] = None,
    service_account: Annotated[
        str | None,
        typer.Option("--service-account", help="Of that pod; default: sameshot-analysis.", show_default=False),
    ] = None,
    secret: Annotated[
        str | None,
        typer.Option(
            help="Its environment, with the storage's AWS_*; default: sameshot-results, where there is one.",
            show_default=False,
        ),
    ] = None,
    requests: Annotated[
        str | None, typer.Option(help="What it asks for; default: cpu=2,memory=2Gi.", show_default=False)
    ] = None,
    limits: Annotated[
        str | None, typer.Option(help="What it may use; default: memory=8Gi.", show_default=False)
    ] = None,
    timeout: Annotated[str, typer.Option(help="Of the Job with --on-cluster.")] = "1h",
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="With --on-cluster: follow it to its end.")] = True,
    context: ContextOption = None,
    kubeconfig: KubeconfigOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Analyse a capture. Exit code 3 when a rank is missing from it: the report then says which.

    With --on-cluster a Job of the cluster does it (it is found again by the same command, and goes on after Ctrl-C);
    exit codes are the same.
    """
    if on_cluster:
        from sameshot.cli.on_cluster import analyze_on_cluster

        if engine is not Engine.NATIVE or hta_rounding:
            raise UsageError("--engine and --hta-rounding are for analyses on this machine.")
        return analyze_on_cluster(
            manifest,
            out,
            namespace=namespace,
            context=context,
            kubeconfig=kubeconfig,
            wait=wait,
            output=output,
            image=image,
            service_account=service_account,
            secret=secret,
            requests=requests,
            limits=limits,
            timeout=timeout,
            fetch_pattern=fetch_pattern,
            workers=workers,
        )
    given = {
        "--namespace": namespace,
        "--image": image,
        "--service-account": service_account,
        "--secret": secret,
        "--requests": requests,
        "--limits": limits,
        "--context": context,
        "--kubeconfig": kubeconfig,
    }
    if said := [name for name, value in given.items() if value is not None]:
        raise UsageError(f"{', '.join(said)} says how a pod is to analyse; add --on-cluster.")
    if "://" in out:
        raise UsageError(
            f"--out {out} is no folder of this machine; `sameshot step analyze {manifest} --results {out}` writes "
            "there, and --on-cluster lets a Job of a cluster do it."
        )
    return _here(manifest, Path(out), engine, hta_rounding, fetch_pattern, workers, output)


def _here(
    manifest: str,
    out: Path,
    engine: Engine,
    hta_rounding: bool,
    fetch_pattern: str | None,
    workers: int | None,
    output: Output,
) -> None:
    gc.disable()
    import_numpy()
    from sameshot.analysis import analyze as analyze_capture
    from sameshot.analysis import headline
    from sameshot.analysis.hta.tables import Rounding

    gc.freeze()  # what was imported stays: to look through it again and again is 5 % of a small analysis
    gc.enable()
    rounding = Rounding.HTA if hta_rounding else Rounding.EXACT
    with bar("reading") as advance:
        summary = analyze_capture(
            manifest,
            out,
            workers=workers,
            progress=advance,
            rounding=rounding,
            hta=engine is Engine.HTA,
            fetch_pattern=fetch_pattern,
        )
    if output is Output.JSON:
        print_json(summary)
    else:
        for line in headline(summary):
            say(line)
        say(f"report: {out / 'report.html'}, numbers: {out / 'summary.json'}")
    raise typer.Exit(3 if summary.missing else 0)
