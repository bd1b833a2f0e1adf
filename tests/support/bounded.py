"""Run something as root with these capabilities and no others, as a container runtime does, with Python alone.

    subprocess.run(bounded_argv(("sys_chroot", "dac_override"), "program", "argument"))

What a container's `capabilities` say is its bounding set: a program of root that is executed has just those
(capabilities(7)). There is no `setpriv` on every node.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

# linux/capability.h
NUMBERS = {"dac_override": 1, "dac_read_search": 2, "sys_chroot": 18}

_LAUNCHER = """
import ctypes, os, sys
kept = {int(word) for word in sys.argv[1].split(",") if word}
last = int(open("/proc/sys/kernel/cap_last_cap").read())
libc = ctypes.CDLL(None, use_errno=True)
for number in range(last + 1):
    if number not in kept and libc.prctl(24, number, 0, 0, 0):  # PR_CAPBSET_DROP
        sys.exit(f"capability {number} can't be dropped: {os.strerror(ctypes.get_errno())}")
os.execvp(sys.argv[2], sys.argv[2:])
"""


def bounded_argv(capabilities: Sequence[str], *argv: str) -> tuple[str, ...]:
    kept = ",".join(str(NUMBERS[each]) for each in capabilities)
    return (sys.executable, "-c", _LAUNCHER, kept, *argv)
