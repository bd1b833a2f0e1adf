"""The policy in force comes from a file that may change at any time, and the configuration's file says all the rest."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from coordination import SPEC, in_loop
from coordinator_cluster import Cluster

from sameshot.coordinator.configfile import ClusterConfig, encoded, read_config
from sameshot.coordinator.policyfile import PolicyFile
from sameshot.errors import PolicyRefused, UsageError
from sameshot.kube import names
from sameshot.model import CapturePolicy, JobRef, Outcome

TIGHT = {"max_duration_ms": 10}


def write(path: Path, content: Any) -> None:
    """As the kubelet does: the link to a folder is exchanged for one to another folder."""
    folder = path.with_name(f"..{len(list(path.parent.iterdir()))}")
    folder.mkdir()
    (folder / path.name).write_text(content if isinstance(content, str) else json.dumps(content))
    link = path.with_name("..data")
    scratch = path.with_name("..data_tmp")
    scratch.symlink_to(folder.name)
    scratch.replace(link)
    if not path.is_symlink():
        path.symlink_to(Path("..data") / path.name)


@in_loop
async def test_a_policy_that_changes_holds_from_the_next_start_on(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        job = cluster.job("llama")
        await cluster.node("a", [0], job, 1)
        policy = tmp_path / "policies" / "policy.json"
        policy.parent.mkdir()
        write(policy, {})
        async with cluster.coordinator(job, policy=policy), cluster.client(job) as client:
            running = await client.start_capture(SPEC)
            write(policy, TIGHT)
            assert (await client.describe()).policy.max_duration_ms == 10
            with pytest.raises(PolicyRefused, match="10 ms"):
                await client.start_capture(SPEC)
            assert (await client.wait(running.capture_id)).outcome is Outcome.SUCCEEDED


@pytest.mark.parametrize(
    "bad",
    ["{", "[]", '{"max_duration_ms": "long"}', '{"max_duration": 1}', ""],
    ids=["cut off", "a list", "no number", "unknown", "empty"],
)
def test_a_policy_that_can_not_be_read_leaves_the_last_good_one_in_force_and_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, bad: str
) -> None:
    path = tmp_path / "policy.json"
    write(path, TIGHT)
    policy = PolicyFile(path)
    assert policy().max_duration_ms == 10
    write(path, bad)
    assert [policy().max_duration_ms for _ in range(3)] == [10, 10, 10]
    assert "can't be read" in policy.trouble
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    write(path, {"max_duration_ms": 20})
    assert (policy().max_duration_ms, policy.trouble) == (20, "")


def test_a_policy_that_goes_away_does_not_open_the_door(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    path.write_text(json.dumps(TIGHT))
    policy = PolicyFile(path)
    path.unlink()
    assert policy().max_duration_ms == 10
    assert "is not there any more" in policy.trouble


def test_without_a_policy_the_defaults_hold_until_there_is_one_and_a_bad_one_is_no_start(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    policy = PolicyFile(path)
    assert policy() == CapturePolicy()
    write(path, TIGHT)
    assert policy().max_duration_ms == 10
    write(path, "{")
    with pytest.raises(UsageError, match="can't be read"):
        PolicyFile(path)


def test_a_policy_that_has_not_changed_is_not_read_again(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    path.write_text(json.dumps(TIGHT))
    policy = PolicyFile(path)
    before = path.stat()
    path.write_text(json.dumps({"max_duration_ms": 99}))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert policy().max_duration_ms == 10


SMALLEST: dict[str, Any] = {"job": {"namespace": "ml", "name": "llama", "uid": "0b1c"}, "archive": "s3://traces"}


def test_the_smallest_configuration_is_a_job_and_an_archive(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(SMALLEST))
    config = read_config(path)
    assert config == ClusterConfig(job=JobRef("ml", "llama", "0b1c", 0), archive="s3://traces")
    assert config.operator == "system:serviceaccount:sameshot-system:sameshot-operator"
    assert (config.listen, config.agent_port) == ("0.0.0.0:7443", names.AGENT_PORT)


def test_a_configuration_comes_back_from_its_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**SMALLEST, "ca": "/x/ca.crt", "api_token": "/x/token", "timings": {"freeze_s": 1}}))
    config = read_config(path)
    assert (config.ca, config.api_token, config.timings.freeze_s) == (Path("/x/ca.crt"), Path("/x/token"), 1.0)
    path.write_bytes(encoded(config))
    assert read_config(path) == config


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ca": 7}, "7 is no path"),
        ({"archiv": "s3://x"}, "unknown field `archiv`"),
        ({"job": {"namespace": "ml", "name": "llama", "uid": "../x"}}, "its uid '../x' is none"),
        ({"job": {"namespace": "m/l", "name": "llama", "uid": "0b1c"}}, "is not usable as a name"),
        ({"agent_port": 0}, "is no port"),
        ({"timings": {"freeze": 1}}, "unknown field `freeze`"),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value)),
)
def test_a_configuration_that_can_not_be_served_is_refused_at_the_start(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**SMALLEST, **change}))
    with pytest.raises(UsageError, match=words):
        read_config(path)


def test_every_field_of_the_configuration_is_documented() -> None:
    text = ClusterConfig.__doc__ or ""
    assert [name for name in ClusterConfig.__struct_fields__ if f"`{name}`" not in text] == []
