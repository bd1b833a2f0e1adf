"""Decides whether this process is a training rank, registers it, and lets its Kineto listen.

Loaded right before torch executes, in processes that have the marker and some sign of a rank. The registration's field
names are those of `sameshot.model.Registration`; the tests hold the two together.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import hashlib
import json
import os
import re
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import ModuleType
    from typing import Any

    from sameshot.hook.payload import _sameshot_import as hook
else:
    import _sameshot_import as hook

MARKER = "SAMESHOT_ARMED"
SCHEMA = "sameshot.dev/registration/v1"
# Never changed once written: Kineto re-reads the file, and a changed text makes it decide anew whether to listen.
KINETO_CONFIG = "ENABLE_IPC_FABRIC=true\nON_DEMAND_CONFIG_UPDATE_INTERVAL_SECS=1\n"
# Kineto decides about its daemon and its log level once, when it is loaded; in children these would arm and mute.
_ONLY_DURING_IMPORT = ("KINETO_USE_DAEMON", "SLURM_JOB_ID", "KINETO_LOG_LEVEL")
# Above ERROR (4): without a daemon Kineto writes two ERROR lines at every poll (measured on 2.13.0), so each second.
_SILENT = "5"
# sun_path holds 107 bytes and a NUL; Kineto binds <dir>/dynoconfigclient<uuid4> there.
_MAX_IPC_DIR = 107 - len("/dynoconfigclient") - 36

_LAUNCHER_MODULES = (
    "torch.distributed.run",
    "torch.distributed.launch",
    "torch.distributed.launcher",
    "torchrun",
    "accelerate",
    "deepspeed.launcher",
    "deepspeed",
    "lightning",
    "lightning_fabric.cli",
    "pytorch_lightning",
)
_LAUNCHER_SCRIPTS = {"torchrun", "accelerate", "accelerate-launch", "deepspeed", "ds", "lightning", "fabric"}
_LAUNCHER_FILES = ("/torch/distributed/run.py", "/torch/distributed/launch.py", "/deepspeed/launcher/launch.py")
# Where a rank may stand: (rank, local rank, world size, local world size), each the first name that is set.
_TORCHRUN = ("RANK", ("LOCAL_RANK",), ("WORLD_SIZE",), ("LOCAL_WORLD_SIZE",))
_PROCESS_MANAGERS = (
    (
        "OMPI_COMM_WORLD_RANK",
        ("OMPI_COMM_WORLD_LOCAL_RANK",),
        ("OMPI_COMM_WORLD_SIZE",),
        ("OMPI_COMM_WORLD_LOCAL_SIZE",),
    ),
    ("PMI_RANK", ("MPI_LOCALRANKID", "PMI_LOCAL_RANK"), ("PMI_SIZE",), ("MPI_LOCALNRANKS",)),
    ("SLURM_PROCID", ("SLURM_LOCALID",), ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), ("SLURM_TASKS_PER_NODE",)),
)
_HELPER = re.compile(r"\bfrom (?:multiprocess(?:ing)?|[\w.]*\bbackend)\.(\w+) import\b")
_HELPER_MODULE = re.compile(r"(?:^|\.)loky\.backend\.")


def program(argv: Iterable[str]) -> tuple[str, str]:
    """What a Python command line runs: ("module", name), ("command", text) or ("script", path); ("", "") for none."""
    rest = iter(list(argv)[1:])
    for word in rest:
        if word == "--check-hash-based-pycs":
            next(rest, "")
        elif word == "-" or not word.startswith("-"):
            return "script", word
        elif not word.startswith("--"):
            for index, letter in enumerate(word[1:], start=2):
                if letter in "mcWX":
                    value = word[index:] or next(rest, "")
                    if letter in "mc":
                        return ("module" if letter == "m" else "command"), value
                    break
    return "", ""


def is_launcher(argv: Iterable[str]) -> bool:
    """Whether this command line is a known launcher: it starts ranks and is none, whatever its environment says."""
    kind, what = program(argv)
    if kind == "module":
        return any(what == name or what.startswith(name + ".") for name in _LAUNCHER_MODULES)
    return kind == "script" and (os.path.basename(what) in _LAUNCHER_SCRIPTS or what.endswith(_LAUNCHER_FILES))


def helper(argv: Iterable[str]) -> str | None:
    """Which helper of multiprocessing (or loky) this command line is: `spawn`, `forkserver`, `resource_tracker`, …"""
    kind, what = program(argv)
    if kind == "module":
        return "loky" if _HELPER_MODULE.search(what) else None
    found = _HELPER.search(what) if kind == "command" else None
    return found.group(1) if found else None


def number(text: str | None) -> int | None:
    """A count from the environment; None for unset, empty and words like `auto`."""
    return int(text) if text and text.isdigit() else None


def decide(
    environ: Mapping[str, str], argv: list[str], ancestors: Callable[[], Iterable[list[str]]]
) -> dict[str, int | None] | None:
    """The rank that this process claims, or None: not a candidate. `ancestors` gives their command lines on demand."""
    if environ.get(MARKER) != "1" or is_launcher(argv):
        return None
    recorded = number(environ.get("SAMESHOT_LOCAL_WORLD_SIZE"))
    spawns = environ.get("SAMESHOT_ARM_SPAWNED") == "1"
    kind = helper(argv)
    if kind is not None:
        if kind == "spawn" and spawns:  # its rank is known when it joins a process group
            return {"rank": None, "local_rank": None, "world_size": None, "local_world_size": recorded}
        return None

    claimed = _claim(_TORCHRUN, environ, recorded, spawns)
    if claimed is None and any(source[0] in environ for source in _PROCESS_MANAGERS):
        # These number the processes of mpirun or srun; below a launcher that is the launcher, not the rank.
        below = any(is_launcher(ancestor) for ancestor in ancestors())
        for source in () if below else _PROCESS_MANAGERS:
            claimed = claimed or _claim(source, environ, recorded, spawns)
    if claimed is None and environ.get("SAMESHOT_SINGLE") == "1":
        claimed = {"rank": 0, "local_rank": 0, "world_size": 1, "local_world_size": 1}
    return claimed


def _claim(
    source: tuple[str, tuple[str, ...], tuple[str, ...], tuple[str, ...]],
    environ: Mapping[str, str],
    recorded: int | None,
    spawns: bool,
) -> dict[str, int | None] | None:
    def first(*names: str) -> int | None:
        return next((n for n in (number(environ.get(name)) for name in names) if n is not None), None)

    rank_name, local_ranks, sizes, local_sizes = source
    rank, local_rank, local_size = first(rank_name), first(*local_ranks), first(*local_sizes)
    if local_rank is None and recorded == 1 and not spawns:
        local_rank = 0
    if rank is None or local_rank is None:
        return None  # without a local rank it may number nodes or pods, not processes
    return {
        "rank": rank,
        "local_rank": local_rank,
        "world_size": first(*sizes),
        "local_world_size": recorded if local_size is None else local_size,
    }


def _stat(pid: int | str) -> tuple[int, int]:
    """(parent pid, start time in clock ticks since boot) from /proc/<pid>/stat, fields 4 and 22 of proc(5)."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    return int(fields[1]), int(fields[19])


