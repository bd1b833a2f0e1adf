"""Analysis as flytekit tasks: `analyze_rank` to map, `reduce`, `analyze` for all of it in one task, and `compare`.

    analysed = map_task(partial(analyze_rank, manifest_uri=…, …), min_success_ratio=ONE_IS_ENOUGH)(shard=capture.shards)
    made = reduce(manifest_uri=…, manifest_sha256=…, results=…, analysed=analysed)

All but `compare` are cached, by the manifest's digest, where results lie, what is wished for, and the version of
sameshot; `manifest_uri` is no part of the key, so a capture that was moved is known again. What a hit gives are the
outputs of the first time. Summaries of ranks that were deleted since are made anew by the next `reduce` that runs.
Where its own results, or the files that Flyte kept of the outputs, were deleted, overwrite the cache
(`--overwrite-cache` of `pyflyte run`, `overwrite_cache` of a launch plan, `FLYTE_LOCAL_CACHE_OVERWRITE=true` for local
runs), or name another place for results. Flyte caches each rank of a map; flytekit's local run caches the map as a
whole, with the ranks that failed in it, so there a rank that was mended is analysed once the cache is overwritten.
`compare` depends on the history, which is no input, so it is not cached.

Errors that another attempt may mend are raised as recoverable; Flyte repeats them `retries` times, and no others.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from flytekit import Cache, Resources, StructuredDataset, kwtypes, task
from flytekit.core.context_manager import FlyteContextManager
from flytekit.core.python_function_task import PythonFunctionTask
from flytekit.exceptions.user import FlyteRecoverableException
from flytekit.types.file import HTMLPage

import sameshot
from sameshot.errors import SameshotError
from sameshot.steps.places import MOST_SHARDS
from sameshot_flyte import work
from sameshot_flyte.flyte1.decks import OwnDeck, publish
from sameshot_flyte.forms import described
from sameshot_flyte.references import Analysis, Comparison

RETRIES = 3
RESOURCES = Resources(cpu="1", mem="1Gi")
"""Enough for traces of 500 MB (docs/performance.md), and what a Flyte that nobody configured lets a task ask for.
Requests and limits: propeller makes the one of the other where one is left out (flytepropeller 1.16.8,
pluginmachinery/flytek8s/container_helper.go, `AdjustOrDefaultResource`), and quotas may demand both."""

ONE_IS_ENOUGH = 1 / MOST_SHARDS
"""For `map_task`: a rank that can't be analysed takes no other along. `reduce` names it, and judges."""

Ranks = Annotated[StructuredDataset, kwtypes(**work.ROWS)]
"""A row per rank of the job, `missing` ones included (docs/flyte.md)."""


class Reported(NamedTuple):
    analysis: Analysis
    report: HTMLPage
    ranks: Ranks


class Compared(NamedTuple):
    comparison: Comparison
    report: HTMLPage


def _cached(*more: str) -> Cache:
    return Cache(version=f"sameshot-{sameshot.__version__}", ignored_inputs=("manifest_uri", *more))


_DEFAULTS: dict[str, Any] = {"retries": RETRIES, "requests": RESOURCES, "limits": RESOURCES}


@task(cache=_cached(), **_DEFAULTS)
@described
def analyze_rank(manifest_uri: str, manifest_sha256: str, results: str, shard: str, fetch_pattern: str = "") -> str:
    """Summarise the ranks of one shard (`i/n`) of a capture, and return it."""
    with _recoverably():
        return work.analyze_rank(manifest_uri, manifest_sha256, results, shard, fetch_pattern=fetch_pattern)


