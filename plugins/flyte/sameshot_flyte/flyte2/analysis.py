"""What the analysis tasks of Flyte 2 do: plain functions, which `workflow.tasks` makes tasks of in an environment.

Flyte 2 has two words for a failure. An error is recoverable, and then tried again as often as the task's `retries` say,
unless it is a `NonRecoverableError`; and it is the user's or the system's. `failed` is that table.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import flyte.errors
import flyte.report
from flyte.io import DataFrame, File

from sameshot.errors import SameshotError, TryAgain
from sameshot_flyte import deck, work
from sameshot_flyte.references import Analysis, Comparison


class Analysed(NamedTuple):
    """`report` is the page, `ranks` a table (Parquet) with one row per rank of the job; `work.ROWS` are its columns."""

    analysis: Analysis
    report: File
    ranks: DataFrame


class Compared(NamedTuple):
    comparison: Comparison
    report: File


def analyze_rank(shard: str, manifest_uri: str, manifest_sha256: str, results: str, fetch_pattern: str = "") -> str:
    """Summarise the ranks of one shard, and return it: `reduce` is given those that came back."""
    with failing():
        return work.analyze_rank(manifest_uri, manifest_sha256, results, shard, fetch_pattern=fetch_pattern)


def reduce(
    shards: list[str],
    manifest_uri: str,
    manifest_sha256: str,
    results: str,
    min_ranks: int = 0,
    history: bool = True,
    trained_image: str = "",
    commit: str = "",
) -> Analysed:
    """The report of all ranks that were analysed; the others are named. Fails where `min_ranks` (0: all) are more.

    `shards` are those that `analyze_rank` came back with: with others it is another report, so a cache must know them.
    """
    with failing(), tempfile.TemporaryDirectory(prefix="sameshot-") as out:
        made = work.reduce(
            manifest_uri,
            manifest_sha256,
            results,
            out=Path(out),
            min_ranks=min_ranks,
            history=history,
            trained_image=trained_image,
            commit=commit,
        )
        return _analysed(made)


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
) -> Analysed:
    """All of it in one task: what `analyze_rank` of all shards and then `reduce` do."""
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
        return _analysed(made)


def compare(
    manifest_uri: str,
    manifest_sha256: str,
    results: str,
    threshold: float,
    before: str = "",
    accept_partial: bool = False,
    min_ranks: int = 0,
) -> Compared:
    """Against the capture before it in its series, or that whose manifest is at `before`. A verdict is no failure."""
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


def failed(error: SameshotError) -> flyte.errors.BaseRuntimeError:
    """Our error as Flyte 2 knows it, with the name of its class as the code:

    - another attempt can't mend it: `NonRecoverableError`, of the user
    - the way to the storage is broken: of the system, which another attempt may find well
    - anything else: of the user, tried again
    """
    code, text = type(error).__name__, str(error)
    if not work.recoverable(error):
        return flyte.errors.NonRecoverableError(text, code)
    if isinstance(error, TryAgain):
        return flyte.errors.RuntimeSystemError(code, text)
    return flyte.errors.RuntimeUserError(code, text)


@contextlib.contextmanager
def failing() -> Iterator[None]:
    """Errors of ours leave as Flyte's; those of others are Flyte's already, or are tried again."""
    try:
        yield
    except SameshotError as error:
        raise failed(error) from error


def _analysed(made: work.Made) -> Analysed:
    """Shown before it is judged: the report of some ranks is worth reading, too."""
    show(made.page)
    return Analysed(made.accept(), _kept(made.report), DataFrame.wrap_df(_table(made.rows)))


def _kept(page: Path) -> File:
    """A copy that outlives this task: in a local run `File.from_local` would name the very file that is given to it."""
    kept: File = File.new_remote(page.name)
    with kept.open_sync("wb") as file:
        file.write(page.read_bytes())
    return kept


def _table(rows: list[dict[str, Any]]) -> Any:
    import pyarrow as pa

    types = {int: pa.int64(), float: pa.float64(), str: pa.string(), bool: pa.bool_()}
    return pa.Table.from_pylist(rows, schema=pa.schema([(name, types[kind]) for name, kind in work.ROWS.items()]))
