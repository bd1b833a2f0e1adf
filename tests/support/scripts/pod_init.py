"""Process 1 of a played pod: `pod_init.py <JSON>`, started by `pods.Kubelet` in namespaces of its own.

Builds the container's root file system from pieces of this machine, mounts the pod's volumes into it, gives up root and
becomes the container's command. Says its pid as the machine sees it, and waits for a line until its network is there.
"""

import ctypes
import json
import os
import sys
from pathlib import Path

MS_RDONLY, MS_NOSUID, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 32, 4096, 16384, 1 << 18
libc = ctypes.CDLL(None, use_errno=True)


def mount(source, target, kind=None, flags=0, data=None):
    encode = [None if each is None else os.fsencode(each) for each in (source, target, kind)]
    if libc.mount(*encode, flags, None if data is None else data.encode()) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"mount {source} at {target}: {os.strerror(number)}")


def bind(source, target, *, read_only):
    source, target = Path(source), Path(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        target.mkdir(exist_ok=True)
    else:
        target.touch()
    mount(source, target, flags=MS_BIND | MS_REC)
    if read_only:
        mount(None, target, flags=MS_BIND | MS_REMOUNT | MS_RDONLY)


def own_devices(place):
    """A /dev that is the container's, so that files can be mounted into it."""
    place.mkdir()
    mount("tmpfs", place, "tmpfs", MS_NOSUID, "mode=755,size=64m")
    for name in ("null", "zero", "full", "random", "urandom", "tty"):
        bind(f"/dev/{name}", place / name, read_only=False)
    (place / "shm").mkdir()
    (place / "shm").chmod(0o1777)
    for name, target in (("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        (place / name).symlink_to(target if target.startswith("/") else f"/proc/self/{target}")


def main(told):
    seen_as = os.readlink("/proc/self")  # of the machine's /proc, which is still the one that is mounted
    mount(None, "/", flags=MS_REC | MS_PRIVATE)
    root = Path(told["rootfs"])
    mount("tmpfs", root, "tmpfs", MS_NOSUID, "mode=755,size=256m")
    (root / "tmp").mkdir()
    (root / "tmp").chmod(0o1777)
    for path in told["system"]:
        if os.path.islink(path):
            (root / path.lstrip("/")).symlink_to(os.readlink(path))
        elif os.path.exists(path):
            bind(path, root / path.lstrip("/"), read_only=True)
    if told.get("own_devices"):
        own_devices(root / "dev")
    else:
        bind("/dev", root / "dev", read_only=False)
    for source, target, read_only in told["mounts"]:
        bind(source, root / target.lstrip("/"), read_only=read_only)
    (root / "proc").mkdir()
    mount("proc", root / "proc", "proc")
    os.chroot(root)
    os.chdir(told["cwd"])
    print(seen_as, flush=True)
    if not sys.stdin.readline():
        return
    nothing = os.open("/dev/null", os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)  # from here on the container's own output
    os.setgroups(told["groups"])
    os.setgid(told["gid"])
    os.setuid(told["uid"])
    os.umask(told["umask"])
    libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS, as allowPrivilegeEscalation: false
    os.execvpe(told["command"][0], told["command"], told["env"])


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
