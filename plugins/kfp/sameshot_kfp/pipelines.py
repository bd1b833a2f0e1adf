"""`profile_job`: capture → analyze each shard → reduce → compare (given a `threshold`), as a pipeline, or as a
component in another one.

components = Components.containers()
profile = profile_job(components)          # a component: nest it
watched = profile_pipeline(components)     # the same in dsl.ExitHandler: a run that fails cancels its capture
Compiler().compile(watched, "profile.yaml")
"""

# KFP reads annotations as values: no `from __future__ import annotations` here.
from typing import NamedTuple

from kfp import dsl
from kfp.dsl.base_component import BaseComponent

from sameshot_kfp.components import Components
from sameshot_kfp.interface import NO_COMPARISON

PARALLELISM = 8
"""So many shards are analysed at the same time: KFP wants it to be known when the pipeline is compiled."""


class Analysed(NamedTuple):
    """What `analyze_capture` gives."""

    report_uri: str
    verdict: str


class Profiled(NamedTuple):
    """What `profile_job` gives."""

    capture_id: str
    manifest_uri: str
    manifest_sha256: str
    outcome: str
    report_uri: str
    verdict: str


def analyze_capture(components: Components, *, parallelism: int = PARALLELISM) -> BaseComponent:
    """A component that makes the report of a published capture, and with a `threshold` compares it with the one before.

    Reduce needs every shard: a backend has no way to go on after a loop that failed (docs/kfp.md).
    """

    @dsl.pipeline(
        name="sameshot-analyze", description="Analyse a capture, all its shards at once; with a threshold compare it."
    )  # type: ignore[untyped-decorator]
    def sameshot_analyze(
        manifest_uri: str,
        manifest_sha256: str,
        shards: list,  # type: ignore[type-arg]  # KFP takes no other
        results: str,
        min_ranks: int = 0,
        threshold: float = NO_COMPARISON,
        fail_on_regression: bool = False,
    ) -> Analysed:
        of = {"manifest_uri": manifest_uri, "manifest_sha256": manifest_sha256, "results": results}
        with dsl.ParallelFor(shards, parallelism=parallelism) as shard:
            rank = components.analyze_rank(shard=shard, **of)
        report = components.reduce(shards=dsl.Collected(rank.outputs["done"]), min_ranks=min_ranks, **of)
        compared = components.compare(
            min_ranks=min_ranks, threshold=threshold, fail_on_regression=fail_on_regression, **of
        ).after(report)
        return Analysed(report_uri=report.outputs["report_uri"], verdict=compared.outputs["verdict"])

    made: BaseComponent = sameshot_analyze
    return made


def profile_job(components: Components, *, parallelism: int = PARALLELISM) -> BaseComponent:
    """A component (and, compiled, a pipeline) that profiles one running job.

    Nested twice in one pipeline, each needs a `key` of its own.
    """
    analyze = analyze_capture(components, parallelism=parallelism)

    @dsl.pipeline(name="sameshot-profile", description="Profile a running training job: from a capture to its report.")  # type: ignore[untyped-decorator]
    def sameshot_profile(
        address: str,
        results: str,
        key: str = "profile",
        job: str = "",
        duration: str = "2s",
        activities: str = "cpu,cuda",
        min_ranks: int = 0,
        if_unavailable: str = "fail",
        if_busy: str = "wait",
        timeout: str = "15m",
        threshold: float = NO_COMPARISON,
        fail_on_regression: bool = False,
    ) -> Profiled:
        picture = components.capture(
            address=address,
            key=key,
            job=job,
            duration=duration,
            activities=activities,
            min_ranks=min_ranks,
            if_unavailable=if_unavailable,
            if_busy=if_busy,
            timeout=timeout,
        )
        analysed = analyze(
            manifest_uri=picture.outputs["manifest_uri"],
            manifest_sha256=picture.outputs["manifest_sha256"],
            shards=picture.outputs["shards"],
            results=results,
            min_ranks=min_ranks,
            threshold=threshold,
            fail_on_regression=fail_on_regression,
        )
        return Profiled(
            capture_id=picture.outputs["capture_id"],
            manifest_uri=picture.outputs["manifest_uri"],
            manifest_sha256=picture.outputs["manifest_sha256"],
            outcome=picture.outputs["outcome"],
            report_uri=analysed.outputs["report_uri"],
            verdict=analysed.outputs["verdict"],
        )

    made: BaseComponent = sameshot_profile
    return made


def profile_pipeline(components: Components, *, parallelism: int = PARALLELISM) -> BaseComponent:
    """`profile_job` with an exit task: of a run that fails, the capture is cancelled if it still goes on.

    KFP allows `dsl.ExitHandler` in the outermost scope only, so this one is a pipeline, and no component to nest.
    """
    profile = profile_job(components, parallelism=parallelism)

    @dsl.pipeline(name="sameshot-profile-job", description="Profile a running training job; see docs/kfp.md.")  # type: ignore[untyped-decorator]
    def sameshot_profile_job(
        address: str,
        results: str,
        key: str = "profile",
        job: str = "",
        duration: str = "2s",
        activities: str = "cpu,cuda",
        min_ranks: int = 0,
        if_unavailable: str = "fail",
        if_busy: str = "wait",
        timeout: str = "15m",
        threshold: float = NO_COMPARISON,
        fail_on_regression: bool = False,
    ) -> None:
        with dsl.ExitHandler(components.cancel(address=address, key=key)):
            profile(
                address=address,
                results=results,
                key=key,
                job=job,
                duration=duration,
                activities=activities,
                min_ranks=min_ranks,
                if_unavailable=if_unavailable,
                if_busy=if_busy,
                timeout=timeout,
                threshold=threshold,
                fail_on_regression=fail_on_regression,
            ).set_caching_options(False)

    made: BaseComponent = sameshot_profile_job
    return made
