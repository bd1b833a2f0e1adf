"""`operator`: keeps a coordinator for each armed job, as the Deployment in deploy/operator runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sameshot.cli.options import milliseconds
from sameshot.cli.run import ARCHIVE_HELP
from sameshot.cli.services import run_service
from sameshot.kube import names
from sameshot.operator.config import Reach


def register(app: typer.Typer) -> None:
    app.command(
        epilog="Examples: sameshot operator --archive s3://traces; outside of a pod: sameshot operator --archive "
        "s3://traces --image registry/sameshot:1 --api-server https://10.0.0.1:6443 --api-token-file token "
        "--api-ca-file ca.crt"
    )(operator)


def operator(
    archive: Annotated[str, typer.Option(help=ARCHIVE_HELP)],
    image: Annotated[
        str, typer.Option(help="The coordinators'. Default: that of the operator's own pod.", show_default=False)
    ] = "",
    namespace: Annotated[
        list[str] | None, typer.Option(help="Whose jobs, repeatable. Default: all.", show_default=False)
    ] = None,
    api_server: Annotated[
        str,
        typer.Option(
            help="https://host:port, where the usual address can't be reached; coordinators are told it, too.",
            show_default=False,
        ),
    ] = "",
    api_token_file: Annotated[
        Path | None, typer.Option(help="Default: that of the pod's account.", show_default=False)
    ] = None,
    api_ca_file: Annotated[
        Path | None, typer.Option(help="Default: that of the pod's account.", show_default=False)
    ] = None,
    coordinators_api_server: Annotated[
        str, typer.Option(help="Another address for coordinators.", show_default=False)
    ] = "",
    host_network: Annotated[
        bool, typer.Option("--host-network", help="Coordinators share their node's network, each with its own port.")
    ] = False,
    endpoint: Annotated[Reach, typer.Option(help="How coordinators are addressed.")] = Reach.SERVICE,
    system_namespace: Annotated[str, typer.Option(help="Where the operator is.")] = names.SYSTEM_NAMESPACE,
    coordinators_namespace: Annotated[str, typer.Option(help="Where coordinators are.")] = names.COORDINATORS_NAMESPACE,
    agents_namespace: Annotated[str, typer.Option(help="Where the agents are.")] = names.AGENTS_NAMESPACE,
    account: Annotated[str, typer.Option(help="The operator's ServiceAccount.")] = names.OPERATOR_ACCOUNT,
    pull_secret: Annotated[
        list[str] | None,
        typer.Option(help="A Secret in the coordinators' namespace to pull the image with, repeatable."),
    ] = None,
    max_coordinators_per_namespace: Annotated[
        int,
        typer.Option(help="Of jobs of one namespace, that run at once; further jobs wait. 0: any number.", min=0),
    ] = 50,
    priority_class: Annotated[
        str, typer.Option(help="The PriorityClass of coordinators' pods; empty: none.")
    ] = names.COORDINATOR_PRIORITY,
    node_selector: Annotated[
        list[str] | None,
        typer.Option(help="key=value of the nodes that coordinators may run on, repeatable.", show_default=False),
    ] = None,
    toleration: Annotated[
        list[str] | None,
        typer.Option(
            help="Of coordinators: key[=value][:effect] of a taint, without a value any; repeatable.",
            show_default=False,
        ),
    ] = None,
    coordinator_metrics: Annotated[
        str, typer.Option(help="Where coordinators serve metrics; empty: nowhere. Not with --host-network.")
    ] = f"0.0.0.0:{names.METRICS_PORT}",
    grace: Annotated[str, typer.Option(help="How long a coordinator stays after its job has ended.")] = "10m",
    sweep: Annotated[str, typer.Option(help="How often everything is looked at anew.")] = "5m",
    metrics: Annotated[str, typer.Option(help="host:port of /metrics, /healthz and /readyz.", show_default=False)] = "",
) -> None:
    """Keep a coordinator for each attempt of each armed job."""
    from sameshot.errors import UsageError
    from sameshot.operator.config import OperatorConfig, Timings, Toleration
    from sameshot.operator.run import serve

    labels = [each.partition("=") for each in node_selector or ()]
    if not all(key and equals for key, equals, _ in labels):
        raise UsageError(f"--node-selector is {', '.join(node_selector or ())}; it must be key=value.")
    config = OperatorConfig(
        archive=archive,
        image=image,
        namespaces=tuple(namespace or ()),
        api_server=api_server,
        token_file=api_token_file,
        ca_file=api_ca_file,
        coordinators_api_server=coordinators_api_server,
        host_network=host_network,
        reach=endpoint,
        system_namespace=system_namespace,
        coordinators_namespace=coordinators_namespace,
        agents_namespace=agents_namespace,
        account=account,
        coordinator_metrics=coordinator_metrics,
        metrics=metrics,
        pull_secrets=tuple(pull_secret or ()),
        node_selector=tuple((key, value) for key, _, value in labels),
        tolerations=tuple(map(Toleration.parse, toleration or ())),
        max_coordinators=max_coordinators_per_namespace,
        priority_class=priority_class,
        timings=Timings(grace_s=milliseconds(grace) / 1000, sweep_s=milliseconds(sweep) / 1000),
    )
    run_service(serve(config))