def ancestor_pids() -> list[int]:
    """Pids upwards from the parent, as far as this pid namespace (and /proc) shows them."""
    pids: list[int] = []
    pid = os.getppid()
    while pid > 0 and pid not in pids:
        pids.append(pid)
        try:
            pid = _stat(pid)[0]
        except OSError:
            break
    return pids


def _command_lines(pids: list[int]) -> Iterable[list[str]]:
    for pid in pids:
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                yield [os.fsdecode(word) for word in file.read().split(b"\0")]
        except OSError:
            continue


def kineto_job_id(environ: Mapping[str, str]) -> int:
    """1 … 2^31-1, the same in every process of a container: the pid alone does not tell two containers apart."""
    where = environ.get("SAMESHOT_POD_UID") or f"{environ.get('SAMESHOT_NODE')}/{environ.get('SAMESHOT_JOB_UID')}"
    name = f"{where}/{environ.get('SAMESHOT_CONTAINER') or 'main'}"
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") % (2**31 - 1) + 1


def _write(path: str, data: bytes) -> None:
    """Replace `path` by a complete file, readable by the node's agent whatever the umask."""
    draft = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.{os.getpid()}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        os.fchmod(fd, 0o644)
        os.write(fd, data)
    finally:
        os.close(fd)
    os.replace(draft, path)


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
            "start_ticks": _stat("self")[1],
            "job": {
                "namespace": environ.get("SAMESHOT_JOB_NAMESPACE", ""),
                "name": environ.get("SAMESHOT_JOB_NAME", ""),
                "uid": environ.get("SAMESHOT_JOB_UID", ""),
                "attempt": number(environ.get("SAMESHOT_JOB_ATTEMPT")) or 0,
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
            "restart_count": number(environ.get("TORCHELASTIC_RESTART_COUNT")),
            "registered_at_ns": now,
            "updated_at_ns": now,
        }
        self._lock = -1
        self._before: dict[str, str | None] = {}
        self._file = f"{directory}/workers/{self.uuid}.json"
        self._lock_file = f"{directory}/workers/{self.uuid}.lock"

    def register(self) -> None:
        """Make the worker known, lock first: whoever sees the registration sees a live one."""
        for folder in (self.ipc, os.path.dirname(self._file)):
            os.makedirs(folder, exist_ok=True)
        self._write_kineto_config()
        # Closing *any* descriptor of this file in this process drops a POSIX record lock: it is opened once, and the
        # number is kept, not a file object that could be collected. (flock would stay with forked children.)
        self._lock = os.open(self._lock_file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        os.fchmod(self._lock, 0o644)
        fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._save()

    def unregister(self) -> None:
        """Take the registration back: this process will not run torch after all."""
        for path in (self._file, self._lock_file):
            with contextlib.suppress(OSError):
                os.unlink(path)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _write_kineto_config(self) -> None:
        path = f"{self.directory}/kineto.conf"
        try:
            with open(path, encoding="utf-8") as file:
                if file.read() == KINETO_CONFIG:
                    return
        except FileNotFoundError:
            pass
        _write(path, KINETO_CONFIG.encode())

    def _save(self, **changes: Any) -> None:
        self.record.update(changes, updated_at_ns=time.time_ns())
        _write(self._file, json.dumps(self.record).encode())

    def set_environment(self) -> None:
        """What Kineto reads. It decides about its daemon once, at import; the rest it reads at every use."""
        environ = os.environ
        for name in (MARKER, *_ONLY_DURING_IMPORT):
            self._before[name] = environ.get(name)
        environ.pop(MARKER, None)
        environ.setdefault("KINETO_LOG_LEVEL", _SILENT)
        environ["KINETO_USE_DAEMON"] = "1"
        environ["SLURM_JOB_ID"] = str(self.job_id)
        environ["KINETO_IPC_SOCKET_DIR"] = self.ipc
        environ["KINETO_ONDEMAND_TRACE_DIR"] = f"{self.directory}/captures"
        environ["KINETO_CONFIG"] = f"{self.directory}/kineto.conf"
        environ["PT_PROFILER_JOB_NAME"] = self.record["job_name"]

    def _restore(self, *names: str) -> None:
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
        self._restore(MARKER, *_ONLY_DURING_IMPORT)
        self.unregister()

    def torch_executed(self, torch: ModuleType) -> None:
        """torch is there: Kineto has its link, the environment goes back to what it was."""
        self._restore(*_ONLY_DURING_IMPORT)
        try:
            # torch.profiler counts optimizer steps where it finds KINETO_USE_DAEMON; wall-clock windows need no count.
            counter = getattr(sys.modules.get("torch.profiler"), "_", None)
            if type(counter).__name__ == "RemovableHandle" and self._before["KINETO_USE_DAEMON"] is None:
                counter.remove()  # type: ignore[union-attr]
            self._save(torch_version=str(getattr(torch, "__version__", "")) or None)
            # Registered after torch's own handlers, so it runs before them; threads have been joined by then.
            atexit.register(self.exiting)
        except Exception as error:
            hook.complain(error)

    def confirm(self, c10d: Any) -> None:
        if os.getpid() != self.pid:
            return  # a forked child may join a group of its own; it is not this worker
        try:
            rank, world_size = c10d.get_rank(), c10d.get_world_size()
            if rank < 0 or world_size <= 0:
                return
            local_rank = self.record["local_rank"]
            if local_rank is None:
                local_rank = number(os.environ.get("LOCAL_RANK"))
            if local_rank is None:  # mp.spawn: nobody says which of the node's workers this is
                local_rank = rank % (self.record["local_world_size"] or world_size)
            groups = [str(name) for name in c10d._world.pg_names.values()]
            self._save(phase="confirmed", rank=rank, local_rank=local_rank, world_size=world_size, groups=groups)
        except Exception as error:
            hook.complain(error)

    def exiting(self) -> None:
        """At exit: nothing more may be dispatched here, and what is being written gets its time."""
        if os.getpid() != self.pid:
            return
        try:
            limit = os.environ.get("SAMESHOT_EXIT_WAIT_S") or "30"
            self._save(phase="exiting")
            if float(limit) > 0:
                own = (self.record["container"], str(self.record["local_rank"]))
                hook.load("_sameshot_exit").hold(self.directory, own, self.record["registered_at_ns"], float(limit))
        except BaseException as error:  # also a second Ctrl-C: the exit goes on
            if not isinstance(error, KeyboardInterrupt):
                hook.complain(error)


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
            _current.confirm(c10d)
        return result

    c10d.init_process_group = init_process_group  # type: ignore[attr-defined]


def arm() -> Worker | None:
    """Arm this process if it is a training rank. Raises where it should be armed and can't be."""
    global _current
    pids = ancestor_pids()
    argv = getattr(sys, "orig_argv", None) or next(iter(_command_lines([os.getpid()])), [])
    claimed = decide(os.environ, argv, lambda: _command_lines(pids))
    if claimed is None:
        return None
    worker: Worker | None = None
    try:
        worker = Worker(claimed, pids)
        worker.register()
        worker.set_environment()
    except BaseException:
        os.environ.pop(MARKER, None)  # its children would only say the same again
        if worker is not None:
            worker.unregister()
        raise
    _current = worker
    return worker
