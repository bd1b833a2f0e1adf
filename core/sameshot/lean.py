"""Importing numpy for what we do with it: no linear algebra worth a thread."""

from __future__ import annotations

import contextlib
import os
import sys

_THREADS = "OPENBLAS_NUM_THREADS"


def import_numpy() -> None:
    """Import numpy, if that has not happened and can, without a thread of OpenBLAS for every core.

    They cost a third of the import's CPU on two cores (measured), and more on more; nothing here gives them work. The
    environment of processes that are started later is left as it was, and so is a number that the user has set.
    """
    if "numpy" in sys.modules or _THREADS in os.environ:
        return
    os.environ[_THREADS] = "1"
    try:
        with contextlib.suppress(ImportError):  # whoever needs it says so
            import numpy  # noqa: F401
    finally:
        del os.environ[_THREADS]
