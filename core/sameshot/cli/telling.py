"""What the command line tells on standard error, and what an error means for its exit code."""

from __future__ import annotations

import contextlib
import signal
import sys
from pathlib import PurePath
from typing import Any

import typer

from sameshot.cli.shown import lines
from sameshot.errors import SameshotError

# What only some commands need; a plain install can talk to a coordinator without them.
_EXTRAS = dict.fromkeys(("backports", "backports.zstd", "isal", "jinja2", "numpy", "obstore", "pyarrow"), "local") | {
    "hera": "argo",
    "yaml": "argo",
    "kfp": "kfp",
    "aiohttp": "cluster",
    "cryptography": "cluster",
    "kopf": "cluster",
    "kubernetes": "kubernetes",
    "prometheus_client": "cluster",
    "websocket": "kubernetes",
}


PLUGIN = "kubectl-sameshot"
"""The script's name by which kubectl finds `kubectl sameshot`: it calls it by its path."""


def program() -> str:
    """How this command is called: `sameshot`, or `kubectl sameshot`."""
    return "kubectl sameshot" if PurePath(sys.argv[0] if sys.argv else "").stem == PLUGIN else "sameshot"


def as_called(words: str) -> str:
    """The same words, with commands of ours in backticks as they can be copied where this one was called."""
    return words.replace("`sameshot ", f"`{program()} ")


def say(words: str, **style: Any) -> None:
    """Words on standard error, at once, as `shown.lines` has them. Where nobody reads that any more, whoever says it
    goes on all the same: the exit code, and a step's result file, say how it ended."""
    with contextlib.suppress(OSError):
        typer.secho(lines(words), err=True, **style)


def expected(error: BaseException) -> tuple[int, str] | None:
    """The exit code and the words of an error that is no defect of ours; None: it is one, to be shown whole."""
    if isinstance(error, SameshotError):
        return error.exit_code, str(error)
    if isinstance(error, ModuleNotFoundError) and error.name in _EXTRAS:
        return 2, f"this needs {error.name}; install it with: pip install 'sameshot[{_EXTRAS[error.name]}]'"
    if isinstance(error, BrokenPipeError):
        return 128 + signal.SIGPIPE, ""  # whoever read our output has gone: nothing is claimed
    return None
