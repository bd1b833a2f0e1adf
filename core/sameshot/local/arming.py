"""The environment that makes an ordinary training command capturable.

In a cluster the same variables are patched into a pod template. `hook/` reads them; their meaning is listed there. The
training script and its launcher are not touched, and arming an armed environment changes nothing.
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from sameshot.errors import UsageError
from sameshot.hook import PAYLOAD
from sameshot.model import JobRef
from sameshot.profiler.place import MAX_DIRECTORY_BYTES


def node_dir(run_folder: Path, index: int) -> Path:
    """`$SAMESHOT_DIR` of one node; raises UsageError where its socket directory would be too long for Kineto."""
    folder = run_folder / f"n{index}"
    length = len(os.fsencode(folder / "ipc"))
    if length > MAX_DIRECTORY_BYTES:
        raise UsageError(
            f"The socket directory {folder / 'ipc'} is {length} bytes long and Kineto's sockets allow "
            f"{MAX_DIRECTORY_BYTES}; set SAMESHOT_RUNTIME_DIR to a shorter folder."
        )
    return folder


def armed_environment(
    base: Mapping[str, str],
    *,
    job: JobRef,
    node: str,
    folder: Path,
    local_world_size: int | None = None,
    single: bool = False,
    arm_spawned: bool = False,
) -> dict[str, str]:
    """`base` with everything the hook needs; `folder` is the node's `$SAMESHOT_DIR`."""
    armed = dict(base)
    armed.update(
        SAMESHOT_ARMED="1",
        SAMESHOT_DIR=str(folder),
        SAMESHOT_JOB_NAMESPACE=job.namespace,
        SAMESHOT_JOB_NAME=job.name,
        SAMESHOT_JOB_UID=job.uid,
        SAMESHOT_JOB_ATTEMPT=str(job.attempt),
        SAMESHOT_NODE=node,
        SAMESHOT_CONTAINER="main",
        SAMESHOT_LOCAL_WORLD_SIZE="auto" if local_world_size is None else str(local_world_size),
    )
    if single:
        armed["SAMESHOT_SINGLE"] = "1"
    if arm_spawned:
        armed["SAMESHOT_ARM_SPAWNED"] = "1"
    paths = [path for path in armed.get("PYTHONPATH", "").split(os.pathsep) if path and path != str(PAYLOAD)]
    armed["PYTHONPATH"] = os.pathsep.join([str(PAYLOAD), *paths])
    return armed


def command_path(environment: Mapping[str, str]) -> str:
    """PATH with this interpreter's scripts first, so that `sameshot run -- torchrun …` finds the torchrun beside it."""
    scripts = sysconfig.get_path("scripts")
    found = environment.get("PATH", os.defpath).split(os.pathsep)
    return os.pathsep.join([*found, scripts] if scripts not in found else found)
