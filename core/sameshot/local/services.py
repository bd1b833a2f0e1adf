"""The processes beside a local job: one agent per node and one coordinator, watched and restarted.

They live in sessions of their own, so a Ctrl-C in the terminal reaches the training and not them, and they end when
their standard input closes: should this process be killed, nothing of ours stays behind. A service that dies is started
again; training never notices.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec

from sameshot.errors import SameshotError


class ServiceCommand(msgspec.Struct, frozen=True):
    """How to start one service; `ready` is the file it writes its address to once it serves (None: it can't)."""

    name: str
    argv: tuple[str, ...]
    log: Path
    ready: Path | None = None


def sameshot_argv(*arguments: str) -> tuple[str, ...]:
    """Run our own command line with this very interpreter, whatever PATH says."""
    return (sys.executable, "-m", "sameshot.cli.main", *arguments)


class Service:
    """One running service process, restarted with a growing pause when it dies."""

    FIRST_PAUSE_S = 0.2
    LONGEST_PAUSE_S = 10.0
    HOPELESS_RESTARTS = 3  # before it has served once

    def __init__(self, command: ServiceCommand, environment: dict[str, str]) -> None:
        self.command = command
        self.restarts = 0
        self._environment = environment
        self._stopping = threading.Event()
        self._swap = threading.Lock()
        self._process = self._spawn()
        self._watcher = threading.Thread(target=self._watch, name=f"watch {command.name}", daemon=True)
        self._watcher.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_ready(self, timeout_s: float) -> str:
        """The address it serves at; raises SameshotError with the end of its log when it never comes up."""
        if self.command.ready is None:
            return ""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and self.restarts < self.HOPELESS_RESTARTS:
            with contextlib.suppress(OSError):
                if address := self.command.ready.read_text().strip():
                    return address
            time.sleep(0.05)
        how = (
            f"ended {self.restarts} times instead of starting" if self.restarts else f"was silent for {timeout_s:.0f} s"
        )
        raise SameshotError(f"The {self.command.name} {how}; the end of {self.command.log}:\n{_tail(self.command.log)}")

    def stop(self, timeout_s: float = 10.0) -> None:
        """End it: politely, then for sure."""
        with self._swap:
            self._stopping.set()
            process = self._process
        if process.stdin:
            with contextlib.suppress(OSError):
                process.stdin.close()
        process.terminate()
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._watcher.join(timeout_s)

    def _spawn(self) -> subprocess.Popen[bytes]:
        if self.command.ready is not None:
            self.command.ready.unlink(missing_ok=True)
        with self.command.log.open("ab") as log:
            return subprocess.Popen(
                self.command.argv,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
            )

    def _watch(self) -> None:
        pause = self.FIRST_PAUSE_S
        while True:
            began = time.monotonic()
            self._process.wait()
            if self._stopping.is_set():
                return
            if time.monotonic() - began > 60:
                pause = self.FIRST_PAUSE_S
            if self._stopping.wait(pause):
                return
            pause = min(pause * 2, self.LONGEST_PAUSE_S)
            with self._swap:
                if self._stopping.is_set():
                    return
                self._process = self._spawn()
                self.restarts += 1


def free_port() -> int:
    """A port of this machine that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _tail(log: Path, lines: int = 15) -> str:
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
    except OSError as error:
        return f"(no log: {error})"
