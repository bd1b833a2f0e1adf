"""A bounded number of threads that never keep a process alive.

A call into a file system that hangs (a dead NFS server) can't be ended from outside: its thread is lost until the
server is back. So whoever may hang gets threads of its own, and nobody waits for them for ever at the end, neither
asyncio.run nor the interpreter, both of which join the threads of a plain ThreadPoolExecutor without a limit.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")

IDLE_S = 30.0  # a thread without work ends


class DaemonThreads(ThreadPoolExecutor):
    """At most `count` daemon threads; `shutdown` waits `grace_s` seconds for what is under way, then leaves it.

    A ThreadPoolExecutor by type only, because an event loop takes nothing else as its default executor.
    """

    def __init__(self, count: int, name: str, *, grace_s: float = 5.0) -> None:
        super().__init__(count, thread_name_prefix=name)
        self._count = count
        self._name = name
        self._grace_s = grace_s
        self._changed = threading.Condition()
        self._work: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._running = 0
        self._resting = 0
        self._ended = False

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        future: Future[_T] = Future()
        with self._changed:
            if self._ended:
                raise RuntimeError("cannot schedule new futures after shutdown")  # as the library says it
            self._work.append((future, partial(fn, *args, **kwargs)))
            if len(self._work) > self._resting and self._running < self._count:
                self._running += 1
                threading.Thread(target=self._serve, name=self._name, daemon=True).start()
            else:
                self._changed.notify()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        deadline = time.monotonic() + self._grace_s
        with self._changed:
            self._ended = True
            if cancel_futures:
                for future, _ in self._work:
                    future.cancel()
            self._changed.notify_all()
            while wait and self._running and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)

    def _serve(self) -> None:
        while (item := self._next()) is not None:
            future, work = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = work()
            except BaseException as error:  # it belongs to whoever waits for the future
                future.set_exception(error)
            else:
                future.set_result(result)
            del item, future, work

    def _next(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        """The next work; None: this thread ends."""
        with self._changed:
            until = time.monotonic() + IDLE_S
            while not self._work:
                if self._ended or time.monotonic() >= until:
                    self._running -= 1
                    self._changed.notify_all()
                    return None
                self._resting += 1
                self._changed.wait(until - time.monotonic())
                self._resting -= 1
            return self._work.popleft()
