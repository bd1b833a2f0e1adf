"""Templates are compiled once, not at each report: that takes a tenth of what a small analysis costs.

What comes out is kept where Python keeps the bytecode of the modules beside them, under Python's own rules for that:
below `__pycache__` or PYTHONPYCACHEPREFIX, and not at all where bytecode shall not or can't be written.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import sys
import tempfile
from pathlib import Path

import jinja2.compiler
from jinja2.bccache import Bucket, BytecodeCache


class CompiledTemplates(BytecodeCache):
    """Bytecode counts only as long as the template, jinja's compiler and the files `compiled_by` stay as they are."""

    def __init__(self, compiled_by: tuple[str, ...] = ()) -> None:
        self._state = repr([_state(path) for path in (jinja2.compiler.__file__, *compiled_by)]).encode()

    def get_cache_key(self, name: str, filename: str | None = None) -> str:
        """Where the bytecode lies; "" for a template that is no file."""
        with contextlib.suppress(NotImplementedError):  # an interpreter that keeps none
            return "" if filename is None else importlib.util.cache_from_source(filename)
        return ""

    def get_source_checksum(self, source: str) -> str:
        return hashlib.sha256(self._state + source.encode()).hexdigest()

    def load_bytecode(self, bucket: Bucket) -> None:
        with contextlib.suppress(OSError), open(bucket.key, "rb") as stream:
            bucket.load_bytecode(stream)  # forgets what is damaged or of another source

    def dump_bytecode(self, bucket: Bucket) -> None:
        if sys.dont_write_bytecode or not bucket.key:
            return
        path = Path(bucket.key)
        part = ""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle, part = tempfile.mkstemp(dir=path.parent, suffix=".part")
            with os.fdopen(handle, "wb") as out:
                bucket.write_bytecode(out)
            os.replace(part, path)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(part)


def _state(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