@task(task_config=OwnDeck(), cache=_cached(), **_DEFAULTS)
@described
def reduce(
    manifest_uri: str,
    manifest_sha256: str,
    results: str,
    analysed: list[str | None],
    min_ranks: int = 0,
    history: bool = True,
    trained_image: str = "",
    commit: str = "",
    fetch_pattern: str = "",
) -> Reported:
    """The report of all ranks that were analysed, as Deck and as a file, and a row of the series' history.

    `analysed` is what the mapped `analyze_rank` gave, so that this comes after it, and is not taken from the cache
    where it gave something else. What it gave may come from the cache, too, so ranks of it whose summaries are gone, or
    were made with another `fetch_pattern` since, are analysed here. Ranks that nobody analysed are named in the report;
    with fewer than are needed the task fails, after the report of the others was written and shown.
    """
    with _recoverably():
        made = work.reduce(
            manifest_uri,
            manifest_sha256,
            results,
            out=_folder(),
            analysed=analysed,
            fetch_pattern=fetch_pattern,
            min_ranks=min_ranks,
            history=history,
            trained_image=trained_image,
            commit=commit,
        )
        return _reported(made)


@task(task_config=OwnDeck(), cache=_cached("workers"), **_DEFAULTS)
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
    with _recoverably():
        made = work.analyze(
            manifest_uri,
            manifest_sha256,
            results,
            out=_folder(),
            min_ranks=min_ranks,
            history=history,
            trained_image=trained_image,
            commit=commit,
            fetch_pattern=fetch_pattern,
            workers=workers,
        )
        return _reported(made)


@task(task_config=OwnDeck(), **_DEFAULTS)
@described
def compare(
    manifest_uri: str,
    manifest_sha256: str,
    results: str,
    threshold: float,
    before: str = "",
    accept_partial: bool = False,
    min_ranks: int = 0,
    analysis: Analysis | None = None,
) -> Compared:
    """Compare a capture with the one before it in its series, or with the manifest at `before`.

    Where nothing is compared, that is said. The verdict is an output, never a failure.
    """
    with _recoverably():
        made = work.compare(
            manifest_uri,
            manifest_sha256,
            results,
            out=_folder(),
            threshold=threshold,
            before=before,
            accept_partial=accept_partial,
            min_ranks=min_ranks,
        )
        publish(made.page)
        return Compared(made.comparison, HTMLPage(str(made.report)))


class Tasks(NamedTuple):
    """The analysis tasks."""

    analyze_rank: PythonFunctionTask[Any]
    reduce: PythonFunctionTask[Any]
    analyze: PythonFunctionTask[Any]
    compare: PythonFunctionTask[Any]


def tasks(module: str, **settings: Any) -> Tasks:
    """The same tasks with settings of your own, for what `with_overrides` can't change: `secret_requests`,
    `environment`, `pod_template`, `labels`, … of flytekit's `task`.

        analyze_rank, reduce, analyze, compare = tasks(__name__, secret_requests=[…])

    `module` is yours, and there Flyte must find them at run time: under these names, at the top.
    """
    wished = {**_DEFAULTS, **settings}
    if "resources" in settings:  # flytekit takes all in one, or requests and limits
        wished = {name: value for name, value in wished.items() if name not in ("requests", "limits")}

    def ours(original: PythonFunctionTask[Any], **fixed: Any) -> PythonFunctionTask[Any]:
        @functools.wraps(original.task_function)
        def function(*args: Any, **kwargs: Any) -> Any:
            return original.task_function(*args, **kwargs)

        function.__module__ = module
        return task(**fixed, **wished)(function)

    return Tasks(
        analyze_rank=ours(analyze_rank, cache=_cached()),
        reduce=ours(reduce, cache=_cached(), task_config=OwnDeck()),
        analyze=ours(analyze, cache=_cached("workers"), task_config=OwnDeck()),
        compare=ours(compare, task_config=OwnDeck()),
    )


@contextlib.contextmanager
def _recoverably() -> Iterator[None]:
    """What another attempt may mend, as flytekit wants it said; all else ends the task for good."""
    try:
        yield
    except SameshotError as error:
        if work.recoverable(error):
            raise FlyteRecoverableException(str(error)) from error
        raise


def _folder() -> Path:
    """A local one of this attempt; flytekit uploads what outputs name in it."""
    return Path(FlyteContextManager.current_context().file_access.get_random_local_directory())


def _reported(made: work.Made) -> Reported:
    publish(made.page)
    return Reported(made.accept(), HTMLPage(str(made.report)), StructuredDataset(dataframe=work.table(made.rows)))
