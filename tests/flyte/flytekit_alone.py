"""flytekit's local runs by themselves: a cache, and a place for files, that no other test has."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from flytekit.core import local_cache
from flytekit.core.context_manager import FlyteContextManager
from flytekit.core.data_persistence import FileAccessProvider


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[Path]:
    """What runs meanwhile is cached and keeps its files below `folder`."""
    files = FileAccessProvider(local_sandbox_dir=str(folder / "sandbox"), raw_output_prefix=str(folder / "raw"))
    context = FlyteContextManager.current_context()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_cache, "CACHE_LOCATION", str(folder / "cache"))
        patch.setattr(local_cache.LocalTaskCache, "_initialized", False)
        with FlyteContextManager.with_context(context.with_file_access(files)):
            yield folder


def decks(folder: Path) -> list[str]:
    """All that were published below it: one for each task with a Deck that really ran."""
    return [path.read_text() for path in sorted(folder.rglob("deck.html"), key=lambda path: path.stat().st_mtime_ns)]
