"""`webhook`: the admission webhook, as the Deployment in deploy/webhook runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sameshot.cli.services import AddressFileOption, run_service


def register(app: typer.Typer) -> None:
    app.command(
        epilog="Example: sameshot webhook --certificate /certs/tls.crt --key /certs/tls.key (cert-manager's Secret)"
    )(webhook)


def webhook(
    certificate: Annotated[Path, typer.Option(help="PEM file with the certificate chain, leaf first.")],
    key: Annotated[Path, typer.Option(help="PEM file with its private key; both are taken anew when rotated.")],
    listen: Annotated[str, typer.Option(help="host:port (port 0: any; host *: all addresses).")] = "*:8443",
    address_file: AddressFileOption = None,
    metrics: Annotated[
        str, typer.Option(help="host:port of /metrics (Prometheus), /healthz and /readyz.", show_default=False)
    ] = "",
) -> None:
    """Arm pods that ask for it while they are created. A pod is never kept from starting."""
    from sameshot.webhook.server import WebhookConfig, serve

    config = WebhookConfig(certificate=certificate, key=key, listen=listen, address_file=address_file, metrics=metrics)
    run_service(serve(config))
