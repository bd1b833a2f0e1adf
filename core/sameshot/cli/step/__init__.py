"""`sameshot step NAME`: one step of a workflow in a container, with flags in and a small JSON file out."""

from __future__ import annotations

import importlib

import typer

STEPS = {
    "capture": "capture",
    "cancel": "cancel",
    "analyze-rank": "analyze_rank",
    "reduce": "reduce",
    "analyze": "analyze",
    "compare": "compare",
}
"""Each step and the module of this package that has it; each module has `register(group)`."""


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        help="One step of a workflow: flags in, a small result as JSON out. Engines call these; see docs/steps.md.",
        no_args_is_help=True,
    )
    for module in dict.fromkeys(STEPS.values()):
        importlib.import_module(f"{__name__}.{module}").register(group)
    app.add_typer(group, name="step")
