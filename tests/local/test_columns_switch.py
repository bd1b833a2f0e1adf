"""`--no-columns` reaches the node: from `sameshot run` to its agent's command line, and from there to its config."""

from __future__ import annotations

import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import psutil
import pytest

from sameshot.agent import server
from sameshot.agent.config import AgentConfig
from sameshot.cli.main import invoke
from sameshot.local.run import LocalRun, LocalSetup


@pytest.mark.parametrize("columns", [True, False])
def test_a_local_run_tells_its_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: bool) -> None:
    with tempfile.TemporaryDirectory() as short:  # Kineto takes short paths only
        monkeypatch.setenv("SAMESHOT_RUNTIME_DIR", short)
        with LocalRun(LocalSetup(name="x", archive=str(tmp_path / "archive"), columns=columns)) as run:
            command = psutil.Process(run.services["agent-0"].pid).cmdline()
    assert ("--no-columns" in command) is not columns


@pytest.mark.parametrize("switch", [(), ("--columns",), ("--no-columns",)])
def test_an_agent_does_as_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, switch: tuple[str, ...]) -> None:
    seen: list[AgentConfig] = []

    def serve(config: AgentConfig) -> Coroutine[Any, Any, None]:
        async def nothing() -> None:
            seen.append(config)

        return nothing()

    monkeypatch.setattr(server, "serve", serve)
    where = ["--dir", str(tmp_path), "--spool", str(tmp_path), "--archive", str(tmp_path)]
    assert invoke(["agent", "--node", "a", *where, *switch]) == 0
    assert [config.columns for config in seen] == ["--no-columns" not in switch]
