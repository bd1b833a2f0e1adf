"""What runs inside the training process: a small flat folder of standard-library Python that goes first on PYTHONPATH.

`PAYLOAD` is that folder; its files fit in one ConfigMap. Nothing of it is imported by the rest of sameshot, and it
imports nothing of ours: identity leaves the process only as a registration file (`sameshot.model.Registration`).

    sitecustomize.py      sees the marker, installs the import hook, runs the next sitecustomize as if we weren't there
    _sameshot_import.py   stays in front of `import torch` until torch has really executed
    _sameshot_rank.py     decides whether this process is a rank; loaded only where torch is imported with a sign of one
    _sameshot_managers.py ranks of mpirun, mpiexec and srun
    _sameshot_arm.py      registers the rank and sets Kineto's environment
    _sameshot_rare.py     the first worker of a directory prepares it; a worker that is none after all
    _sameshot_later.py    the worker joins its process group, and its exit waits while a trace is being written

What arming writes into the environment, and the hook reads:

    SAMESHOT_ARMED=1            the marker. The process that arms removes it from its own environment, so that its
                                children stay out; launchers never remove it
    SAMESHOT_DIR                the shared directory as the worker sees it, at most 50 bytes, no trailing slash
    SAMESHOT_JOB_NAMESPACE, SAMESHOT_JOB_NAME, SAMESHOT_JOB_UID, SAMESHOT_JOB_ATTEMPT   the job (attempt: default 0)
    SAMESHOT_NODE, SAMESHOT_POD, SAMESHOT_POD_UID     where the process runs; empty or unset: unknown
    SAMESHOT_CONTAINER          default `main`
    SAMESHOT_LOCAL_WORLD_SIZE   workers in this container: a number, or `auto`/`gpu` for unknown
    SAMESHOT_SINGLE=1           declared single process: rank 0 of 1
    SAMESHOT_ARM_SPAWNED=1      the training script itself starts the ranks with `mp.spawn`
    SAMESHOT_EXIT_WAIT_S        how long an exit may be held for an unfinished trace; default 30, 0 switches it off

What the hook makes below SAMESHOT_DIR: `ipc/` (Kineto's sockets), `kineto.conf` (never changed once it is there),
`workers/<uuid>.json` (the registration) and `workers/<uuid>.lock` (a POSIX record lock, held as long as the process
lives).

KINETO_LOG_LEVEL is 5 (silence) while torch is imported, unless it is set already, and what it was afterwards. Kineto
reads it once, so its own log stays silent for the worker's life: without a daemon it writes two errors per poll.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["MARKER", "PAYLOAD"]

MARKER = "SAMESHOT_ARMED"
PAYLOAD = Path(__file__).resolve().parent / "payload"
