"""Try one torch for real: does it enter daemon mode, and may it write traces where captures go?

A process imports torch against a real broker in a directory below the runtime root and is asked for a window of a tenth
of a second. Only its registration, and then its file, prove anything: torch ≥ 2.14, for one, refuses folders that
`KINETO_ONDEMAND_TRACE_DIR` does not allow, says nothing to the daemon, and writes elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import time
from pathlib import Path

import msgspec

from sameshot.model import Activity, CaptureSpec
from sameshot.profiler.broker import Broker
from sameshot.profiler.config import traced_file
from sameshot.profiler.daemon import TriggerRequest

_JOB_ID = 1
_PROGRAM = """
import time, torch
print(torch.__version__, flush=True)
while True:
    torch.ones(8).sum()
    time.sleep(0.01)
"""
_SPEC = CaptureSpec(duration_ms=100, activities=(Activity.CPU,), warmup_ms=0)
# Beginning at once still takes Kineto about two seconds, and a loaded machine some more.
TRACE_TIMEOUT_S = 30.0


class TorchProbe(msgspec.Struct, frozen=True):
    """What was seen. `trace_bytes` is None where no file appeared at its place; `error` is the end of its stderr."""

    version: str | None = None
    registered: bool = False
    trace_bytes: int | None = None
    error: str = ""


def probe_torch(python: str, folder: Path, timeout_s: float = 60.0) -> TorchProbe:
    """Run the probe in `folder`, which must be empty and short enough for sockets."""
    return asyncio.run(_probe(python, folder, timeout_s))


async def _probe(python: str, folder: Path, timeout_s: float) -> TorchProbe:
    sockets, captures, config, errors = (folder / name for name in ("ipc", "captures", "kineto.conf", "stderr"))
    sockets.mkdir()
    captures.mkdir()
    config.write_text("ENABLE_IPC_FABRIC=true\nON_DEMAND_CONFIG_UPDATE_INTERVAL_SECS=1\n")
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("SAMESHOT_")},
        "KINETO_USE_DAEMON": "1",
        "KINETO_IPC_SOCKET_DIR": str(sockets),
        "KINETO_ONDEMAND_TRACE_DIR": str(captures),
        "KINETO_CONFIG": str(config),
        "SLURM_JOB_ID": str(_JOB_ID),
    }
    broker = Broker(sockets)
    await broker.start()
    try:
        with errors.open("wb") as stderr:
            process = subprocess.Popen([python, "-c", _PROGRAM], stdout=subprocess.PIPE, stderr=stderr, env=environment)
        try:
            return await _observe(broker, process, captures, errors, timeout_s)
        finally:
            with contextlib.suppress(OSError):
                process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
    finally:
        await broker.close()


async def _observe(
    broker: Broker, process: subprocess.Popen[bytes], captures: Path, errors: Path, timeout_s: float
) -> TorchProbe:
    deadline = time.monotonic() + timeout_s
    while (_JOB_ID, process.pid) not in await broker.registered():
        if process.poll() is not None or time.monotonic() > deadline:
            lines = errors.read_text(errors="replace").strip().splitlines()
            return TorchProbe(error=lines[-1] if lines and process.poll() is not None else "")
        await asyncio.sleep(0.1)
    assert process.stdout is not None
    version = (await asyncio.to_thread(process.stdout.readline)).decode().strip() or None

    path = str(captures / "trace.json")
    request = TriggerRequest(
        capture_id="doctor",
        target_id="doctor",
        pid=process.pid,
        kineto_job_id=_JOB_ID,
        spec=_SPEC,
        start_at_ns=time.time_ns(),
        output_path=path,
    )
    await broker.trigger([request])
    trace = Path(traced_file(path, process.pid))
    deadline = time.monotonic() + TRACE_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        if trace.exists():
            return TorchProbe(version=version, registered=True, trace_bytes=trace.stat().st_size)
        await asyncio.sleep(0.1)
    return TorchProbe(version=version, registered=True)
