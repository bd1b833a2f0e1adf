"""One training job, profiled each night and whenever somebody wants it: a user's file for flytekit 1.16.

    pip install 'sameshot[flyte]'
    pyflyte run flytekit_profile.py profile_on_demand --address local:bert --results /tmp/results --duration 500ms
    pyflyte --pkgs flytekit_profile package --image registry.local/ours:1 --source . --output package.tgz
    flytectl create execution …     # or the console: each input of a launch plan can be changed for one execution

Only what is written here as a value is frozen when this file is registered; all inputs of the workflows and their
defaults in the launch plans are changed without that. The image needs sameshot with its extra `flyte` in it.
"""

from functools import partial

from flytekit import CronSchedule, LaunchPlan, Resources, Secret, map_task, workflow

from sameshot_flyte import capture, profile_job
from sameshot_flyte.flyte1.analysis import ONE_IS_ENOUGH, tasks
from sameshot_flyte.references import Analysis

# As it is: each night at three, compared with the night before.
nightly = LaunchPlan.get_or_create(
    profile_job,
    name="profile_bert_nightly",
    default_inputs={
        "address": "bert-coordinator.training.svc:7000",
        "results": "s3://profiles/results",
        "duration": "5s",
        "if_unavailable": "skip",
        "threshold": 0.1,
    },
    schedule=CronSchedule(schedule="0 3 * * *"),
)

# Put together by hand: the stores' keys come from a secret, and traces are large.
analyze_rank, reduce, analyze, compare = tasks(
    __name__,
    secret_requests=[
        Secret(group="sameshot", key="access-key-id", env_var="AWS_ACCESS_KEY_ID"),
        Secret(group="sameshot", key="secret-access-key", env_var="AWS_SECRET_ACCESS_KEY"),
    ],
)


@workflow
def profile_on_demand(
    address: str, results: str, duration: str = "2s", min_ranks: int = 0, fetch_pattern: str = ""
) -> Analysis:
    """A capture and its report; with `min_ranks` (0: all) also where some ranks are missing."""
    picture = capture(address=address, duration=duration, min_ranks=min_ranks)
    one_shard = partial(
        analyze_rank,
        manifest_uri=picture.manifest_uri,
        manifest_sha256=picture.manifest_sha256,
        results=results,
        fetch_pattern=fetch_pattern,
    )
    analysed = map_task(one_shard, concurrency=16, min_success_ratio=ONE_IS_ENOUGH)(shard=picture.shards)
    analysed.with_overrides(requests=Resources(cpu="2", mem="8Gi"), limits=Resources(cpu="2", mem="8Gi"))
    made = reduce(
        manifest_uri=picture.manifest_uri,  # not that of above: flytekit reads a field from each of these once
        manifest_sha256=picture.manifest_sha256,
        results=results,
        analysed=analysed,
        fetch_pattern=fetch_pattern,  # as that of the ranks
        min_ranks=min_ranks,
    )
    return made.analysis
