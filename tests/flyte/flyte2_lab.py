"""A user of Flyte 2: processes of its own virtual environment, in a folder and with a home of their own.

    user = User(tmp_path)
    user.writes("mine.py", "from sameshot_flyte.flyte2 import tasks\nTASKS = tasks('mine')\nanalyze = TASKS.analyze")
    ran = user.runs("mine", "analyze", manifest_uri=…)
    assert ran.outputs["analysis"]["late"] == "2"
    assert user.actions(ran)["mine.analyze"][0].attempts == 1

What happened in a run is read from the SDK's own records of local runs.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

DRIVER = Path(__file__).with_name("flyte2_driver.py")


def python() -> Path:
    """Of the environment beside ours, or $SAMESHOT_FLYTE2_PYTHON; skips where there is none."""
    found = Path(os.environ.get("SAMESHOT_FLYTE2_PYTHON") or f"{sys.prefix}-flyte2/bin/python")
    if not found.exists():
        pytest.skip(f"no environment with flyte 2 at {found}: `make test-full` makes one")
    return found


@dataclass(frozen=True)
class Ran:
    """A local run. `error`: its code and message, where it failed."""

    name: str
    outputs: dict[str, Any]
    error: dict[str, str] | None
    log: str


@dataclass(frozen=True)
class Action:
    """One task of a run. `report` is the page that it shows, if any."""

    status: str
    attempts: int
    hit: bool
    error: str
    report: str | None


class User:
    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder = folder
        self.work = folder / "work"
        self.raw = folder / "raw"
        self._home = folder / "home"
        self._runs: list[str] = []
        temporary = folder / "temporary"
        for each in (self.work, self._home, temporary):
            each.mkdir(exist_ok=True)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("FLYTE", "_U_", "AWS_"))}
        self.environment = {**kept, "HOME": str(self._home), "TMPDIR": str(temporary), **environment}

    def leaves(self) -> None:
        """Remove what local runs leave behind: where to put that the SDK can't be told."""
        for name in self._runs:
            shutil.rmtree(Path("/tmp/flyte/metadata", name), ignore_errors=True)

    def writes(self, name: str, text: str) -> Path:
        path = self.work / name
        path.write_text(text)
        return path

    def command(
        self, *argv: str, given: str = "", timeout_s: float = 240, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """A command of Flyte 2's environment: `python`, `flyte`, `a0`."""
        program = python() if argv[0] == "python" else python().with_name(argv[0])
        return subprocess.run(
            [str(program), *argv[1:]],
            cwd=self.work,
            env={**self.environment, **environment},
            input=given,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    def drives(self, wish: str, **given: Any) -> Any:
        """What the driver says to a wish."""
        answer = self.folder / "answer.json"
        answer.unlink(missing_ok=True)
        done = self.command("python", str(DRIVER), str(answer), given=json.dumps({"wish": wish, **given}))
        assert done.returncode == 0, done.stdout + done.stderr
        return {**json.loads(answer.read_bytes()), "log": done.stdout + done.stderr}

    def runs(self, module: str, task: str, context: Mapping[str, Any] = {}, **inputs: Any) -> Ran:
        """A task of a module, by `flyte.with_runcontext(mode="local")`, to which `context` says more."""
        name = self.names()
        asked = {"name": name, "raw": str(self.raw), "module": module, "task": task, "inputs": inputs}
        return Ran(name, **self.drives("run", context=dict(context), **asked))

    def names(self) -> str:
        """A name for a local run, of which nothing is left in the end."""
        self._runs.append(f"sameshot-{uuid.uuid4().hex[:12]}")
        return self._runs[-1]

    def actions(self, ran: Ran) -> Mapping[str, list[Action]]:
        """By the name of their task, in the order in which they began."""
        found: dict[str, list[Action]] = {}
        with sqlite3.connect(self._home / ".flyte" / "local-cache" / "cache.db") as database:
            rows = database.execute(
                "SELECT task_name, status, attempt_count, cache_hit, error, output_path FROM runs "
                "WHERE run_name = ? AND parent_id IS NOT NULL ORDER BY start_time",
                (ran.name,),
            ).fetchall()
        for task, status, attempts, hit, error, place in rows:
            page = Path(place or "nowhere") / "report.html"
            shown = page.read_text() if page.exists() else None
            found.setdefault(task, []).append(Action(status, attempts, bool(hit), error or "", shown))
        return found
