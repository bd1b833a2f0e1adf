"""How many workers a container starts, as far as anybody says so, and what may keep them from becoming ranks."""

from __future__ import annotations

from collections.abc import Sequence

from sameshot.arm.command import runs_bare_python, workers_in
from sameshot.arm.environment import LOCAL_SIZE, SINGLE, SPAWNED, named_env
from sameshot.arm.options import workers_of
from sameshot.arm.quantity import quantity
from sameshot.arm.values import ArmOptions, JobPlace, Json, NotArmable, Workers, inside, mappings

# A window of 2 s at the largest rate that was seen for one GPU.
_SMALL_WINDOW_BYTES = 2 * 300 * 10**6


def local_world_size(options: ArmOptions, place: JobPlace, container: Json, words: Sequence[str]) -> Workers | None:
    """From whoever says it most plainly; None: nobody does. `words` are the command with its arguments.

    Raises NotArmable where the options contradict each other, or a variable of that name is no count.
    """
    if options.single and (options.arm_spawned or options.local_world_size not in (None, 1)):
        raise NotArmable("A single process (--single) is one worker, and starts none itself; leave one of the two out.")
    if options.local_world_size is not None:
        return options.local_world_size
    for entry in named_env(container, LOCAL_SIZE):
        if "value" in entry:
            return workers_of(str(entry["value"]), f"{LOCAL_SIZE} of container {container['name']}")
    if options.single:
        return 1
    told = workers_in(words)
    if told is not None:
        return told
    for entry in named_env(container, "PET_NPROC_PER_NODE"):  # what torchrun takes for its option of that name
        value = str(entry.get("value", ""))
        return int(value) if value.isdigit() and int(value) > 0 else "auto"
    if place.local_world_size is not None:
        return place.local_world_size
    return 1 if place.ranks_pods and runs_bare_python(words) else None


def no_rank(
    container: Json, options: ArmOptions, place: JobPlace, words: Sequence[str], size: Workers | None
) -> list[str]:
    """A warning where nothing that is visible makes a rank of the program."""
    by_hand = any(named_env(container, name) for name in (SINGLE, SPAWNED))
    if options.single or options.arm_spawned or by_hand or not runs_bare_python(words):
        return []
    if place.ranks_pods or named_env(container, "RANK") or container.get("envFrom"):
        if size == 1 or named_env(container, "LOCAL_RANK") or options.local_world_size is not None:
            return []
        told = (
            "the command starts Python without a launcher; where it is the pod's only worker say --local-world-size 1, "
            "otherwise its local rank is not known and it won't register"
        )
        return [told]
    told = (
        "the command starts Python without a launcher that sets RANK; a job of one process needs --single, a script "
        "that calls mp.spawn needs --arm-spawned, otherwise nothing registers"
    )
    return [told]


def little_room(spec: Json, size: Workers | None) -> list[str]:
    """A warning where the pod's own limit of ephemeral storage, which traces count against, is smaller than those of a
    short window."""
    together = storage_limit(spec)
    needed = _SMALL_WINDOW_BYTES * (size if isinstance(size, int) else 1)
    if together is None or together >= needed:
        return []
    told = (
        f"the pod's limit of ephemeral-storage is {together / 1e9:.1f} GB; traces of a 2 s window may need "
        f"{needed / 1e9:.1f} GB, and a capture that might not fit is refused"
    )
    return [told]


def storage_limit(spec: Json) -> int | None:
    """Bytes above which the kubelet evicts a pod with this spec; None: it never does for that.

    It is the sum of its containers' limits, in which one without a limit counts nothing: one limit limits the pod.
    Restartable init containers add to it; of the others one counts where it is larger than that sum. (kubelet, eviction
    manager: podEphemeralStorageLimitEviction, by PodLimits.)
    """
    inits = mappings(spec, "initContainers")
    side = [each for each in inits if each.get("restartPolicy") == "Always"]
    running = _storage_limits([*mappings(spec, "containers"), *side])
    before = _storage_limits([each for each in inits if each not in side])
    return max(sum(running), *before) if before else sum(running) if running else None


def _storage_limits(containers: Sequence[Json]) -> list[int]:
    limits = [inside(container, "resources", "limits").get("ephemeral-storage") for container in containers]
    return [quantity(str(limit)) for limit in limits if limit is not None]
