"""The `sameshot` command, also as `kubectl sameshot`: assembles the subcommands and turns errors into exit codes.

Exit codes: 0 fully succeeded, 1 other error, 2 usage, 3 partial, 4 failed, 5 capture unknown, 6 no such job,
7 cancelled, 75 try again, 77 denied, 130 interrupted, 143 terminated.
"""

from __future__ import annotations

import importlib
import re
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import sameshot

if TYPE_CHECKING:  # processes that read traces import this module again, and run no command line
    import typer

COMMANDS = {
    "run": "run",
    "arm": "arm",
    "jobs": "jobs",
    "workers": "jobs",
    "capture": "capture",
    "watch": "capture",
    "cancel": "capture",
    "captures": "capture",
    "manifest": "manifest",
    "analyze": "analyze",
    "compare": "compare",
    "merge": "merge",
    "history": "history",
    "step": "step",
    "rights": "rights",
    "status": "status",
    "doctor": "doctor",
    "demo": "demo",
    "agent": "services",
    "coordinator": "services",
    "webhook": "webhook",
    "operator": "operator",
    "gc": "gc",
}
"""Each command and the module of `sameshot.cli` that has it: a command costs its own imports and no other's."""


def application(arguments: Sequence[str] = ()) -> typer.Typer:
    """The command line: with all commands, or with no more than the module of the one that `arguments` begin with."""
    import typer

    app = typer.Typer(
        name="sameshot",
        help="On-demand profiling for distributed PyTorch training: a few seconds of traces from every rank, now.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        epilog="Start with: sameshot run -- torchrun --nproc-per-node 2 train.py, then in another terminal: "
        "sameshot capture --duration 2s --wait",
    )

    def version(wanted: bool) -> None:
        if wanted:
            typer.echo(f"sameshot {sameshot.__version__}")
            raise typer.Exit

    @app.callback()
    def root(
        _: bool = typer.Option(False, "--version", callback=version, is_eager=True, help="Print the version."),
    ) -> None:
        pass

    wanted = COMMANDS.get(arguments[0]) if arguments else None
    for name in dict.fromkeys(COMMANDS.values()) if wanted is None else (wanted,):
        importlib.import_module(f"sameshot.cli.{name}").register(app)
    if wanted is None:
        _add_plugins(app)
    return app


def _add_plugins(app: typer.Typer) -> None:
    """What plugins add (entry points `sameshot.commands`), whether or not their engine is installed."""
    from importlib.metadata import entry_points

    for plugin in entry_points(group="sameshot.commands"):
        plugin.load().register(app)


_OURS = re.compile(r"(?<![\w./'\"=:-])sameshot (?=[a-z-])")


def _called_otherwise(app: typer.Typer, program: str) -> None:
    """Examples in help texts, as this command was called."""
    infos: list[Any] = [app.info, *app.registered_commands]
    for info in infos:
        if isinstance(info.epilog, str):
            info.epilog = _OURS.sub(f"{program} ", info.epilog)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            _called_otherwise(group.typer_instance, program)


class Terminated(SystemExit):
    """SIGTERM, as an exception, so that what is running can clean up."""


def _on_sigterm(*_: object) -> NoReturn:
    raise Terminated(143)


def main() -> None:
    signal.signal(signal.SIGTERM, _on_sigterm)
    sys.exit(invoke(sys.argv[1:]))


def invoke(arguments: list[str]) -> int:
    """Run one command line; returns the exit code and prints errors to standard error."""
    import typer

    from sameshot.cli.telling import as_called, expected, program, say

    # Newer versions of typer carry their own click; its public names lead to the right base class either way.
    refused: type[typer.BadParameter] = next(
        base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException"
    )
    try:
        app = application(arguments)
        if (called := program()) != "sameshot":
            _called_otherwise(app, called)
        result = app(args=arguments, standalone_mode=False, prog_name=called)
    except refused as error:
        error.show()
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        say("interrupted", fg="yellow")
        return 130
    except Exception as error:
        if (told := expected(error)) is None:
            raise
        code, words = told
        if words:
            say(f"error: {as_called(words)}", fg="red")
        return code
    return result if isinstance(result, int) else 0


if __name__ == "__main__":
    main()
