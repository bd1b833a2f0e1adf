"""One function over many traces, in processes of their own: bounded, named when one dies, gone when nobody waits.

A process costs its start and its imports, about a second of CPU, so the caller decides whether that pays.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from sameshot.errors import SameshotError
from sameshot.lean import import_numpy

if TYPE_CHECKING:  # most captures are read in one process
    from concurrent.futures import ProcessPoolExecutor

_Job = TypeVar("_Job")
_Result = TypeVar("_Result")

_PR_SET_PDEATHSIG = 1  # prctl(2)
_WAITING, _RUNNING, _DONE = range(3)


class WorkerKilled(SameshotError):
    """A process that read traces was killed in the middle."""


def in_processes(
    work: Callable[[_Job], _Result], jobs: Sequence[_Job], workers: int, *, name: Callable[[_Job], str]
) -> Generator[tuple[_Job, _Result], None, None]:
    """Every job with its result, in the order in which they end; the first error ends everything.

    `work` and the jobs must be importable and picklable. Closing the iterator, or any exception, ends the processes at
    once. Raises WorkerKilled naming what was being read when a process died.
    """
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from concurrent.futures.process import BrokenProcessPool

    # spawn: a fork of a process with threads (gRPC, object stores) may hang.
    context = multiprocessing.get_context("spawn")
    progress = context.RawArray("b", [_WAITING] * len(jobs))
    pool = ProcessPoolExecutor(
        min(workers, len(jobs)), mp_context=context, initializer=_begin, initargs=(os.getpid(), progress)
    )
    finished = False
    try:
        waiting = {pool.submit(_do, work, index, job): job for index, job in enumerate(jobs)}
        for future in as_completed(waiting):
            yield waiting[future], future.result()
        finished = True
    except BrokenProcessPool as error:
        reading = [name(job) for job, state in zip(jobs, progress, strict=True) if state == _RUNNING]
        raise WorkerKilled(
            f"A process that read traces was killed while {' and '.join(reading) or 'none'} was being read (out of "
            "memory?); nothing was written. Try again with fewer workers."
        ) from error
    finally:
        _end(pool, at_once=not finished)


def _begin(parent: int, progress: Any) -> None:
    """In each process: it ends with its parent, and Ctrl-C on a terminal is the parent's to handle."""
    global _progress
    _progress = progress
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)  # it was gone before the kernel knew what to do then
    import_numpy()  # before what there is to do is unpickled, which brings all imports


_progress: Any = None


def _do(work: Callable[[Any], Any], index: int, job: Any) -> Any:
    _progress[index] = _RUNNING
    result = work(job)
    _progress[index] = _DONE
    return result


def _end(pool: ProcessPoolExecutor, *, at_once: bool) -> None:
    """`at_once`: without waiting for what is being read. Nobody wants it any more, and nothing half-done harms."""
    processes = list((getattr(pool, "_processes", None) or {}).values())  # Python 3.14 has kill_workers()
    pool.shutdown(wait=not at_once, cancel_futures=True)
    for process in processes:
        if at_once:
            process.kill()
        process.join()
