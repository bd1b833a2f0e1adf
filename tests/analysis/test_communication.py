"""Communication of one rank: who talked with whom, about how much, and what the device did in between."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from device_traces import NCCL, call, frame_of, kernel, operator, span, written
from make_job import GpuJob, Slow
from planted import detailed, mapped

from sameshot.analysis.communication import Traffic, measure
from sameshot.analysis.communication.sizes import message_bytes
from sameshot.analysis.intervals import Spans
from sameshot.analysis.names import Collective
from sameshot.analysis.results import CommunicationRow

US = 1_000
GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevComm*)"
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevComm*)"


def message(kind: str = "allreduce", nelems: int = 1000, dtype: str = "Float", **more: Any) -> dict[str, Any]:
    """Arguments as Kineto writes them since torch 2.3."""
    return {
        "Collective name": kind,
        "In msg nelems": nelems,
        "Out msg nelems": nelems,
        "Group size": 4,
        "dtype": dtype,
        "Process Group Name": "3",
        "Process Group Description": "dp",
        "Process Group Ranks": "[0, 2, 4, 6]",
    } | more


def traffic(tmp_path: Path, events: Sequence[dict[str, Any]], **options: Any) -> Traffic:
    frame = frame_of(written(tmp_path, *events))
    last = max(int((e["ts"] + e["dur"]) * US) for e in events)
    return measure(frame, window=(0, last), **options)


def row(tmp_path: Path, *events: dict[str, Any]) -> CommunicationRow:
    (found,) = traffic(tmp_path, events).communication
    return found


def test_a_kernel_that_states_its_message_is_believed(tmp_path: Path) -> None:
    found = traffic(tmp_path, [kernel(10, 20, 1, NCCL, **message(dtype="BFloat16"))])
    (one,) = found.communication
    assert (one.source, one.kind, one.bytes, one.dtype, one.count) == (
        "nccl",
        Collective.ALL_REDUCE,
        2000,
        "BFloat16",
        1,
    )
    assert (one.total, one.exposed) == (20 * US, 20 * US)
    (group,) = found.groups
    assert (group.name, group.ranks, group.description, group.size) == ("3", "[0, 2, 4, 6]", "dp", 4)
    assert one.group == group.key == found.streams[0].key == "group 3 [0, 2, 4, 6]"
    assert found.streams[0].signatures == ("all_reduce 1000 BFloat16",)


@pytest.mark.parametrize(("ranks", "size"), [("[0, 2, 4, 6]", 4), ("[0, 2, ..., 62]", None), ("[]", None)])
def test_a_size_that_was_not_recorded_is_that_of_a_complete_list_of_ranks(
    tmp_path: Path, ranks: str, size: int | None
) -> None:
    stated = message(**{"Process Group Ranks": ranks})
    del stated["Group size"]
    (group,) = traffic(tmp_path, [kernel(10, 20, 1, NCCL, **stated)]).groups
    assert (group.ranks, group.size) == (ranks, size)


def test_what_only_the_host_event_states_is_joined_by_the_external_id(tmp_path: Path) -> None:
    """As in torch 2.2: the kernel names the id of `record_param_comms`."""
    recorded = span("cpu_op", "record_param_comms", 0, 5, 10, 10, **{"External id": 77}, **message())
    other = span("cpu_op", "record_param_comms", 6, 2, 10, 10, **{"External id": 78}, **message(nelems=5))
    found = row(tmp_path, recorded, other, kernel(10, 20, 900, NCCL, **{"External id": 77}))
    assert (found.bytes, found.group) == (4000, "group 3 [0, 2, 4, 6]")


def test_without_an_id_the_call_around_the_launch_says_it(tmp_path: Path) -> None:
    """Old traces write the correlation as the kernel's external id; on the host the same number is something else."""
    events = [
        span("cpu_op", "record_param_comms", 0, 9, 10, 10, **{"External id": 1}, **message()),
        span("user_annotation", "nccl:all_to_all", 2, 5, 10, 10, **{"External id": 2}),
        call(3, 1, 500),
        span("cpu_op", "record_param_comms", 20, 9, 10, 10, **{"External id": 500}, **message(nelems=7)),
        kernel(40, 20, 500, SEND_RECV, **{"External id": 500}),
    ]
    found = row(tmp_path, *events)
    assert found.bytes == 4000, "of the call that launched it, not of the one whose number is the same"


