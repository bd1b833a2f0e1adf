"""Which jobs there are to capture: what a DAG is mapped over."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sameshot.client.local import JobInfo, write_job_file
from sameshot.errors import UsageError
from sameshot.model import JobRef
from sameshot.steps.jobs import FoundJob, find_jobs, find_jobs_async
from support.coordination import in_loop
from support.fake_agent import JOB
from support.step_requests import training


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "runs"
    root.mkdir(mode=0o700)
    monkeypatch.setenv("SAMESHOT_RUNTIME_DIR", str(root))
    for started, (folder, name, team, alive) in enumerate(
        [("r1", "bert", "nlp", True), ("r2", "gpt", "nlp", True), ("r3", "gpt", "x", True), ("r4", "old", "nlp", False)]
    ):
        (root / folder).mkdir()
        info = JobInfo(
            job=JobRef("local", name, f"uid-{folder}"),
            series=f"{name}-nightly",
            labels={"team": team},
            coordinator=f"unix:/tmp/{folder}.sock",
            archive="/archive",
            pid=os.getpid() if alive else 2**22 + 1,
            started_at_ns=started,
        )
        write_job_file(root / folder, info)
    return root


def test_local_jobs_are_found_newest_first_and_addressed_so_that_each_is_meant(root: Path) -> None:
    assert [(job.name, job.address, job.uid) for job in find_jobs()] == [
        ("gpt", "local:r3", "uid-r3"),  # two have this name
        ("gpt", "local:r2", "uid-r2"),
        ("bert", "local:bert", "uid-r1"),
    ]


def test_labels_choose_and_an_ambiguous_name_stays_one_whatever_they_choose(root: Path) -> None:
    assert [(job.name, job.address) for job in find_jobs("local", {"team": "nlp"})] == [
        ("gpt", "local:r2"),
        ("bert", "local:bert"),
    ]
    assert find_jobs("local", {"team": "none"}) == []


def test_a_name_chooses_too_and_a_job_that_has_ended_is_not_found(root: Path) -> None:
    assert [job.uid for job in find_jobs("local:gpt")] == ["uid-r3", "uid-r2"]
    assert [job.uid for job in find_jobs("local:r1")] == ["uid-r1"]
    assert find_jobs("local:old") == []


@in_loop
async def test_a_coordinators_address_gives_its_one_job_which_has_no_labels(tmp_path: Path) -> None:
    async with training(tmp_path) as (_, client):
        found = await find_jobs_async(client.address)
        assert found == [
            FoundJob(name=JOB.name, address=client.address, uid=JOB.uid, attempt=0, namespace="local", series="nightly")
        ]
        with pytest.raises(UsageError, match="labels"):
            await find_jobs_async(client.address, {"team": "nlp"})
