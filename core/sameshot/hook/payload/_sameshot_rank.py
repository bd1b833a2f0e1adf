"""Decides whether this process is a training rank: from its environment, its command line and its ancestors.

RANK alone proves nothing: DataLoader workers and every other child inherit it, launchers may have it from their pod,
and the numbers of mpirun and srun count whatever they started, be it a launcher. The table of launchers is in
docs/launchers.md.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

MARKER = "SAMESHOT_ARMED"
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
        return "loky" if ".loky.backend." in f".{what}" else None
    words = what.split(None, 2)
    if kind != "command" or len(words) < 3 or words[0] != "from":
        return None
    package, _, name = words[1].rpartition(".")
    return name if package in ("multiprocessing", "multiprocess") or package.endswith(".backend") else None


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


def stat(pid: int | str) -> tuple[int, int]:
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
            pid = stat(pid)[0]
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


def claim(ancestors: list[int]) -> dict[str, int | None] | None:
    """What this very process claims; `ancestors` are pids."""
    argv = getattr(sys, "orig_argv", None) or next(iter(_command_lines([os.getpid()])), [])
    return decide(os.environ, argv, lambda: _command_lines(ancestors))
