"""What few workers need, so that the others don't pay for it: the first in a directory, one that is none after all.

Where the hook's folder can't be written (a ConfigMap) Python compiles what it loads in every process.
"""

from __future__ import annotations

import contextlib
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sameshot.hook.payload import _sameshot_arm as arm
    from sameshot.hook.payload import _sameshot_import as hook
    from sameshot.hook.payload._sameshot_arm import Worker
else:
    import _sameshot_arm as arm
    import _sameshot_import as hook


def prepare(worker: Worker) -> None:
    """Make the folders and Kineto's base configuration, in this order: where the last one stands, all of them do.

    A configuration that is there already is never replaced, whoever wrote it: a worker that reads another text than
    before decides anew whether to listen, and then without KINETO_USE_DAEMON.
    """
    for folder in (worker.ipc, worker.workers):
        os.makedirs(folder, exist_ok=True)
    drafted = arm.draft(worker.config, arm.KINETO_CONFIG)
    try:
        os.link(drafted, worker.config)
        return
    except FileExistsError:
        pass  # another worker was faster, or another version of this hook was here before
    finally:
        os.unlink(drafted)
    with open(worker.config, "rb") as file:
        lines = file.read().replace(b" ", b"").splitlines()
    if b"ENABLE_IPC_FABRIC=true" not in lines:
        hook.say(
            f"{worker.config} lacks ENABLE_IPC_FABRIC=true, so Kineto may stop listening and captures may fail; it is "
            "left as it is, since it must not change under running workers: remove it before the next start"
        )


def unregister(worker: Worker) -> None:
    """Take the registration back: this process will not run torch after all."""
    for path in (worker.file, worker.lock_file):
        with contextlib.suppress(OSError):
            os.unlink(path)
    if worker.lock >= 0:
        os.close(worker.lock)
        worker.lock = -1
