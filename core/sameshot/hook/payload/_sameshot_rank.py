"""Decides whether this process is a training rank: from its environment, its command line and its ancestors.

RANK alone proves nothing: DataLoader workers and every other child inherit it, launchers may have it from their pod,
and the numbers of mpirun and srun count whatever they started, be it a launcher (`_sameshot_managers`). The table of
launchers is in docs/launchers.md.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from sameshot.hook.payload import _sameshot_import as hook
else:
    import _sameshot_import as hook

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
_PROCESS_MANAGERS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")


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
    kind = helper(argv)
    if kind == "spawn" and environ.get("SAMESHOT_ARM_SPAWNED") == "1":  # its rank is known when it joins a group
        local_size = number(environ.get("SAMESHOT_LOCAL_WORLD_SIZE"))
        return {"rank": None, "local_rank": None, "world_size": None, "local_world_size": local_size}
    if kind is not None:
        return None

    claimed = claim_from(environ, ("RANK",), ("LOCAL_RANK",), ("WORLD_SIZE",), ("LOCAL_WORLD_SIZE",))
    if claimed is None and any(name in environ for name in _PROCESS_MANAGERS):
        claimed = hook.load("_sameshot_managers").claim(environ, ancestors)
    if claimed is None and environ.get("SAMESHOT_SINGLE") == "1":
        claimed = {"rank": 0, "local_rank": 0, "world_size": 1, "local_world_size": 1}
    return claimed


def claim_from(environ: Mapping[str, str], *sources: tuple[str, ...]) -> dict[str, int | None] | None:
    """The claim that stands in these variables: of rank, local rank, world size and local world size the first set."""
    rank, local_rank, world_size, local_size = (
        next((n for n in (number(environ.get(name)) for name in names) if n is not None), None) for names in sources
    )
    recorded = number(environ.get("SAMESHOT_LOCAL_WORLD_SIZE"))
    if local_rank is None and recorded == 1 and environ.get("SAMESHOT_ARM_SPAWNED") != "1":
        local_rank = 0
    if rank is None or local_rank is None:
        return None  # without a local rank it may number nodes or pods, not processes
    return {
        "rank": rank,
        "local_rank": local_rank,
        "world_size": world_size,
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


def claim(ancestors: list[int]) -> dict[str, int | None] | None:
    """What this very process claims; `ancestors` are pids."""

    def lines(pids: list[int]) -> Iterable[list[str]]:
        found: Iterable[list[str]] = hook.load("_sameshot_managers").command_lines(pids)
        return found

    argv = getattr(sys, "orig_argv", None) or next(iter(lines([os.getpid()])), [])  # Python 3.9 has none
    return decide(os.environ, argv, lambda: lines(ancestors))
