"""How results are written: whoever looks sees the old file or the new one, never a part."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file beside `path` to write to, which takes its place at the end; after an error nothing is left behind."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield part
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def replace(path: Path, data: bytes) -> None:
    """Write `data` at `path`, atomically. Raises OSError and leaves nothing behind."""
    with replacing(path) as part:
        part.write_bytes(data)