def test_the_host_call_tells_what_a_send_receive_kernel_is(tmp_path: Path) -> None:
    events = [
        span("user_annotation", "nccl:all_to_all", 2, 5, 10, 10),
        call(3, 1, 500),
        call(30, 1, 501),
        kernel(40, 20, 500, SEND_RECV),
        kernel(70, 20, 501, SEND_RECV),
    ]
    found = traffic(tmp_path, events)
    assert found.streams[0].signatures == ("all_to_all", "send_recv"), "the second was launched outside of any call"


@pytest.mark.parametrize(
    ("stated", "size"),
    [
        (message("_allgather_base", 100, **{"Out msg nelems": 400}), 1600),  # out
        (message("_allgather_base", 100, **{"Out msg nelems": 0}), 1600),  # in × ranks, where out is not stated
        (message("_reduce_scatter_base", 400, **{"Out msg nelems": 100}), 1600),  # in
        (message("all_to_all", 400), 1600),  # in
        (message("broadcast", 10, "Long"), 80),
        (message(dtype="Half"), 2000),
        (message(dtype="Float8_e4m3fn"), 1000),
        (message(dtype="SomethingNew"), None),
        ({k: v for k, v in message().items() if "nelems" not in k}, None),
        ({}, None),
    ],
)
def test_bytes_are_those_of_the_definitions_and_null_where_the_trace_does_not_say(
    tmp_path: Path, stated: dict[str, Any], size: int | None
) -> None:
    assert row(tmp_path, kernel(10, 20, 1, NCCL, **stated)).bytes == size


def test_no_size_is_null_and_not_zero() -> None:
    assert message_bytes(0, "Float") is None
    assert message_bytes(None, "Float") is None
    assert message_bytes(5, None) is None
    assert message_bytes(5, "ComplexDouble") == 80


def test_an_all_to_all_of_uneven_parts_is_told_apart_and_its_size_does_not_hinder_matching(tmp_path: Path) -> None:
    events = [
        kernel(10, 20, 1, SEND_RECV, **message("all_to_allv", 123)),
        kernel(40, 20, 2, SEND_RECV, **message("all_to_all", 123)),
    ]
    assert traffic(tmp_path, events).streams[0].signatures == ("all_to_allv Float", "all_to_all 123 Float")


def test_replays_of_a_graph_belong_to_the_group_of_their_stream(tmp_path: Path) -> None:
    events = [
        kernel(10, 20, 1, NCCL, stream=20, **message()),
        kernel(40, 20, 2, NCCL, stream=20),
        kernel(70, 20, 3, NCCL, stream=24),
    ]
    found = traffic(tmp_path, events)
    assert {stream.key: len(stream.dur) for stream in found.streams} == {
        "group 3 [0, 2, 4, 6]": 2,
        "communication stream 0": 1,
    }


def test_a_stream_of_two_groups_says_nothing_about_what_is_not_named(tmp_path: Path) -> None:
    events = [
        kernel(10, 20, 1, NCCL, stream=20, **message()),
        kernel(40, 20, 2, NCCL, stream=20, **message(**{"Process Group Name": "4"})),
        kernel(70, 20, 3, NCCL, stream=20),
    ]
    keys = {stream.key for stream in traffic(tmp_path, events).streams}
    assert keys == {"group 3 [0, 2, 4, 6]", "group 4 [0, 2, 4, 6]", "communication stream 0"}


def test_a_list_of_ranks_that_was_cut_short_is_kept_as_written(tmp_path: Path) -> None:
    ranks = "[0, 1, 2, ..., 511]"
    events = [kernel(10, 20, 1, NCCL, **message(**{"Process Group Ranks": ranks, "Group size": 512}))]
    (group,) = traffic(tmp_path, events).groups
    assert (group.ranks, group.size) == (ranks, 512)


def test_exposed_is_what_no_kernel_or_copy_ran_beside(tmp_path: Path) -> None:
    events = [
        kernel(0, 10, 1, "gemm"),
        kernel(5, 20, 2, NCCL, stream=20),  # alone from 10 to 25
        kernel(18, 2, 3, "Memcpy DtoD", cat="gpu_memcpy", stream=8),  # not from 18 to 20
    ]
    found = row(tmp_path, *events)
    assert (found.total, found.exposed) == (20 * US, 13 * US)


