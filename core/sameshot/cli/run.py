"""`sameshot run -- COMMAND`: the user's own command, armed, with an agent and a coordinator beside it."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from sameshot.cli.options import pairs
from sameshot.cli.telling import say
from sameshot.errors import UsageError
from sameshot.model import CapturePolicy
from sameshot.profiler.daemon import BackendName

if TYPE_CHECKING:  # what a job needs is heavy: whoever only asks for help does not pay for it
    from sameshot.local.run import LocalRun

# After the command ended, traces that are still being verified or archived get this long.
SETTLE_S = 120.0

ARCHIVE_HELP = "Where traces go: a directory or s3://bucket/prefix (credentials from AWS_* variables)."


def register(app: typer.Typer) -> None:
    app.command(
        "run",
        context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False},
        epilog="Examples: sameshot run -- torchrun --nproc-per-node 2 train.py | "
        "sameshot run --name bert --label team=nlp --archive s3://traces/dev -- torchrun train.py | "
        "sameshot run --single -- python train.py",
    )(run)


def run(
    command: Annotated[list[str], typer.Argument(help="The training command, after `--`.", metavar="-- COMMAND …")],
    name: Annotated[str | None, typer.Option(help="Job name; default: the script's stem.", show_default=False)] = None,
    series: Annotated[
        str | None, typer.Option(help="What makes runs comparable over time; default: the name.", show_default=False)
    ] = None,
    label: Annotated[list[str] | None, typer.Option(help="key=value, repeatable.", show_default=False)] = None,
    archive: Annotated[str, typer.Option(envvar="SAMESHOT_ARCHIVE", help=ARCHIVE_HELP)] = "sameshot-archive",
    backend: Annotated[BackendName, typer.Option(help="broker is built in; dynolog needs --dynolog.")] = (
        BackendName.BROKER
    ),
    dynolog: Annotated[
        Path | None,
        typer.Option(envvar="SAMESHOT_DYNOLOG", help="Program of the stock dynolog daemon.", show_default=False),
    ] = None,
    policy: Annotated[
        Path | None, typer.Option(help="JSON file with a CapturePolicy (limits per job).", show_default=False)
    ] = None,
    single: Annotated[bool, typer.Option("--single", help="A single process without any launcher.")] = False,
    arm_spawned: Annotated[
        bool, typer.Option("--arm-spawned", help="The script starts its ranks itself with mp.spawn.")
    ] = False,
    columns: Annotated[
        bool,
        typer.Option("--columns/--no-columns", help="Archive the events as Parquet, too: analysis is faster then."),
    ] = True,
) -> None:
    """Run a training command so that it can be captured at any time. Its exit code is returned unchanged."""
    from sameshot.local.run import LocalRun, LocalSetup

    setup = LocalSetup(
        name=name or name_of(command),
        archive=resolved(archive),
        series=series,
        labels=pairs(label or [], "label"),
        backend=backend,
        dynolog=dynolog if backend is BackendName.DYNOLOG else None,
        policy=read_policy(policy),
        single=single,
        arm_spawned=arm_spawned,
        columns=columns,
    )
    local = LocalRun(setup)
    try:
        with local:
            code = _train(local, command)
            for unsettled in local.settle(SETTLE_S):
                _warn(unsettled)
    finally:
        for path in local.left_behind:
            _warn(f"not archived, kept: {path}")
    raise typer.Exit(code)


def _warn(text: str) -> None:
    say(f"sameshot: {text}", fg="yellow")


def _train(local: LocalRun, command: list[str]) -> int:
    from sameshot.local.arming import command_path

    environment = local.environment()
    environment["PATH"] = command_path(environment)
    try:
        child = subprocess.Popen(command, env=environment)
    except OSError as error:
        raise UsageError(f"{shlex.join(command)} can't be started: {error.strerror}.") from None
    say(
        f"sameshot: job {local.setup.name} is armed; capture it with: sameshot capture --job {local.setup.name} --wait",
        fg="cyan",
    )
    with _signals_to(child):
        code = child.wait()
    return 128 - code if code < 0 else code


@contextlib.contextmanager
def _signals_to(child: subprocess.Popen[bytes]) -> Iterator[None]:
    """Pass signals on. A terminal's Ctrl-C reaches the child by itself: sent twice, launchers take it for "kill"."""

    def forward(number: int, _: object) -> None:
        if number == signal.SIGINT and sys.stdin.isatty():
            return
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(number)

    saved = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in saved.items():
            signal.signal(number, handler)


def name_of(command: list[str]) -> str:
    """The stem of the first Python script on the command line, else the program's name."""
    scripts = [part for part in command if part.endswith(".py")]
    stem = Path(scripts[0] if scripts else command[0]).stem
    usable = "".join(char if char.isalnum() or char in "._-" else "-" for char in stem).strip("._-")
    return usable or "job"


def resolved(archive: str) -> str:
    """A directory becomes absolute, since services run elsewhere; URLs stay."""
    return archive if "://" in archive else os.path.abspath(archive)


def read_policy(path: Path | None) -> CapturePolicy:
    if path is None:
        return CapturePolicy()
    try:
        return msgspec.json.decode(path.read_bytes(), type=CapturePolicy)
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(f"The capture policy {path} can't be read: {error}.") from None
