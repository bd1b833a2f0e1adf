"""Two manifests' addresses in, a comparison out, and the files that show it."""

from __future__ import annotations

from pathlib import Path

import msgspec

from sameshot.analysis.compare.change import Comparison
from sameshot.analysis.compare.compare import compare
from sameshot.analysis.compare.samples import Side
from sameshot.analysis.files import replace
from sameshot.analysis.job import reduce_ranks
from sameshot.analysis.run import Progress, map_capture


def compare_captures(
    before: str,
    after: str,
    *,
    cache: Path | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Compare the captures whose manifests (or folders) are at these paths or URIs.

    Raises what `analyze` does, for either of them.
    """
    return compare(*(_side(location, cache, workers, progress) for location in (before, after)))


def write(found: Comparison, out: Path) -> None:
    """Write `comparison.json` and `comparison.html`, each atomically."""
    from sameshot.analysis.compare.page import render  # a caller that only wants numbers needs no templates

    out.mkdir(parents=True, exist_ok=True)
    page = render(found).encode()
    replace(out / "comparison.json", msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    replace(out / "comparison.html", page)


def _side(location: str, cache: Path | None, workers: int | None, progress: Progress | None) -> Side:
    mapped = map_capture(location, cache=cache, workers=workers, progress=progress)
    return Side(reduce_ranks(mapped.manifest, mapped.ranks, location=mapped.location), tuple(mapped.ranks))
