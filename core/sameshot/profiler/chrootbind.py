"""Binds a socket inside a pod's volume, see `podplace`: `python -I -S chrootbind.py <directory fd> <answer fd> <path>`.

A UNIX socket is known by the name it was bound under, and the pod's workers need `/sameshot/ipc/dynolog`. So this
process, and only this process, makes the volume's parent its root directory and binds that very path.

From then on every path leads into directories that the pod's user owns, so nothing may be looked up there any more:
everything is imported before, importing is switched off, and whatever goes wrong ends the process without a traceback
(which would read source files).
"""

from __future__ import annotations

import array
import os
import socket
import sys


def main(directory: int, answers: int, path: str) -> None:
    answer = socket.socket(fileno=answers)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)  # before the bind: no poll without its sender
    listening.setsockopt(socket.SOL_SOCKET, getattr(socket, "SO_TIMESTAMPNS", 35), 1)  # and its time
    os.umask(0o111)  # workers may run as other users; the directory decides who gets here
    sys.meta_path.clear()
    sys.path.clear()
    try:
        os.fchdir(directory)
        os.chroot(".")
        os.chdir("/")
        listening.bind(path)
    except OSError as error:
        answer.send(b"%d" % (error.errno or 0))
        return
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [listening.fileno()]))
    answer.sendmsg([b"0"], [rights])


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
    finally:
        os._exit(0)
