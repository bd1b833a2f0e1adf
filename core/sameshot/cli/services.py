"""`agent` and `coordinator`: the processes beside a job. `sameshot run` starts them; by hand for other set-ups.

The heavy imports stay inside the commands: `sameshot --help` and the client's commands don't pay for them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any

import typer

from sameshot.cli.logs import log_to_stderr
from sameshot.cli.run import ARCHIVE_HELP, read_policy, resolved
from sameshot.errors import UsageError
from sameshot.model import Encoding, JobRef
from sameshot.profiler.daemon import BackendName

ListenOption = Annotated[
    str, typer.Option(help="unix:/path or host:port (port 0: any); beyond loopback only with TLS.")
]
AddressFileOption = Annotated[
    Path | None, typer.Option(help="Written with the address in force once it serves.", show_default=False)
]
EndOption = Annotated[
    bool, typer.Option("--end-with-stdin", help="End when standard input closes (it belongs to the parent).")
]


def register(app: typer.Typer) -> None:
    app.command(
        epilog="Examples: sameshot agent --node a --dir /tmp/ss/n0 --spool /tmp/ss/spool --archive /data/traces; on a "
        "node of a cluster: sameshot agent --node $NODE --kubelet-root /var/lib/kubelet --archive s3://traces"
    )(agent)
    app.command(
        epilog="Examples: sameshot coordinator --name bert --uid 1 --agent 127.0.0.1:7001 --archive /data/traces; in a "
        "cluster: sameshot coordinator --config /etc/sameshot/config.json"
    )(coordinator)


def agent(
    node: Annotated[str, typer.Option(help="This node's name.")],
    archive: Annotated[str, typer.Option(help=ARCHIVE_HELP)],
    directory: Annotated[
        list[Path] | None,
        typer.Option("--dir", help="A $SAMESHOT_DIR of this node, repeatable.", show_default=False),
    ] = None,
    kubelet_root: Annotated[
        Path | None,
        typer.Option(
            help="Instead of --dir: serve the armed pods of this node; where the kubelet keeps them.",
            show_default=False,
        ),
    ] = None,
    spool: Annotated[
        Path | None,
        typer.Option(
            help="For finished traces; on the same mount as --dir. Default below --kubelet-root: sameshot-spool.",
            show_default=False,
        ),
    ] = None,
    api_server: Annotated[
        str,
        typer.Option(
            help="With --kubelet-root: https://host:port, where the usual address is none or can't be reached.",
            show_default=False,
        ),
    ] = "",
    api_token_file: Annotated[
        Path | None, typer.Option(help="Default: that of the pod's account, if any.", show_default=False)
    ] = None,
    api_ca_file: Annotated[
        Path | None, typer.Option(help="Default: that of the pod's account, if any.", show_default=False)
    ] = None,
    listen: ListenOption = "127.0.0.1:0",
    certificate: Annotated[
        Path | None,
        typer.Option(
            help="With --kubelet-root: PEM, to serve the cluster's coordinators by TLS (any --listen); waited for.",
            show_default=False,
        ),
    ] = None,
    key: Annotated[Path | None, typer.Option(help="With --certificate: its key.", show_default=False)] = None,
    coordinators_namespace: Annotated[
        str, typer.Option(help="With --certificate: where the accounts of coordinators are.")
    ] = "sameshot-coordinators",  # kube.names, which a local run does not load
    address_file: AddressFileOption = None,
    backend: Annotated[BackendName, typer.Option(help="What stands between this node and Kineto.")] = (
        BackendName.BROKER
    ),
    dynolog: Annotated[str, typer.Option(help="host:port of the stock daemon.")] = "127.0.0.1:1778",
    encoding: Annotated[Encoding, typer.Option(help="How traces are stored.")] = Encoding.GZIP,
    columns: Annotated[
        bool, typer.Option("--columns/--no-columns", help="Archive the events of each trace as Parquet, too.")
    ] = True,
    verify_workers: Annotated[int, typer.Option(help="Processes that read traces.", min=1)] = 1,
    spool_ttl_days: Annotated[
        float, typer.Option(help="Then traces that could not be archived leave the spool, with a warning.", min=0.01)
    ] = 7.0,
    metrics: Annotated[
        str | None,
        typer.Option(
            help="host:port of /metrics (Prometheus) and of /healthz and /readyz (probes).", show_default=False
        ),
    ] = None,
    end_with_stdin: EndOption = False,
) -> None:
    """Serve one node: registrations, dispatch, announce, verify, archive."""
    from sameshot.agent.callers import Callers, ThisMachine
    from sameshot.agent.config import AgentConfig
    from sameshot.agent.discovery import FixedDirs, WorkerDirs
    from sameshot.agent.server import serve
    from sameshot.api.transport import ServerTls

    if (certificate is None) is not (key is None) or (certificate is not None and kubelet_root is None):
        raise UsageError("--certificate and --key go together, and with --kubelet-root.")
    dirs: WorkerDirs
    callers: Callers = ThisMachine()
    if kubelet_root is not None and not directory:
        if backend is not BackendName.BROKER:
            raise UsageError("In pods only the back end broker serves: a stock daemon can't reach their sockets.")
        from sameshot.agent.poddirs import PodDirs
        from sameshot.kube import names
        from sameshot.kube.inpod import way
        from sameshot.kube.reviews import TokenReviews

        spool = spool or kubelet_root / "sameshot-spool"
        api = way(api_server, api_token_file, api_ca_file).api("agent")
        dirs = PodDirs(api, node=node, root=kubelet_root, spool=spool)
        if certificate is not None:
            from sameshot.agent.coordinators import OUTAGE_S, Coordinators

            callers = Coordinators(TokenReviews(api, names.AGENT_AUDIENCE, outage_s=OUTAGE_S), coordinators_namespace)
    elif directory and kubelet_root is None and spool is not None:
        dirs = FixedDirs(*directory, node=node)
    else:
        raise UsageError("Say whom to serve: --dir (with --spool), or --kubelet-root.")
    config = AgentConfig(
        node=node,
        worker_dirs=dirs,
        spool=spool,
        archive=resolved(archive),
        listen=listen,
        tls=None if certificate is None or key is None else ServerTls(certificate, key),
        callers=callers,
        address_file=address_file,
        metrics=metrics,
        backend=backend,
        dynolog=dynolog,
        encoding=encoding,
        columns=columns,
        verify_workers=verify_workers,
        spool_ttl_s=spool_ttl_days * 86_400,
    )
    run_service(serve(config), end_with_stdin=end_with_stdin)


def coordinator(
    name: Annotated[str | None, typer.Option(help="The job's name.", show_default=False)] = None,
    uid: Annotated[str | None, typer.Option(help="The job's uid.", show_default=False)] = None,
    archive: Annotated[str | None, typer.Option(help=ARCHIVE_HELP, show_default=False)] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="In a cluster, instead of all other options: the file of the operator's.", show_default=False
        ),
    ] = None,
    agent: Annotated[list[str] | None, typer.Option(help="An agent's address, repeatable.", show_default=False)] = None,
    agents_file: Annotated[
        Path | None, typer.Option(help="More agents' addresses, one a line; may grow.", show_default=False)
    ] = None,
    namespace: Annotated[str, typer.Option(help="The job's namespace.")] = "local",
    attempt: Annotated[int, typer.Option(help="The controller's attempt.")] = 0,
    series: Annotated[str, typer.Option(help="What makes runs comparable.", show_default=False)] = "",
    backend: Annotated[BackendName, typer.Option(help="What the agents use.")] = BackendName.BROKER,
    policy: Annotated[Path | None, typer.Option(help="JSON file with a CapturePolicy.", show_default=False)] = None,
    listen: ListenOption = "127.0.0.1:0",
    address_file: AddressFileOption = None,
    end_with_stdin: EndOption = False,
) -> None:
    """Serve one job attempt: freeze, fan out, converge, publish."""
    if config is not None:
        if any(each is not None for each in (name, uid, archive, agent, agents_file, policy)):
            raise UsageError("--config goes alone: all the rest stands in that file.")
        from sameshot.coordinator.cluster import serve_in_cluster
        from sameshot.coordinator.configfile import read_config

        run_service(serve_in_cluster(read_config(config)), end_with_stdin=end_with_stdin)
        return
    if name is None or uid is None or archive is None:
        raise UsageError("Say which job: --name, --uid and --archive; or --config in a cluster.")
    from sameshot.coordinator.config import CoordinatorConfig
    from sameshot.coordinator.server import serve

    local = CoordinatorConfig(
        job=JobRef(namespace, name, uid, attempt),
        archive=resolved(archive),
        series=series,
        agents=tuple(agent or ()),
        agents_file=agents_file,
        backend=backend,
        policy=read_policy(policy),
        listen=listen,
        address_file=address_file,
    )
    run_service(serve(local), end_with_stdin=end_with_stdin)


def run_service(service: Coroutine[Any, Any, None], *, end_with_stdin: bool = False) -> None:
    """Run a service until SIGTERM, SIGINT or, where asked, the end of standard input."""
    log_to_stderr()
    if end_with_stdin:
        # A thread that may stay in its read for ever must not keep the process alive: daemon.
        threading.Thread(target=_end_at_eof, daemon=True).start()
    import asyncio

    asyncio.run(service)


def _end_at_eof() -> None:
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    os.kill(os.getpid(), signal.SIGTERM)
