"""Ranks as mpirun, mpiexec and srun number them; loaded only where there is one of their variables and no RANK."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from sameshot.hook.payload import _sameshot_rank as ranks
else:
    import _sameshot_rank as ranks

# Where a rank may stand: rank, local rank, world size, local world size; of several names the first that is set.
_SOURCES = (
    (
        ("OMPI_COMM_WORLD_RANK",),
        ("OMPI_COMM_WORLD_LOCAL_RANK",),
        ("OMPI_COMM_WORLD_SIZE",),
        ("OMPI_COMM_WORLD_LOCAL_SIZE",),
    ),
    (("PMI_RANK",), ("MPI_LOCALRANKID", "PMI_LOCAL_RANK"), ("PMI_SIZE",), ("MPI_LOCALNRANKS",)),
    (("SLURM_PROCID",), ("SLURM_LOCALID",), ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), ("SLURM_TASKS_PER_NODE",)),
)


def claim(environ: Mapping[str, str], ancestors: Callable[[], Iterable[list[str]]]) -> dict[str, int | None] | None:
    """The rank that a process manager gave this process; below a launcher it is the launcher's, and there is none."""
    if any(ranks.is_launcher(ancestor) for ancestor in ancestors()):
        return None
    return next((found for source in _SOURCES if (found := ranks.claim_from(environ, *source))), None)


def command_lines(pids: list[int]) -> Iterable[list[str]]:
    """The command line of each of these processes that can be seen."""
    for pid in pids:
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                yield [os.fsdecode(word) for word in file.read().split(b"\0")]
        except OSError:
            continue
