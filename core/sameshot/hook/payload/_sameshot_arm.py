"""Registers a training rank and lets its Kineto listen.

Loaded right before torch executes, where `_sameshot_rank` found a rank. The registration's field names
are those of `sameshot.model.Registration`; the tests hold the two together.
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import hashlib
import json
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType
    from typing import Any

    from sameshot.hook.payload import _sameshot_import as hook
    from sameshot.hook.payload import _sameshot_rank as ranks
else:
    import _sameshot_import as hook
    import _sameshot_rank as ranks

SCHEMA = "sameshot.dev/registration/v1"
# Never changed once written: Kineto re-reads the file, and a changed text makes it decide anew whether to listen.
KINETO_CONFIG = b"ENABLE_IPC_FABRIC=true\nON_DEMAND_CONFIG_UPDATE_INTERVAL_SECS=1\n"
# Kineto decides about its daemon and its log level once, when it is loaded; in children these would arm and mute.
_ONLY_DURING_IMPORT = ("KINETO_USE_DAEMON", "SLURM_JOB_ID", "KINETO_LOG_LEVEL")
# Above ERROR (4): without a daemon Kineto writes two ERROR lines at every poll (measured on 2.13.0), so each second.
_SILENT = "5"
# sun_path holds 107 bytes and a NUL; Kineto binds <dir>/dynoconfigclient<uuid4> there.
_MAX_IPC_DIR = 107 - len("/dynoconfigclient") - 36


def kineto_job_id(environ: Mapping[str, str]) -> int:
    """1 … 2^31-1, the same in every process of a container: the pid alone does not tell two containers apart."""
    where = environ.get("SAMESHOT_POD_UID") or f"{environ.get('SAMESHOT_NODE')}/{environ.get('SAMESHOT_JOB_UID')}"
    name = f"{where}/{environ.get('SAMESHOT_CONTAINER') or 'main'}"
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") % (2**31 - 1) + 1


def draft(path: str, data: bytes) -> str:
    """A complete file beside `path`, readable by the node's agent whatever the umask; returns its name.

    The name is random: the containers of a pod share a directory, and all of them may be pid 1.
    """
    folder, _, name = path.rpartition("/")
    drafted = f"{folder}/.{name}.{os.urandom(8).hex()}"
    fd = os.open(drafted, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        os.fchmod(fd, 0o644)
        if os.write(fd, data) != len(data):
            raise OSError(f"no room for {path}")
    except BaseException:
        os.unlink(drafted)
        raise
    finally:
        os.close(fd)
    return drafted


class Worker:
    """One registered training process: its lock, its registration, and Kineto's environment."""

    def __init__(self, claimed: dict[str, int | None], ancestors: list[int]) -> None:
        environ = os.environ
        directory = environ.get("SAMESHOT_DIR", "").rstrip("/")
        if not os.path.isabs(directory) or os.path.normpath(directory) != directory:
            # Kineto aborts the process when the daemon's spelling of the path differs from its own.
            raise RuntimeError(f"SAMESHOT_DIR {directory!r} is not an absolute path written plainly")
        self.directory = directory
        self.ipc = f"{directory}/ipc"
        if len(os.fsencode(self.ipc)) > _MAX_IPC_DIR:
            raise RuntimeError(f"{directory} is longer than {_MAX_IPC_DIR - 4} bytes: no socket path fits below it")
        raw = bytearray(os.urandom(16))
        raw[6], raw[8] = raw[6] & 0x0F | 0x40, raw[8] & 0x3F | 0x80  # RFC 9562 version 4, without importing uuid
        digits = raw.hex()
        self.uuid = "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
        self.pid = os.getpid()
        job_name = environ.get("PT_PROFILER_JOB_NAME", "")
        if not job_name or job_name.startswith("sameshot/"):
            job_name = f"sameshot/{self.uuid}"  # a name of the user's own is respected; then only the path binds
        self.job_id = kineto_job_id(environ)
        now = time.time_ns()
        self.record: dict[str, Any] = {
            "uuid": self.uuid,
            "pid": self.pid,
            "start_ticks": ranks.stat("self")[1],
            "job": {
                "namespace": environ.get("SAMESHOT_JOB_NAMESPACE", ""),
                "name": environ.get("SAMESHOT_JOB_NAME", ""),
                "uid": environ.get("SAMESHOT_JOB_UID", ""),
                "attempt": ranks.number(environ.get("SAMESHOT_JOB_ATTEMPT")) or 0,
            },
            "schema": SCHEMA,
            "phase": "candidate",
            **claimed,
            "ancestors": ancestors,
            "groups": [],
            "node": environ.get("SAMESHOT_NODE") or None,
            "pod": environ.get("SAMESHOT_POD") or None,
            "pod_uid": environ.get("SAMESHOT_POD_UID") or None,
            "container": environ.get("SAMESHOT_CONTAINER") or "main",
            "host": os.uname().nodename,
            "torch_version": None,
            "kineto_job_id": self.job_id,
            "job_name": job_name,
            "restart_count": ranks.number(environ.get("TORCHELASTIC_RESTART_COUNT")),
            "registered_at_ns": now,
            "updated_at_ns": now,
        }
        self.lock = -1
        self._before: dict[str, str | None] = {}
        self.config = f"{directory}/kineto.conf"
        self.workers = f"{directory}/workers"
        self.file = f"{self.workers}/{self.uuid}.json"
        self.lock_file = f"{self.workers}/{self.uuid}.lock"

    def register(self) -> None:
        """Make the worker known, lock first: whoever sees the registration sees a live one."""
        try:
            with open(self.config, "rb") as file:
                prepared = file.read() == KINETO_CONFIG and os.path.isdir(self.ipc) and os.path.isdir(self.workers)
        except FileNotFoundError:
            prepared = False
        if not prepared:
            hook.load("_sameshot_rare").prepare(self)
        # Closing *any* descriptor of this file in this process drops a POSIX record lock: it is opened once, and the
        # number is kept, not a file object that could be collected. (flock would stay with forked children.)
        self.lock = os.open(self.lock_file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        os.fchmod(self.lock, 0o644)
        fcntl.lockf(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.save()

    def save(self, **changes: Any) -> None:
        self.record.update(changes, updated_at_ns=time.time_ns())
        os.replace(draft(self.file, json.dumps(self.record).encode()), self.file)

    def set_environment(self) -> None:
        """What Kineto reads. It decides about its daemon once, at import; the rest it reads at every use."""
        environ = os.environ
        for name in (ranks.MARKER, *_ONLY_DURING_IMPORT):
            self._before[name] = environ.get(name)
        environ.pop(ranks.MARKER, None)
        environ.setdefault("KINETO_LOG_LEVEL", _SILENT)
        environ["KINETO_USE_DAEMON"] = "1"
        environ["SLURM_JOB_ID"] = str(self.job_id)
        environ["KINETO_IPC_SOCKET_DIR"] = self.ipc
        environ["KINETO_ONDEMAND_TRACE_DIR"] = f"{self.directory}/captures"
        environ["KINETO_CONFIG"] = self.config
        environ["PT_PROFILER_JOB_NAME"] = self.record["job_name"]

    def _restore(self, *names: str) -> None:
        """Put these variables of the environment back to what they were before the import of torch."""
        for name in names:
            value = self._before.get(name)
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    def torch_failed(self) -> None:
        """The import raised. It may be tried again, so the marker comes back."""
        global _current
        _current = None
        self._restore(ranks.MARKER, *_ONLY_DURING_IMPORT)
        try:
            hook.load("_sameshot_rare").unregister(self)
        except Exception as error:  # what the program is to see is why torch failed
            hook.complain(error)

    def torch_executed(self, torch: ModuleType) -> None:
        """torch is there: Kineto has its link, the environment goes back to what it was."""
        self._restore(*_ONLY_DURING_IMPORT)
        try:
            # torch.profiler counts optimizer steps where it finds KINETO_USE_DAEMON; wall-clock windows need no count.
            counter = getattr(sys.modules.get("torch.profiler"), "_", None)
            if type(counter).__name__ == "RemovableHandle" and self._before["KINETO_USE_DAEMON"] is None:
                counter.remove()  # type: ignore[union-attr]
            self.save(torch_version=str(getattr(torch, "__version__", "")) or None)
            # Registered after torch's own handlers, so it runs before them; threads have been joined by then.
            atexit.register(self.later, "leave")
        except Exception as error:
            hook.complain(error, hook.HALF_PROFILED)

    def later(self, step: str, *args: object) -> None:
        """Run a step of `_sameshot_later` for this worker; a forked child that inherited it is another process."""
        if os.getpid() == self.pid:
            try:
                getattr(hook.load("_sameshot_later"), step)(self, *args)
            except Exception as error:
                hook.complain(error, hook.HALF_PROFILED)


_current: Worker | None = None


def watch_process_group(c10d: ModuleType) -> None:
    """Learn the real rank and world size as soon as `init_process_group` returns."""
    original = getattr(c10d, "init_process_group", None)
    if original is None:
        return

    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if _current is not None:  # this module outlives a failed import of torch, and the worker of that try does not
            _current.later("joined", c10d)
        return result

    c10d.init_process_group = init_process_group  # type: ignore[attr-defined]


def arm(claimed: dict[str, int | None], ancestors: list[int]) -> Worker:
    """Make this process a registered worker. Raises where that is impossible; nothing is left behind then."""
    global _current
    worker: Worker | None = None
    try:
        worker = Worker(claimed, ancestors)
        worker.register()
        worker.set_environment()
    except BaseException:
        os.environ.pop(ranks.MARKER, None)  # its children would only say the same again
        if worker is not None:
            hook.load("_sameshot_rare").unregister(worker)
        raise
    _current = worker
    return worker
