"""Can results be kept there? Asked before the first analysis (a connection's Test button), and nothing is written."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path

from sameshot.errors import StorageError, UsageError

PATIENCE_S = 10.0  # someone waits in front of a button

_NO_SUCH_OBJECT = "history/.probe"  # asked for, never written


def probe_results(
    results_uri: str, *, patience_s: float = PATIENCE_S, environment: Mapping[str, str] = os.environ
) -> str:
    """What can be said of `results_uri` from here without writing, as a sentence.

    Raises UsageError for what is no such place, StorageError (or what the store says) for one that can't be used.
    """
    from sameshot.steps.store import open_results, wait

    storage = open_results(results_uri, environment)
    if storage.url.startswith("file:"):
        return _folder(results_uri)

    async def ask() -> None:
        async with asyncio.timeout(patience_s):
            await storage.size(_NO_SUCH_OBJECT)

    try:
        wait(ask())
    except TimeoutError:
        raise StorageError(
            f"{results_uri} does not answer within {patience_s:g} s; look at the endpoint (AWS_ENDPOINT_URL) and the "
            "network."
        ) from None
    return f"{results_uri} answers; whether it may be written shows with the first analysis."


def _folder(results_uri: str) -> str:
    """A folder is made at the first write; so the question is who may make it."""
    from urllib.parse import unquote, urlsplit

    path = Path(unquote(urlsplit(results_uri).path) if results_uri.startswith("file:") else results_uri)
    if not path.is_absolute():
        raise UsageError(
            f"{results_uri} is a relative path, and each process would put it elsewhere; write it from / on."
        )
    there = path
    while not os.path.exists(there) and there != there.parent:  # also one that we may not look into
        there = there.parent
    if not there.is_dir():
        raise StorageError(f"Results can't be kept in {path}: {there} is not a folder.")
    if not os.access(there, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        raise StorageError(f"Results can't be kept in {path}: this process may not write to {there}.")
    return f"{path} can be written" + ("." if there == path else f" (it will be made in {there}).")
