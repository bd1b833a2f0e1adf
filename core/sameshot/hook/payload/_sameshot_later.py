"""What a registered worker does once torch is there: it joins its process group, and one day it ends.

Tearing torch down under a running recording crashes the process (measured: 6 of 11 exits on torch 2.13.0). Kineto
creates `trace_<pid>.json.tmp` when it accepts a request and renames it when the trace is complete; until then the exit
waits. A request that is still on its way must not be accepted behind our back, so the worker's address is taken away
first and the daemon's answer fails. The broker then still holds the request and can say that nobody fetched it; stock
dynolog has taken it out of its store by then and it is lost. Either way the worker ends without a trace of it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from sameshot.hook.payload import _sameshot_import as hook
    from sameshot.hook.payload._sameshot_arm import Worker
else:
    import _sameshot_import as hook

_QUIET_S = 0.2
# Between Kineto's reading of an answer and its `.tmp` nothing can be seen, and ending there crashes (seen: SIGSEGV).
# While a request may be on its way, silence must last longer: Kineto's thread may have to wait for a processor.
_QUIET_WHILE_ASKED_S = 2.0
_ASKED_WITHIN_S = 30.0
_STEP_S = 0.02
_CLOCK_SLACK_NS = 2_000_000_000  # file times may be coarser than the clock


def joined(worker: Worker, c10d: Any) -> None:
    """`init_process_group` returned: what it observed overrides what the environment said."""
    rank, world_size = c10d.get_rank(), c10d.get_world_size()
    if rank < 0 or world_size <= 0:
        return  # not a member
    local_rank = worker.record["local_rank"]
    if local_rank is None:  # mp.spawn: nobody says which of the node's workers this is, unless the script does
        stated = os.environ.get("LOCAL_RANK", "")
        local_rank = int(stated) if stated.isdigit() else rank % (worker.record["local_world_size"] or world_size)
    groups = [str(name) for name in c10d._world.pg_names.values()]
    worker.save(phase="confirmed", rank=rank, local_rank=local_rank, world_size=world_size, groups=groups)


def leave(worker: Worker) -> None:
    """At exit: nothing more may be dispatched here, and what is being written gets its time."""
    try:
        worker.save(phase="exiting")
    except OSError as error:
        hook.complain(error)  # unseen, but still worth waiting for
    limit = float(os.environ.get("SAMESHOT_EXIT_WAIT_S") or 30)
    own = (worker.record["container"], str(worker.record["local_rank"]))
    if limit > 0:
        with contextlib.suppress(KeyboardInterrupt):  # a second Ctrl-C: the exit goes on
            hold(worker.directory, own, worker.record["registered_at_ns"], limit)


def hold(directory: str, own: tuple[str, str], since_ns: int, limit_s: float) -> bool:
    """Wait until this worker has no unfinished trace, at most `limit_s` seconds; False: the time was not enough.

    `own` is (container, local rank), the last two folders of this worker's output paths. Files older than `since_ns`
    were left by an earlier process with the same pid.
    """
    deadline = time.monotonic() + limit_s
    sockets = _unreachable(f"{directory}/ipc")
    quiet_since: float | None = None
    while True:
        folders = _own_folders(f"{directory}/captures", own)
        if not folders:
            return True  # an agent makes the folder before it asks for a trace
        now = time.monotonic()
        if _unfinished(folders, since_ns) or any(_has_mail(fd) for fd in sockets):
            quiet_since = None
        elif quiet_since is None:
            quiet_since = now
        elif now - quiet_since >= (_QUIET_WHILE_ASKED_S if _maybe_asked(folders) else _QUIET_S):
            return True
        if now >= deadline:
            hook.say(f"a trace was still unfinished {limit_s:g} s after the end of training and may be lost")
            return False
        time.sleep(_STEP_S)


def _own_folders(captures: str, own: tuple[str, str]) -> list[str]:
    try:
        ids = os.listdir(captures)
    except OSError:
        return []
    return [folder for folder in (os.path.join(captures, one, *own) for one in ids) if os.path.isdir(folder)]


def _unfinished(folders: list[str], since_ns: int) -> bool:
    ending = f"_{os.getpid()}.json.tmp"
    for folder in folders:
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if not entry.name.endswith(ending):
                        continue
                    if entry.stat(follow_symlinks=False).st_mtime_ns >= since_ns - _CLOCK_SLACK_NS:
                        return True
        except OSError:
            continue  # removed meanwhile
    return False


def _maybe_asked(folders: list[str]) -> bool:
    """Whether an output folder was lately made (or emptied by the agent) and holds no trace of this process."""
    for folder in folders:
        with contextlib.suppress(OSError):
            fresh = time.time() - os.stat(folder).st_mtime < _ASKED_WITHIN_S
            if fresh and not os.path.exists(f"{folder}/trace_{os.getpid()}.json"):
                return True
    return False


def _unreachable(ipc: str) -> list[int]:
    """Remove the names of this process's Kineto sockets; returns their descriptors (still Kineto's own)."""
    prefix = f"{ipc}/dynoconfigclient"
    found: list[int] = []
    timeout = socket.getdefaulttimeout()
    socket.setdefaulttimeout(None)  # a default timeout would make every socket looked at here non-blocking
    try:
        for text in os.listdir("/proc/self/fd"):
            name = _name_of(text)
            if name.startswith(prefix):
                found.append(int(text))
                with contextlib.suppress(OSError):
                    os.unlink(name)
    finally:
        socket.setdefaulttimeout(timeout)
    return found


def _name_of(fd: str) -> str:
    """The path a UNIX socket is bound to; empty for everything else. Never opens, copies or closes the descriptor."""
    try:
        if not os.readlink(f"/proc/self/fd/{fd}").startswith("socket:"):
            return ""
        borrowed = socket.socket(fileno=int(fd))
    except OSError:
        return ""
    try:
        name = borrowed.getsockname() if borrowed.family == socket.AF_UNIX else ""
        return name if isinstance(name, str) else ""  # an abstract name is bytes
    except OSError:
        return ""
    finally:
        borrowed.detach()


def _has_mail(fd: int) -> bool:
    """Whether an answer waits in this socket: Kineto reads a late one at its next poll."""
    try:
        borrowed = socket.socket(fileno=fd)
    except OSError:
        return False
    try:
        return bool(borrowed.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except OSError:
        return False
    finally:
        borrowed.detach()
