"""What the analysis tasks of Flyte 2 do: plain functions, which `workflow.tasks` makes tasks of in an environment."""

from __future__ import annotations

import contextlib
import tempfile
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

import flyte.errors
import flyte.report
from flyte.io import DataFrame, File

from sameshot.errors import SameshotError
from sameshot_flyte import deck, work
from sameshot_flyte.forms import described
from sameshot_flyte.references import Analysis, Comparison

Ranks = Annotated[DataFrame, OrderedDict(work.ROWS)]
"""A row per rank of the job, `missing` ones included (docs/flyte.md), as Parquet."""


class Reported(NamedTuple):
    analysis: Analysis
    report: File
    ranks: Ranks


class Compared(NamedTuple):
    comparison: Comparison
    report: File


@described
def analyze_rank(shard: str, manifest_uri: str, manifest_sha256: str, results: str, fetch_pattern: str = "") -> str:
    """Summarise the ranks of one shard (`i/n`) of a capture, and return it. It comes first, to be mapped over."""
    with failing():
        return work.analyze_rank(manifest_uri, manifest_sha256, results, shard, fetch_pattern=fetch_pattern)


@described
def reduce(
    manifest_uri: str,
    manifest_sha256: str,
    results: str,
    analysed: list[str],
    min_ranks: int = 0,
    history: bool = True,
    trained_image: str = "",
    commit: str = "",
    fetch_pattern: str = "",
) -> Reported:
    """The report of all ranks that were analysed, and a row of the series' history.

    `analysed` are the shards that `analyze_rank` came back with: after others it is another report, so a cache must
    know. It may have come back from the cache, too, so ranks of it whose summaries are gone, or were made with another
    `fetch_pattern` since, are analysed here. Ranks that nobody analysed are named; with fewer than are needed the task
    fails, after the report of the others was written and shown.
    """
    with failing(), tempfile.TemporaryDirectory(prefix="sameshot-") as out:
        made = work.reduce(
            manifest_uri,
            manifest_sha256,
            results,
            out=Path(out),
            analysed=analysed,
            fetch_pattern=fetch_pattern,
            min_ranks=min_ranks,
            history=history,
            trained_image=trained_image,
            commit=commit,
        )
        return _reported(made)


@described
def analyze(
    manifest_uri: str,
    manifest_sha256: str,
    results: str,
    min_ranks: int = 0,
    history: bool = True,
    trained_image: str = "",
    commit: str = "",
    fetch_pattern: str = "",
    workers: int = 0,
) -> Reported:
    """What `analyze_rank` of every shard and `reduce` give, in one task."""
    with failing(), tempfile.TemporaryDirectory(prefix="sameshot-") as out:
        made = work.analyze(
            manifest_uri,
            manifest_sha256,
            results,
            out=Path(out),
            min_ranks=min_ranks,
            history=history,
            trained_image=trained_image,
            commit=commit,
            fetch_pattern=fetch_pattern,
            workers=workers,
        )
        return _reported(made)


@described
def compare(
    manifest_uri: str,
    manifest_sha256: str,
    results: str,
    threshold: float,
    before: str = "",
    accept_partial: bool = False,
    min_ranks: int = 0,
) -> Compared:
    """Compare a capture with the one before it in its series, or with the manifest at `before`.

    Where nothing is compared, that is said. The verdict is an output, never a failure.
    """
    with failing(), tempfile.TemporaryDirectory(prefix="sameshot-") as out:
        made = work.compare(
            manifest_uri,
            manifest_sha256,
            results,
            out=Path(out),
            threshold=threshold,
            before=before,
            accept_partial=accept_partial,
            min_ranks=min_ranks,
        )
        show(made.page)
        return Compared(made.comparison, _kept(made.report))


def show(page: str) -> None:
    """Make this page the report of the task that runs, now: it is there even if the task fails afterwards.

    Flyte's own template links fonts of another site; a report may have a template of its own.
    """
    report = flyte.report.current_report()
    report.template_path = deck.TEMPLATE
    report.get_tab("main").replace(deck.framed(page))
    flyte.report.flush()


def failed(error: SameshotError) -> flyte.errors.RuntimeUserError:
    """Our error as Flyte 2 knows it, with the name of its class as the code.

    What another attempt may mend is tried again as often as `retries` say, each attempt in an output folder of its own.
    None of it is called the system's: of an error of that kind that a task wrote itself, the back end (flyteorg/flyte,
    executor/pkg/controller/taskaction_controller.go) starts the same attempt over, in the folder where that error still
    lies, and counts from one again as soon as the new pod is there. Lost nodes it finds by itself.
    """
    code, text = type(error).__name__, str(error)
    if work.recoverable(error):
        return flyte.errors.RuntimeUserError(code, text)
    return flyte.errors.NonRecoverableError(text, code)


@contextlib.contextmanager
def failing() -> Iterator[None]:
    """Errors of ours leave as Flyte's; those of others are Flyte's already, or are tried again."""
    try:
        yield
    except SameshotError as error:
        raise failed(error) from error


def _reported(made: work.Made) -> Reported:
    """Shown before it is judged: the report of some ranks is worth reading, too."""
    show(made.page)
    return Reported(made.accept(), _kept(made.report), DataFrame.wrap_df(work.table(made.rows)))


def _kept(page: Path) -> File:
    """A copy that outlives this task: in a local run `File.from_local` would name the very file that is given to it."""
    kept: File = File.new_remote(page.name)
    with kept.open_sync("wb") as file:
        file.write(page.read_bytes())
    return kept
