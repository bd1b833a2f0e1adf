"""A process that reads traces, one at a time: `python -m sameshot.agent.verifyworker`, spoken to in JSON lines.

Reading is O(bytes) and holds the interpreter, so it happens outside the agent; and a file that brings the reader down
(out of memory, a bug in native code) brings only this process down. It ends with the agent: at end of input, or by
the kernel's hand when the agent is killed, because nobody may go on writing into a spool that a restarted agent owns.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from pathlib import Path
from typing import BinaryIO

import msgspec

from sameshot.agent import safefs
from sameshot.agent.capturebook import Verified
from sameshot.errors import TraceError
from sameshot.model import BoundBy, Encoding
from sameshot.trace.stored import verify_and_store
from sameshot.trace.verify import Expectation

_PR_SET_PDEATHSIG = 1  # prctl(2)


class Job(msgspec.Struct, frozen=True):
    """Read `path`, expect this identity, leave the bytes for the archive at `stored`.

    With `columns` its events go there as Parquet, unless that fails or is not done `columns_by` (monotonic clock).
    """

    path: str
    stored: str
    registration: str
    rank: int | None
    bound_by: BoundBy
    encoding: Encoding
    columns: str = ""
    columns_by: float | None = None


class Broken(msgspec.Struct, frozen=True):
    """The trace is not what it should be: a `TraceError` on its way to the agent."""

    kind: str
    detail: str
    byte_offset: int | None = None
    event_index: int | None = None


class Answer(msgspec.Struct, frozen=True):
    """Exactly one is set; `errno` with `trouble` where the system refused something.

    `no_columns` is why a verified trace goes without the columns that were wanted.
    """

    verified: Verified | None = None
    broken: Broken | None = None
    trouble: str | None = None
    errno: int | None = None
    no_columns: str = ""


def scratch_of(job: Job, pid: int) -> tuple[Path, Path]:
    """Where the process `pid` writes bytes and columns while it is not done: names that no other process uses."""
    return Path(f"{job.stored}.{pid}"), Path(f"{job.columns or job.stored + '.columns'}.{pid}")


def do(job: Job) -> Answer:
    scratch, columns_scratch = scratch_of(job, os.getpid())
    held = -1
    try:
        held = safefs.hold_open(job.path)
        stored = verify_and_store(
            Path(job.path),
            Expectation(registration=job.registration, rank=job.rank, bound_by=job.bound_by),
            store_as=scratch,
            encoding=job.encoding,
            columns_as=columns_scratch if job.columns else None,
            columns_by=job.columns_by,
        )
        found, columns, no_columns = stored.trace, stored.columns, stored.trouble
        if columns is not None:
            try:
                os.replace(columns_scratch, job.columns)
            except OSError as error:
                columns, no_columns = None, str(error)
        verified = Verified(
            stored_size=found.size,
            stored_sha256=found.sha256,
            encoding=job.encoding,
            raw_size=found.raw_size,
            raw_sha256=found.raw_sha256,
            window_start_ns=found.window_start_ns,
            window_end_ns=found.window_end_ns,
            columns=columns,
        )
        os.replace(scratch, job.stored)
        return Answer(verified=verified, no_columns=no_columns)
    except TraceError as error:
        return Answer(broken=Broken(error.kind, error.detail, error.byte_offset, error.event_index))
    except OSError as error:
        return Answer(trouble=str(error), errno=error.errno)
    except MemoryError:
        return Answer(trouble="out of memory")
    except Exception as error:  # the agent decides what a broken reader means for the trace
        return Answer(trouble=f"{type(error).__name__}: {error}")
    finally:
        if held >= 0:
            os.close(held)
        for path in (scratch, columns_scratch):
            with contextlib.suppress(OSError):
                path.unlink()


def main(arguments: list[str]) -> None:
    agent, niceness = int(arguments[0]), int(arguments[1])
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != agent:
        return  # it was gone before the kernel knew what to do then
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C on a terminal is the agent's to handle
    os.nice(niceness)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints must not break the dialogue
    serve(sys.stdin.buffer, answers)


def serve(jobs: BinaryIO, answers: BinaryIO) -> None:
    for line in jobs:
        answers.write(msgspec.json.encode(do(msgspec.json.decode(line, type=Job))) + b"\n")
        answers.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
