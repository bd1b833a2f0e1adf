"""All tasks of one environment of Flyte 2, and the one that runs them: from a capture to its report.

    from sameshot_flyte.flyte2 import tasks

    profiling = tasks("profiling", image="registry.example.com/sameshot:1", secrets=[flyte.Secret("results-key", …)])
    env, profile_job = profiling.env, profiling.profile_job       # flyte deploy this_file.py env

What an environment fixes (image, resources, secrets) is fixed at registration; everything else is an input.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

import flyte
from flyte.io import File

import sameshot
from sameshot_flyte import work
from sameshot_flyte.flyte2 import analysis
from sameshot_flyte.flyte2.analysis import Compared, Ranks, Reported
from sameshot_flyte.flyte2.resolver import Resolver
from sameshot_flyte.flyte2.task import SameshotCapture
from sameshot_flyte.flyte2.task import capture as THE_CAPTURE  # noqa: N812
from sameshot_flyte.forms import described
from sameshot_flyte.references import Analysis, Capture, Comparison

IMAGE = f"sameshot/flyte2:{sameshot.__version__}"
"""Python with `sameshot[flyte2]`, of this very version. Nobody publishes it (docs/flyte.md has the lines to build one):
give the address to which yours was pushed."""
RESOURCES = flyte.Resources(cpu=("1", "4"), memory=("2Gi", "8Gi"))
RETRIES = flyte.RetryStrategy(
    count=2, backoff=flyte.Backoff(base=timedelta(seconds=10), factor=3, cap=timedelta(minutes=2))
)
RESOURCES_OF_THE_JOB = flyte.Resources(cpu=("250m", "1"), memory=("512Mi", "1Gi"))
"""Of `profile_job` itself, which has a pod from the capture to the report: it waits for its tasks, and shows a page."""
CONCURRENCY = 8
"""Ranks that are read at the same time."""


class OfThisVersion:
    """A `flyte.CachePolicy`: what was analysed by another version of sameshot is analysed anew."""

    def get_version(self, salt: str, params: object) -> str:
        return f"{salt}/sameshot {sameshot.__version__}"


def by_digest(*ignored: str) -> flyte.Cache:
    """The digest says which capture it is, wherever its manifest lies, and every other input what to make of it.

    What a hit gives is what was made the first time. Summaries of ranks that were deleted since are made anew by the
    next `reduce` that runs. Where its own results were deleted, run with an overwritten cache
    (`flyte.with_runcontext(overwrite_cache=True)`, `overwrite_cache` of a trigger), or name another place for results.
    Local runs (flyte 2.12) do not look at that: `flyte.with_runcontext(disable_run_cache=True)` makes all anew there,
    and the cache still knows what it knew.
    """
    return flyte.Cache("auto", policies=[OfThisVersion()], ignored_inputs=("manifest_uri", *ignored))


class Profile(NamedTuple):
    """What is there in the end. After a capture that was skipped as asked for, `capture.message` says why, and the
    rest that there was nothing to do. `comparison_report` says so, too, where nothing was compared."""

    capture: Capture
    analysis: Analysis
    report: File
    ranks: Ranks
    comparison: Comparison
    comparison_report: File


@dataclass(frozen=True)
class Tasks:
    """Tasks that belong together. `env` is what is deployed; it depends on the environment of `capture`."""

    env: flyte.TaskEnvironment
    capture: SameshotCapture
    analyze_rank: flyte.AsyncFunctionTaskTemplate[..., str, Callable[..., str]]
    reduce: flyte.AsyncFunctionTaskTemplate[..., Reported, Callable[..., Reported]]
    analyze: flyte.AsyncFunctionTaskTemplate[..., Reported, Callable[..., Reported]]
    compare: flyte.AsyncFunctionTaskTemplate[..., Compared, Callable[..., Compared]]
    profile_job: flyte.AsyncFunctionTaskTemplate[..., Coroutine[Any, Any, Profile], Any]


def tasks(
    name: str = "sameshot",
    *,
    image: str | flyte.Image = IMAGE,
    resources: flyte.Resources = RESOURCES,
    resources_of_the_job: flyte.Resources = RESOURCES_OF_THE_JOB,
    cache: flyte.CacheRequest | None = None,
    retries: int | flyte.RetryStrategy = RETRIES,
    triggers: Sequence[flyte.Trigger] = (),
    capture: SameshotCapture | None = None,
    module: str = "",
    **environment: Any,
) -> Tasks:
    """Make the tasks of an environment called `name`. Call it at the top of a module, and keep what it returns there.

    `image` must hold `sameshot[flyte2]`, and clusters need one of yours (`IMAGE`). `resources` are those of each
    analysis task, `resources_of_the_job` those of `profile_job`, which waits for them (with `reusable`, all have those
    of the environment). `cache` is that of the analysis, by default `by_digest()`; a capture is never cached, nor a
    comparison, which depends on what the history has. `retries` are those of each analysis task. `triggers` start
    `profile_job`. `capture`: a capture task of your own. `environment`: more of `flyte.TaskEnvironment`: `secrets`,
    `env_vars`, `service_account`, `pod_template`, … `module`: the `__name__` of the module that keeps this, unless it
    is the caller's: for functions of yours that call this for others.
    """
    picture = capture or THE_CAPTURE
    env = flyte.TaskEnvironment(
        name=name,
        image=image,
        resources=resources,
        depends_on=[_home_of(picture), *environment.pop("depends_on", ())],
        **environment,
    )
    resolver = Resolver(module or sys._getframe(1).f_globals["__name__"])
    made = partial(env.task, retries=retries, task_resolver=resolver)
    analyze_rank = made(cache=cache or by_digest())(analysis.analyze_rank)
    reduce = made(cache=cache or by_digest(), report=True)(analysis.reduce)
    analyze = made(cache=cache or by_digest("workers"), report=True)(analysis.analyze)
    compare = made(cache="disable", report=True)(analysis.compare)

    @env.task(report=True, entrypoint=True, triggers=tuple(triggers), task_resolver=resolver)
    @described
    async def profile_job(
        address: str,
        results: str,
        job: str = "",
        uid: str = "",
        attempt: int = -1,
        duration: str = "2s",
        activities: str = "cpu,cuda",
        with_stack: bool = False,
        record_shapes: bool = False,
        warmup: str = "1s",
        min_ranks: int = 0,
        if_unavailable: str = "fail",
        if_busy: str = "wait",
        timeout: str = "15m",
        caller: str = "",
        fetch_pattern: str = "",
        history: bool = True,
        trained_image: str = "",
        commit: str = "",
        threshold: float = -1.0,
        accept_partial: bool = False,
        concurrency: int = CONCURRENCY,
    ) -> Profile:
        """Capture a running training job, analyse each rank in a task of its own, and report on all of them.

        A rank whose trace is damaged is named in the report of the others; `min_ranks` says how many are enough. With a
        `threshold` of 0 or more the capture is compared with the one before it in its series.
        """
        took: Capture = await picture.aio(
            address=address,
            job=job,
            uid=uid,
            attempt=attempt,
            duration=duration,
            activities=activities,
            with_stack=with_stack,
            record_shapes=record_shapes,
            warmup=warmup,
            min_ranks=min_ranks,
            if_unavailable=if_unavailable,
            if_busy=if_busy,
            timeout=timeout,
            caller=caller,
        )
        of: dict[str, Any] = {
            "manifest_uri": took.manifest_uri,
            "manifest_sha256": took.manifest_sha256,
            "results": results,
        }
        if took.manifest_uri:
            each = partial(analyze_rank, fetch_pattern=fetch_pattern, **of)
            done = await _mapped(each, list(took.shards), max(concurrency, 1))
            made = await reduce.aio(
                **of,
                analysed=done,
                fetch_pattern=fetch_pattern,
                min_ranks=min_ranks,
                history=history,
                trained_image=trained_image,
                commit=commit,
            )
        else:  # no task is needed to say so
            made = await asyncio.to_thread(analysis.reduce, **of, analysed=[])
        if took.manifest_uri and threshold >= 0:
            compared = await compare.aio(**of, threshold=threshold, accept_partial=accept_partial, min_ranks=min_ranks)
        else:
            compared = await asyncio.to_thread(analysis.compare, **of, threshold=threshold)
        analysed, report, ranks = made  # a plain tuple, when it has come through Flyte
        await asyncio.to_thread(_show, report, analysed)
        return Profile(took, analysed, report, ranks, *compared)

    if env.reusable is None:
        profile_job.resources = resources_of_the_job  # `env.task` has no such argument

    return Tasks(env, picture, analyze_rank, reduce, analyze, compare, profile_job)


def _home_of(capture: SameshotCapture) -> flyte.Environment:
    """The environment of a capture task; one of its own if it has none."""
    home = capture.parent_env() if capture.parent_env is not None else None
    return home or flyte.TaskEnvironment.from_task(capture.name, capture)


async def _mapped(analyze_rank: partial[str], shards: list[str], concurrency: int) -> list[str]:
    """The shards that came back. One that failed is not among them, and ends no other one; where all have, the first
    error is raised, as it says more than a report of nobody."""
    mapped = flyte.map.aio(analyze_rank, shards, group_name="ranks", concurrency=concurrency, return_exceptions=True)
    ended = [each async for each in mapped]
    errors = {shard: each for shard, each in zip(shards, ended, strict=True) if isinstance(each, Exception)}
    for shard, error in errors.items():
        flyte.logger.warning("The ranks of shard %s were not analysed: %s", shard, error)
    if errors and len(errors) == len(shards):
        raise next(iter(errors.values()))
    return [each for each in ended if not isinstance(each, Exception)]


def _show(report: File, analysed: Analysis) -> None:
    """Of a report that a cache knows the file may be gone, and the profile is there without it."""
    try:
        with report.open_sync("rb") as file:
            page = bytes(file.read()).decode()
    except Exception as error:  # each kind of storage has its own
        text = (
            f"The report at {report.path} could not be read ({type(error).__name__}: {error}). The analysis itself is "
            f"there; its report is {analysed.report_uri}, too, unless that was deleted as well. A cache gives what was "
            "made the first time: to have the report made again, run with an overwritten cache "
            "(flyte.with_runcontext(overwrite_cache=True), in a local run disable_run_cache=True), or name another "
            "place for results."
        )
        flyte.logger.warning(text)
        page = work.note(text)
    analysis.show(page)
