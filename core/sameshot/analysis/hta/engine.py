"""HTA (HolisticTraceAnalysis) as a second engine, on the same verified bytes.

HTA is handed one file per rank, by the manifest's word: left alone with a folder it drops ranks without a sound. It
runs in a process that may crash, hang or be killed for its memory; whatever happens becomes a named failure of one
analysis or rank, and everything else goes on. HTA itself is an extra: `pip install 'sameshot[hta]'`.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq

from sameshot.analysis.hta.result import ANALYSES, LOADING, SHOWN_ROWS, HtaFailure, HtaResult, HtaTable
from sameshot.analysis.hta.worker import Note, Task
from sameshot.analysis.load import artifact_of, who
from sameshot.errors import NotFound, SameshotError, TraceError, UsageError, VerificationFailed
from sameshot.manifest import Manifest, Target
from sameshot.storage import Storage
from sameshot.trace.source import Source

_BLOCK = 1 << 20
_LIMIT_S, _LIMIT_S_PER_MB = 120.0, 1.0  # HTA needs 0.13 CPU-s per MB to load, a third of that per analysis (measured)
_POLL_S = 0.1
_SETTINGS = ("HTA_", "CRITICAL_PATH_")  # of HTA, in the environment: its results are to be those of its defaults


def require_hta() -> None:
    """Raises UsageError where HTA is not installed."""
    if importlib.util.find_spec("hta") is None or importlib.util.find_spec("pandas") is None:
        raise UsageError(
            "The engine hta needs HolisticTraceAnalysis, which is not installed here: pip install 'sameshot[hta]'. "
            "The engine native needs nothing more."
        )


def run_hta(
    manifest: Manifest, storage: Storage, out: Path, *, prefix: str = "", limit_s: float | None = None
) -> HtaResult:
    """Run HTA's six analyses on all ranks that the manifest has a trace of.

    `prefix` is the folder of the capture in `storage` ("" or "…/"). Writes `hta_<table>.parquet` into `out`, each
    atomically. `limit_s` is how long one step (loading a rank, one analysis) may take; by default that grows with the
    traces. The decompressed traces lie in a private temporary folder (under $TMPDIR) until HTA has ended.

    Raises UsageError where HTA is not installed, VerificationFailed where bytes are not what the manifest states, and
    StorageError. What HTA can't do is no error but a part of the result.
    """
    require_hta()
    began = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    for stale in out.glob("hta_*.parquet"):
        stale.unlink()
    with tempfile.TemporaryDirectory(prefix="sameshot-hta-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        targets, failures = _by_rank(manifest)
        files = {rank: _stage(storage, prefix, target, folder) for rank, target in targets.items()}
        run = _Run(files, folder, out, limit_s if limit_s is not None else _limit(targets))
        run.failures += failures
        run.all()
    return HtaResult(
        version=run.version,
        ranks=tuple(sorted(run.loaded)),
        tables=tuple(_table(out, name) for name in run.tables),
        failures=tuple(run.failures),
        seconds=round(time.monotonic() - began, 3),
    )


def _by_rank(manifest: Manifest) -> tuple[dict[int, Target], list[HtaFailure]]:
    found = [target for target in manifest.targets if target.artifact is not None]
    times = Counter(target.identity.rank for target in found)
    targets: dict[int, Target] = {}
    failures = []
    for target in found:
        rank = target.identity.rank
        if rank is None:
            failures.append(HtaFailure(LOADING, None, "no rank", f"{target.target_id} has none, and HTA needs one"))
        elif times[rank] > 1:
            failures.append(HtaFailure(LOADING, rank, "ambiguous", f"{target.target_id} is not its only target"))
        else:
            targets[rank] = target
    return targets, failures


def _limit(targets: dict[int, Target]) -> float:
    return _LIMIT_S + _LIMIT_S_PER_MB * sum(artifact_of(target).raw_size for target in targets.values()) / 1e6


def _stage(storage: Storage, prefix: str, target: Target, folder: Path) -> str:
    """The decoded bytes of one trace as a file of our own, compared with the manifest while they are written."""
    artifact = artifact_of(target)
    path = folder / f"rank_{target.identity.rank}.json"
    size, digest = 0, hashlib.sha256()
    try:
        with storage.open_read(prefix + artifact.uri) as stream, path.open("wb") as file:
            source = Source(stream, _BLOCK)
            for _, block in source.blocks():
                size += len(block)
                digest.update(block)
                file.write(block)
    except NotFound as error:
        raise VerificationFailed(
            f"The trace of {who(target)} is not at {artifact.uri}, where the manifest says it is; HTA was not run."
        ) from error
    except TraceError as error:
        raise VerificationFailed(
            f"The trace of {who(target)} ({artifact.uri}) can't be decompressed ({error}); HTA was not run."
        ) from error
    except OSError as error:
        raise SameshotError(
            f"No copy of the trace of {who(target)} for HTA in {folder}: {error}. HTA needs all traces decompressed "
            "there; set TMPDIR to a folder with more room."
        ) from error
    if (size, digest.hexdigest()) != (artifact.raw_size, artifact.raw_sha256):
        raise VerificationFailed(
            f"The trace of {who(target)} ({artifact.uri}) decodes to {size} bytes with sha256 {digest.hexdigest()}, "
            f"the manifest states {artifact.raw_size} with {artifact.raw_sha256}; HTA was not run."
        )
    return str(path)


class _Run:
    """HTA's process, again and again until every analysis has a result or a named failure."""

    def __init__(self, files: dict[int, str], folder: Path, out: Path, limit_s: float) -> None:
        self.version: str | None = None
        self.loaded: set[int] = set()
        self.tables: list[str] = []
        self.failures: list[HtaFailure] = []
        self._files = files
        self._folder = folder
        self._out = out
        self._limit_s = limit_s
        self._pending = list(ANALYSES)

    def all(self) -> None:
        while self._files and self._pending:
            task = Task(
                files=self._files,
                analyses=tuple(self._pending),
                out=str(self._out.absolute()),
                notes=str(self._folder / "notes"),
            )
            cause = self._once(task)
            notes = _notes(Path(task.notes))
            doing = self._take(notes)
            if cause is None or not self._pending:  # how it ended does not matter once all is noted
                return
            error, detail = cause
            if doing is None or (doing.analysis == LOADING and doing.rank is None):
                self.failures.append(HtaFailure(LOADING, None, error, detail))
                return
            self.failures.append(HtaFailure(doing.analysis, doing.rank, error, detail))
            if doing.analysis == LOADING:
                del self._files[doing.rank]  # type: ignore[arg-type]  # has a rank: see above
            else:
                self._pending.remove(doing.analysis)

    def _take(self, notes: list[Note]) -> Note | None:
        """Keep what was noted. Returns what was being done last."""
        doing = None
        self.loaded = set()
        for note in notes:
            if note.what == "doing":
                doing = note
            elif note.what == "version":
                self.version = note.detail
            elif note.what == "loaded" and note.rank is not None:
                self.loaded.add(note.rank)
            elif note.what == "table":
                self.tables.append(note.name)
            elif note.what == "done":
                doing = None
                self._pending.remove(note.analysis)
            elif note.what == "failed":
                self.failures.append(HtaFailure(note.analysis, note.rank, note.error, note.detail))
                if note.analysis == LOADING and note.rank is not None:
                    self._files.pop(note.rank, None)
        return doing

    def _once(self, task: Task) -> tuple[str, str] | None:
        """Run the process. Returns how it failed, if it did."""
        path, log = self._folder / "task.json", self._folder / "log"
        path.write_bytes(msgspec.json.encode(task))
        Path(task.notes).write_bytes(b"")
        environment = {key: value for key, value in os.environ.items() if not key.startswith(_SETTINGS)}
        command = [sys.executable, "-P", "-m", "sameshot.analysis.hta.worker", str(path)]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,  # its end tells the process that we are gone
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
            )
            try:
                ended = self._wait(process, Path(task.notes))
            finally:
                _end(process)
        if not ended:
            return "timeout", f"nothing came of it within {self._limit_s:g} s, and HTA was stopped"
        if process.returncode == 0:
            return None
        if process.returncode < 0:
            number = -process.returncode
            hint = " (out of memory?)" if number == signal.SIGKILL else ""
            return "killed", f"the process was ended by {signal.Signals(number).name}{hint}"
        lines = log.read_bytes().decode(errors="replace").strip().splitlines()
        return "crashed", lines[-1][:300] if lines else f"exit code {process.returncode}"

    def _wait(self, process: subprocess.Popen[bytes], notes: Path) -> bool:
        """False: one step took too long."""
        size, deadline = 0, time.monotonic() + self._limit_s
        while time.monotonic() < deadline:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_S)
                return True
            if (now := notes.stat().st_size) != size:
                size, deadline = now, time.monotonic() + self._limit_s
        return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """End it with all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        process.stdin.close()


def _notes(path: Path) -> list[Note]:
    """A line that was cut off when the process died says nothing."""
    lines = path.read_bytes().split(b"\n")[:-1]
    return [msgspec.json.decode(line, type=Note) for line in lines]


def _table(out: Path, name: str) -> HtaTable:
    file = f"hta_{name}.parquet"
    table = pq.read_table(out / file)
    columns = [column.to_pylist() for column in table.slice(0, SHOWN_ROWS).columns]
    rows = tuple(tuple(_plain(value) for value in row) for row in zip(*columns, strict=True))
    return HtaTable(name, file, tuple(table.column_names), rows, table.num_rows)


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
