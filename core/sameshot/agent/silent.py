"""Why an armed pod may never have registered a worker: what can be seen of it, and the likely causes in words. Pure."""

from __future__ import annotations

from sameshot.kube.pods import Pod

# torch alone takes seconds to import, a cold image minutes, and a program may fetch its data first.
REPORT_AFTER_S = 180.0

_NEVER_RAN = (
    "Likely causes, most likely first: torch was not imported yet or never will be; the ConfigMap sameshot-hook was "
    "missing in the namespace when the pod started (sameshot arm --hook-only makes it; a new pod then has it); the "
    "command sets PYTHONPATH itself; python runs with -S, -I or -E; docs/launchers.md names the launcher as not "
    "supported."
)
_STOPPED = (
    "The hook ran there and prepared the directory, but no worker stayed: its first line in the container's log that "
    "begins with 'sameshot:' says why. If there is none: the ranks were taken for helpers (mp.spawn needs "
    "--arm-spawned), or the launcher is one that docs/launchers.md names as not supported."
)


def overdue(pod: Pod, now_s: float) -> bool:
    """Whether a worker should have registered by now (`now_s`: seconds since the epoch)."""
    return not pod.ended and pod.started_at_s is not None and now_s - pod.started_at_s > REPORT_AFTER_S


def why_silent(pod: Pod, now_s: float, *, prepared: bool) -> str:
    """What to tell about a pod in which nobody registered; `prepared`: the hook left its first traces."""
    since = "" if pod.started_at_s is None else f" for {now_s - pod.started_at_s:.0f} s"
    again = f", after {pod.restarts} restarts" if pod.restarts else ""
    expected = "its workers" if pod.local_world_size is None else f"its {pod.local_world_size} workers"
    return (
        f"Pod {pod} is armed and its container {pod.container} has been running{since}{again}, but none of {expected} "
        f"ever registered. {_STOPPED if prepared else _NEVER_RAN}"
    )
