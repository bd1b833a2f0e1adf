"""A training job profiled by Flyte 2: by hand, and every night.

    flyte run --local flyte2_profile.py profile_job --address local:bert --results /tmp/results     # on this machine
    flyte deploy flyte2_profile.py env                                                              # to a cluster

What is written here is fixed by `flyte deploy`: image, secrets, resources, schedule. Everything about the capture is an
input of `profile_job`: another run, or another trigger made in the console, sets it without a new deployment.
"""

import flyte

from sameshot_flyte.flyte2 import tasks

nightly = flyte.Trigger(
    name="nightly",
    automation=flyte.Cron("0 2 * * *", timezone="UTC"),
    description="Two seconds of every rank, against the night before.",
    inputs={
        "address": "trainer.training.svc:7000",
        "results": "s3://profiling/results",
        "duration": "2s",
        "if_unavailable": "skip",  # a night without training is no failure
        "threshold": 0.1,
    },
)

profiling = tasks(
    "profiling",
    image="registry.example.com/sameshot-flyte2:1",  # Python with sameshot[flyte2]
    resources=flyte.Resources(cpu=("1", "4"), memory=("2Gi", "8Gi")),
    # Results have a credential of their own; the archive is read with that of the service account, or AWS_*.
    secrets=[
        flyte.Secret("results-key-id", as_env_var="SAMESHOT_RESULTS_AWS_ACCESS_KEY_ID"),
        flyte.Secret("results-key", as_env_var="SAMESHOT_RESULTS_AWS_SECRET_ACCESS_KEY"),
    ],
    triggers=[nightly],
)

env = profiling.env
profile_job = profiling.profile_job
analyze = profiling.analyze
