"""`sameshot argo`: what people need who write their workflows in YAML."""

from __future__ import annotations

from typing import Annotated

import typer

from sameshot_argo.settings import USER, Kind, Settings


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Argo Workflows: templates as plain YAML.", no_args_is_help=True)
    group.callback()(_group)
    group.command(
        epilog="Examples: sameshot argo render --namespace ml | kubectl apply -f - | sameshot argo render --kind "
        "CronWorkflow --name bert --schedule '0 */6 * * *' -p address=kube:ml/bert "
        "-p results=s3://results/profiling"
    )(render)
    app.add_typer(group, name="argo")


def _group() -> None:
    """Keeps `render` a command of its own name while it is the only one."""


def render(
    kind: Annotated[
        Kind,
        typer.Option(help="Role: with its ServiceAccount and RoleBindings; all: Role and WorkflowTemplate."),
    ] = Kind.ALL,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Default: that of whoever applies it.", show_default=False)
    ] = None,
    image: Annotated[
        str | None, typer.Option(help="The image with sameshot[analysis].", show_default="that of this version")
    ] = None,
    parallelism: Annotated[int, typer.Option(help="Most pods of one profile at a time.")] = 8,
    retries: Annotated[int, typer.Option(help="Most retries of a step that was killed or should try again.")] = 4,
    artifacts: Annotated[
        bool, typer.Option("--artifacts/--no-artifacts", help="Pages go to the artifact repository, too.")
    ] = True,
    run_as_user: Annotated[
        int,
        typer.Option(help="The pods' user, also of Argo's containers. 0: the cluster gives one, as OpenShift does."),
    ] = USER,
    service_account: Annotated[str, typer.Option(help="Of the runs.")] = "sameshot-workflow",
    jobs_namespace: Annotated[
        list[str] | None,
        typer.Option(
            help="Where jobs are that the runs may capture; may be repeated. Default: their own.", show_default=False
        ),
    ] = None,
    archive_secret: Annotated[str, typer.Option(help="Secret with the AWS_* that read the archive.")] = (
        "sameshot-archive"
    ),
    results_secret: Annotated[str, typer.Option(help="Secret with the AWS_* that write results.")] = "sameshot-results",
    parameter: Annotated[
        list[str] | None,
        typer.Option("--parameter", "-p", help="name=value for a Workflow or CronWorkflow.", show_default=False),
    ] = None,
    name: Annotated[str, typer.Option(help="Of a CronWorkflow.")] = "sameshot",
    schedule: Annotated[str, typer.Option(help="Of a CronWorkflow.")] = "0 */6 * * *",
    timezone: Annotated[
        str | None, typer.Option(help="Of a CronWorkflow; default: the controller's.", show_default=False)
    ] = None,
    cluster: Annotated[
        bool, typer.Option("--cluster", help="A Workflow or CronWorkflow runs the ClusterWorkflowTemplate.")
    ] = False,
) -> None:
    """Write objects for Argo Workflows as YAML to standard output."""
    from sameshot_argo.render import objects, text  # hera takes a second

    settings = Settings(
        **({"image": image} if image else {}),
        parallelism=parallelism,
        retries=retries,
        artifacts=artifacts,
        run_as_user=run_as_user or None,
        service_account=service_account,
        archive_secret=archive_secret,
        results_secret=results_secret,
    )
    made = objects(
        kind,
        settings,
        namespace=namespace,
        arguments=_pairs(parameter or []),
        name=name,
        schedule=schedule,
        timezone=timezone,
        cluster=cluster,
        jobs_in=jobs_namespace or (),
    )
    typer.echo(text(made), nl=False)


def _pairs(given: list[str]) -> dict[str, str]:
    from sameshot.errors import UsageError

    found = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or not name:
            raise UsageError(f"{each!r} is no parameter; write name=value.")
        found[name] = value
    return found
