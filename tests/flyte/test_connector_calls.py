"""What the connector of flytekit makes of propeller's calls, against a real coordinator with scripted agents."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import grpc
import msgspec
import pytest

pytest.importorskip("flytekit", reason="flytekit 1.16 ends at Python 3.12")
from flyte_connector import literals, metadata, output_of, output_prefix, phase, serving, spec_of
from flyteidl.core import literals_pb2
from flyteidl.core.execution_pb2 import TaskExecution
from flytekit.models.literals import LiteralMap
from flytekit.models.task import TaskExecutionMetadata, TaskTemplate

from sameshot.client import AsyncClient
from sameshot.model import CaptureSpec, CaptureState, FailureReason, JobRef, TargetState
from sameshot.steps.glance import Glances
from sameshot_flyte import Capture, SameshotCapture, SameshotConnector, capture
from sameshot_flyte.flyte1.connector import CaptureMeta
from support.coordination import in_loop, until, until_view
from support.fake_agent import deliver, failing, stay, worker
from support.silent_network import network_to
from support.step_requests import by_rank, training


def inputs(client: AsyncClient, **more: str | int | bool) -> dict[str, str | int | bool]:
    return {"address": client.address, "caller": "ana", "duration": "1s", **more}


async def ids(client: AsyncClient) -> set[str]:
    return {view.capture_id for view in await client.captures()}


def remembered(meta: bytes) -> dict[str, str]:
    found = json.loads(meta)
    assert isinstance(found, dict)
    return found


# ---- create


@in_loop
async def test_create_twice_is_one_capture_also_in_another_attempt(tmp_path: Path) -> None:
    async with training(tmp_path) as (agent, client), serving() as flyte:
        agent.script = stay(TargetState.CONSUMED)
        metas = [await flyte.create(inputs(client), attempt=attempt) for attempt in (0, 0, 1, 2)]
        assert {remembered(meta)["capture_id"] for meta in metas} == await ids(client)
        assert len(await ids(client)) == 1
        assert agent.calls.count("Dispatch") == 1


@in_loop
async def test_every_place_has_a_capture_of_its_own(tmp_path: Path) -> None:
    async with training(tmp_path) as (_, client), serving() as flyte:
        for where in (
            {"node": "n0"},
            {"node": "n1"},
            {"node": "n0", "execution": "g7d2"},
            {"node": "n0", "prefix": output_prefix("n5", "n0")},
            {"node": "n0", "prefix": output_prefix("n6", "n0")},
            {"node": "n0", "index": 0},
            {"node": "n0", "index": 1},
        ):
            await flyte.ended(await flyte.create(inputs(client), **where))  # type: ignore[arg-type]
        assert len(await ids(client)) == 7


@in_loop
async def test_what_is_not_given_has_its_default(tmp_path: Path) -> None:
    async with training(tmp_path) as (_, client), serving() as flyte:
        await flyte.create({"address": client.address})
        (begun,) = await client.captures()
        assert begun.spec == CaptureSpec(duration_ms=2000, warmup_ms=1000)


@in_loop
async def test_what_is_given_is_what_is_captured(tmp_path: Path) -> None:
    async with training(tmp_path) as (_, client), serving() as flyte:
        said = inputs(client, duration="500ms", activities="cpu", with_stack=True, warmup="3s", attempt=0, uid="")
        await flyte.create(said)
        (begun,) = await client.captures()
        assert begun.caller == "ana"
        assert (begun.spec.duration_ms, begun.spec.warmup_ms, begun.spec.with_stack) == (500, 3000, True)
        assert [each.value for each in begun.spec.activities] == ["cpu"]


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"duration": "1x"}, "duration: '1x'"),
        ({"if_busy": "maybe"}, "if_busy: 'maybe'"),
        ({"min_ranks": -3}, "min_ranks"),
        ({"activities": "cpu,tpu"}, "tpu"),
        ({"address": ""}, "`address`"),
        ({"colour": "red"}, "colour"),
        ({"timeout": "0s"}, "timeout"),
    ],
)
@in_loop
async def test_an_input_that_can_t_be_read_fails_for_good_and_is_named(
    tmp_path: Path, wrong: Mapping[str, str | int | bool], named: str
) -> None:
    async with training(tmp_path) as (_, client), serving() as flyte:
        meta = await flyte.create(inputs(client, **wrong))
        seen = await flyte.get(meta)
        assert (phase(seen), named in seen.message) == ("FAILED", True), seen.message
        await flyte.delete(meta)
        assert await ids(client) == set()


def packed(value: object) -> literals_pb2.Literal:
    """As propeller 1.14 and later hands over what is bound to an attribute of a dataclass."""
    binary = literals_pb2.Binary(value=msgspec.msgpack.encode(value), tag="msgpack")
    return literals_pb2.Literal(scalar=literals_pb2.Scalar(binary=binary))


@in_loop
async def test_what_is_bound_to_an_attribute_of_a_dataclass_is_read(tmp_path: Path) -> None:
    async with training(tmp_path) as (_, client), serving() as flyte:
        bound = {"address": client.address, "duration": "500ms", "with_stack": True, "attempt": 0, "job": None}
        await flyte.create({name: packed(value) for name, value in bound.items()} | {"caller": "ana"})
        (begun,) = await client.captures()
        assert (begun.spec.duration_ms, begun.spec.with_stack, begun.caller) == (500, True, "ana")


@pytest.mark.parametrize(
    ("literal", "says"),
    [
        (packed({"host": "x"}), "The input `address` is {'host': 'x'} (dict), not a text."),
        (literals_pb2.Literal(scalar=literals_pb2.Scalar(binary={"value": b"\xc1", "tag": "msgpack"})), "not a text"),
        (literals_pb2.Literal(scalar=literals_pb2.Scalar(binary={"value": b"x", "tag": "pickle"})), "not a text"),
        (literals_pb2.Literal(collection=literals_pb2.LiteralCollection()), "not a text"),
    ],
    ids=["a dict", "damaged", "another encoding", "a list"],
)
@in_loop
async def test_what_is_no_text_is_refused_in_flytes_words(literal: literals_pb2.Literal, says: str) -> None:
    async with serving() as flyte:
        seen = await flyte.get(await flyte.create({"address": literal}))
        assert (phase(seen), says in seen.message) == ("FAILED", True), seen.message
        assert "template" not in seen.message


@pytest.mark.full
@in_loop
async def test_a_silent_coordinator_is_answered_for_in_time_and_only_an_unconfirmed_cancel_is_an_error(
    tmp_path: Path,
) -> None:
    """propeller gives a call ten seconds, counts each error of `get` against the task, and repeats a failed `delete`;
    `Calls` gives as much."""
    async with training(tmp_path) as (agent, client), serving() as flyte, network_to(client.address) as network:
        agent.script = stay(TargetState.CONSUMED)
        under_way = await flyte.create(inputs(client) | {"address": network.address})
        network.fall_silent()
        seen = await flyte.get(under_way)
        assert (phase(seen), seen.message.startswith("waiting: ")) == ("RUNNING", True)
        with pytest.raises(grpc.aio.AioRpcError, match=r"did not (confirm|answer)"):
            await flyte.delete(under_way)

        not_begun = await flyte.create(inputs(client) | {"address": network.address}, node="n1")
        seen = await flyte.get(not_begun)
        assert (phase(seen), seen.message.startswith("waiting: ")) == ("WAITING_FOR_RESOURCES", True)
        seen = await flyte.ended(not_begun)
        assert (phase(seen), "did not answer" in seen.message) == ("RETRYABLE_FAILED", True)
        assert len(await ids(client)) == 1


# ---- get


@in_loop
async def test_a_capture_is_told_from_its_beginning_to_its_typed_output(tmp_path: Path) -> None:
    async with training(tmp_path) as (agent, client), serving() as flyte:
        agent.script = stay(TargetState.CONSUMED)
        meta = await flyte.create(inputs(client))
        capture_id = remembered(meta)["capture_id"]
        await until_view(client, capture_id, lambda view: view.state is CaptureState.COLLECTING)
        seen = await flyte.get(meta)
        assert phase(seen) == "RUNNING"
        assert seen.message == f"capture {capture_id} of train: COLLECTING, 0 of 2 archived"
        assert not seen.HasField("outputs")

        agent.script = deliver
        seen = await flyte.ended(meta)
        assert (phase(seen), seen.message) == ("SUCCEEDED", "All 2 ranks of train have a verified trace.")
        manifest = json.loads(await client.manifest(capture_id))
        assert await output_of(seen) == Capture(
            capture_id=capture_id,
            request_key="flyte/ml/production/f3a9c1/n0/-1",
            job="local/train",
            attempt=0,
            series="nightly",
            outcome="SUCCEEDED",
            manifest_uri=f"{(tmp_path / 'archive').as_uri()}/local/train/0/{capture_id}/manifest.json",
            manifest_sha256=manifest["sha256"],
            expected=2,
            archived=2,
            shards=["0/2", "1/2"],
            message="All 2 ranks of train have a verified trace.",
        )


@in_loop
async def test_ranks_that_are_missing_fail_for_good_unless_so_few_are_enough(tmp_path: Path) -> None:
    async with training(tmp_path) as (agent, client), serving() as flyte:
        agent.script = by_rank(r0=deliver, r1=failing(FailureReason.WORKER_EXITED))
        strict = await flyte.ended(await flyte.create(inputs(client), node="n0"))
        assert (phase(strict), "rank 1" in strict.message, strict.HasField("outputs")) == ("FAILED", True, False)
        lenient = await flyte.ended(await flyte.create(inputs(client, min_ranks=1), node="n1"))
        output = await output_of(lenient)
        assert (phase(lenient), output.outcome, output.missing) == ("SUCCEEDED", "PARTIAL", "1")
        assert "rank 1" in lenient.message


@in_loop
async def test_a_capture_that_nobody_knows_is_lost_and_worth_a_retry(tmp_path: Path) -> None:
    async with training(tmp_path) as (_, client), serving() as flyte:
        meta = await flyte.create(inputs(client))
        await flyte.ended(meta)
        other = json.loads(meta) | {"capture_id": "0" * 32, "manifest_uri": f"{tmp_path}/archive/none/manifest.json"}
        seen = await flyte.get(json.dumps(other).encode())
        assert phase(seen) == "RETRYABLE_FAILED"
        assert f"Neither the coordinator nor the archive knows capture {'0' * 32} any more" in seen.message


@pytest.mark.parametrize("meta", [b"", b"\xff\x00", b"{}", b'{"version":2,"request":{"request_key":"k"}}', b"[1]"])
@in_loop
async def test_a_state_that_can_t_be_read_fails_with_words_and_not_with_an_error(meta: bytes) -> None:
    async with serving() as flyte:
        seen = await flyte.get(meta)
        assert (phase(seen), seen.message.startswith("Flyte handed over")) == ("FAILED", True), seen.message
        await flyte.delete(meta)


@in_loop
async def test_the_state_of_another_version_says_so(tmp_path: Path) -> None:
    async with training(tmp_path) as (_, client), serving() as flyte:
        meta = await flyte.create(inputs(client))
        assert remembered(meta)["version"] == 1
        seen = await flyte.get(json.dumps(json.loads(meta) | {"version": 2, "since": 0}).encode())
        assert (phase(seen), "of version 2; this connector reads 1" in seen.message) == ("FAILED", True)


@in_loop
async def test_a_fault_of_the_connector_itself_is_no_error_of_get(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise OSError("too many open files")

    async with training(tmp_path) as (agent, client), serving() as flyte:
        agent.script = stay(TargetState.CONSUMED)
        meta = await flyte.create(inputs(client))
        monkeypatch.setattr(Glances, "look", broken)
        seen = await flyte.get(meta)
        assert (phase(seen), "too many open files" in seen.message) == ("RETRYABLE_FAILED", True)


@in_loop
async def test_one_connector_serves_several_event_loops_of_a_process(tmp_path: Path) -> None:
    """As in local execution, where flytekit has a loop for calls, others for conversions, and Ctrl-C one of its own."""
    connector, template = SameshotConnector(), TaskTemplate.from_flyte_idl(spec_of(capture).template)

    async def whole(said: LiteralMap, node: str) -> Capture:
        told = TaskExecutionMetadata.from_flyte_idl(metadata(node=node))
        meta = await connector.create(template, output_prefix(node), said, told)
        async with asyncio.timeout(30):
            while (seen := await connector.get(meta)).outputs is None:
                await asyncio.sleep(0.05)
        await connector.delete(meta)
        assert isinstance(seen.outputs, dict)
        return seen.outputs["capture"]

    async with training(tmp_path) as (_, client):
        said = LiteralMap.from_flyte_idl(literals(inputs(client)))
        for nodes in (range(4), range(4)):  # at the same time, and again in new ones when those are gone
            threads = [asyncio.to_thread(lambda each: asyncio.run(whole(said, f"n{each}")), node) for node in nodes]
            found = await asyncio.gather(*threads)
        assert {each.capture_id for each in found} == await ids(client)
        assert {each.outcome for each in found} == {"SUCCEEDED"}
        assert len(found) == len(await ids(client)) == 4


@in_loop
async def test_a_local_run_knows_when_a_capture_needs_no_cancel_any_more(tmp_path: Path) -> None:
    connector, template = SameshotConnector(), TaskTemplate.from_flyte_idl(spec_of(capture).template)
    async with training(tmp_path) as (agent, client):
        agent.script = stay(TargetState.CONSUMED)
        meta = await connector.create(template, "/tmp/one", LiteralMap.from_flyte_idl(literals(inputs(client))))
        await connector.get(meta)
        assert not meta.over
        agent.script = deliver
        async with asyncio.timeout(30):
            while not meta.over:
                await asyncio.sleep(0.05)
                seen = await connector.get(meta)
        assert seen.phase == TaskExecution.SUCCEEDED
        assert CaptureMeta.decode(meta.encode()) == meta


# ---- delete


@in_loop
async def test_delete_twice_cancels_once_and_the_task_fails_with_the_words_of_the_cancel(tmp_path: Path) -> None:
    async with training(tmp_path) as (agent, client), serving() as flyte:
        agent.script = stay(TargetState.QUEUED)
        meta = await flyte.create(inputs(client))
        capture_id = remembered(meta)["capture_id"]
        await until(lambda: "Dispatch" in agent.calls)
        await flyte.delete(meta)
        assert (await client.get(capture_id)).state is CaptureState.CANCELLED
        withdrawn = agent.calls.count("Withdraw")
        await flyte.delete(meta)
        assert agent.calls.count("Withdraw") == withdrawn == 1
        seen = await flyte.get(meta)
        assert phase(seen) == "FAILED"
        assert seen.message.startswith(f"Capture {capture_id} was cancelled; no trace is kept.")

        agent.script = deliver
        again = await flyte.create(inputs(client), attempt=1)  # whoever asks anew wants a picture
        assert remembered(again)["capture_id"] != capture_id
        await flyte.delete(meta)  # a late one can't hit it
        assert phase(await flyte.ended(again)) == "SUCCEEDED"


@in_loop
async def test_delete_after_success_changes_nothing(tmp_path: Path) -> None:
    async with training(tmp_path) as (agent, client), serving() as flyte:
        meta = await flyte.create(inputs(client))
        await flyte.ended(meta)
        await flyte.delete(meta)
        assert phase(await flyte.get(meta)) == "SUCCEEDED"
        assert "Withdraw" not in agent.calls


# ---- what Flyte keeps and shows


@in_loop
async def test_what_flyte_keeps_is_small_however_long_the_names_are(tmp_path: Path) -> None:
    job = JobRef("n" * 63, "j" * 63, "u" * 36, 12)
    async with training(tmp_path, job=job) as (agent, client), serving() as flyte:
        agent.workers = [worker(rank=0, world_size=1, job=job)]
        meta = await flyte.create(
            inputs(client, job=job.name, uid=job.uid, if_unavailable="wait", min_ranks=1, timeout="2h", attempt=12),
            task=SameshotCapture("linked", archive_base_url=f"https://{'h' * 60}.example.org/{'p' * 100}"),
            project="p" * 63,
            domain="production",
            execution="e" * 63,
            node="n" * 63,
            index=100000,
        )
        assert remembered(meta)["capture_id"]
        assert len(meta) < 2000
        assert phase(await flyte.ended(meta)) == "SUCCEEDED"


@in_loop
async def test_a_link_leads_to_the_manifest_once_it_is_there(tmp_path: Path) -> None:
    linked = SameshotCapture("linked-to", archive_base_url="https://traces.example.org/all/")
    async with training(tmp_path) as (agent, client), serving() as flyte:
        agent.script = stay(TargetState.CONSUMED)
        meta = await flyte.create(inputs(client), task=linked)
        assert not (await flyte.get(meta)).log_links
        agent.script = deliver
        (link,) = (await flyte.ended(meta)).log_links
        assert link.name == "capture manifest"
        assert (
            link.uri == f"https://traces.example.org/all/local/train/0/{remembered(meta)['capture_id']}/manifest.json"
        )
        without = await flyte.ended(await flyte.create(inputs(client), node="n1"))
        assert not without.log_links


def test_importing_flytekit_registers_the_connector_and_loads_little_more() -> None:
    """flytekit loads it by its entry point, in every process that has anything to do with Flyte."""
    program = """
import sys
import flytekit
from flytekit.extend.backend.base_connector import ConnectorRegistry
print(type(ConnectorRegistry.get_connector("sameshot_capture")).__name__)
ours = ("sameshot", "sameshot_flyte", "msgspec", "obstore")
print(sorted(name for name in sys.modules if name.split(".")[0] in ours))
"""
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60).stdout
    assert out.splitlines() == [
        "SameshotConnector",
        "['sameshot_flyte', 'sameshot_flyte.flyte1', 'sameshot_flyte.flyte1.connector', 'sameshot_flyte.served']",
    ]
