"""`rights`: what an engine's pods, workers or connectors need to capture jobs of a cluster, for `kubectl apply`."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer


def register(app: typer.Typer) -> None:
    app.command(
        epilog="Examples: sameshot rights pipeline-runner -n kubeflow --jobs-namespace ml --existing "
        "| kubectl apply -f -; sameshot rights sameshot -n airflow --caller airflow-worker --caller airflow-triggerer"
    )(rights)


def rights(
    account: Annotated[str, typer.Argument(help="The ServiceAccount that captures jobs.")],
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Where it is.")],
    jobs_namespace: Annotated[
        list[str] | None,
        typer.Option(help="Where the jobs are; may be repeated. Default: the same namespace.", show_default=False),
    ] = None,
    caller: Annotated[
        list[str] | None,
        typer.Option(
            help="An account there that captures as ACCOUNT; may be repeated. Default: ACCOUNT itself.",
            show_default=False,
        ),
    ] = None,
    existing: Annotated[bool, typer.Option("--existing", help="ACCOUNT is there already.")] = False,
) -> None:
    """Write the Role and RoleBindings of a caller within the cluster to standard output, as JSON for kubectl apply."""
    from sameshot.steps.rights import rights

    made = rights(account, namespace, callers=caller or (), jobs_in=jobs_namespace or (), make_account=not existing)
    typer.echo(msgspec.json.format(msgspec.json.encode({"apiVersion": "v1", "kind": "List", "items": made})).decode())