def test_what_a_device_did_between_collectives_adds_up(tmp_path: Path) -> None:
    """Worked out by hand. Between the starts at 100 and 250: the first runs until 140, gemm from 120 to 160, other
    communication from 150 to 180, idle from 180, of which the main thread fetches until 210."""
    events = [
        kernel(10, 40, 1, "gemm"),
        kernel(100, 40, 2, NCCL, stream=20, **message()),
        kernel(120, 40, 3, "gemm"),
        kernel(150, 30, 4, NCCL, stream=24, **message(**{"Process Group Name": "9"})),
        kernel(250, 10, 5, NCCL, stream=20, **message()),
    ]
    found = traffic(tmp_path, events, fetching=Spans.single(170 * US, 210 * US))
    stream = next(s for s in found.streams if s.key.startswith("group 3"))
    assert stream.start == (100 * US, 250 * US)
    assert stream.exposed == (20 * US, 10 * US)
    assert stream.compute == (40 * US, 40 * US)
    assert stream.other == (0, 20 * US), "160 to 180: before, gemm ran as well"
    assert stream.data == (0, 30 * US)
    host = stream.start[1] - stream.start[0] - stream.exposed[0] - stream.compute[1] - stream.other[1] - stream.data[1]
    assert host == 40 * US, "210 to 250"


def test_gloo_states_neither_group_nor_size_and_is_exposed_where_the_main_thread_does_nothing(tmp_path: Path) -> None:
    events = [
        operator("aten::mm", 0, 20),
        span("user_annotation", "gloo:all_reduce", 10, 30, 10, 99),
        operator("aten::mm", 35, 25),
    ]
    found = traffic(tmp_path, events, working=Spans.of([0, 35 * US], [20 * US, 60 * US]))
    (one,) = found.communication
    assert (one.source, one.group, one.bytes, one.dtype) == ("gloo", "gloo", None, None)
    assert (one.total, one.exposed) == (30 * US, 15 * US)
    assert found.streams[0].compute == (), "a gloo span does not tell what its rank did"


def test_a_rank_that_does_not_communicate_has_nothing_to_say(tmp_path: Path) -> None:
    assert traffic(tmp_path, [kernel(10, 20, 1, "gemm"), operator("aten::mm", 0, 5)]) == ((), (), ())


@pytest.mark.parametrize("cause", ["compute", "host", "data"])
def test_traces_give_what_the_simulated_devices_did(cause: str) -> None:
    """The simulation works out the same columns from its own records, without a trace."""
    run = GpuJob(tp=2, steps=4, slow=(Slow(3, cause, 8.0),)).run()
    for read, known in zip(mapped(run), detailed(run), strict=True):
        for one, other in zip(read.streams, known.streams, strict=True):
            assert (one.key, one.start, one.dur) == (other.key, other.start, other.dur)
            assert one.exposed == other.exposed
            assert (one.compute[1:], one.other[1:], one.data[1:]) == (
                other.compute[1:],
                other.other[1:],
                other.data[1:],
            )


def test_the_a100_trace_gives_its_messages(shared_data: Path) -> None:
    from sameshot.analysis.frame import FrameBuilder
    from sameshot.trace.columns.build import ColumnBuilder
    from sameshot.trace.read import read_trace

    frames = FrameBuilder()
    found = read_trace(shared_data / "traces" / "single" / "a100_nccl_2ranks_rank0.json.gz", ColumnBuilder(frames))
    base = found.base_time_ns or 0
    rows = measure(frames.frame(), window=(found.window_start_ns - base, found.window_end_ns - base)).communication
    sizes = sorted((r.kind.value, r.bytes or 0, r.dtype or "", r.count) for r in rows)
    assert sizes == [
        ("all_reduce", 4 * 2_049_000, "Float", 3),
        ("all_reduce", 4 * 2_431_040, "Float", 3),
        ("all_reduce", 4 * 6_563_840, "Float", 3),
        ("all_reduce", 4 * 6_637_568, "Float", 3),
        ("all_reduce", 4 * 7_875_584, "Float", 3),
        ("broadcast", 8 * 53, "Long", 3),
        ("broadcast", 4 * 53_120, "Float", 3),
    ]
    assert sum(r.count for r in rows) == 21
