"""`sameshot argo`: what people need who write their workflows in YAML."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Argo Workflows: templates as plain YAML.", no_args_is_help=True)
    app.add_typer(group, name="argo")
