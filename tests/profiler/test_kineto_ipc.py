from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kineto_client import decode_reply, encode_poll

from sameshot.profiler.kineto_ipc import (
    HEADER,
    Context,
    Malformed,
    Poll,
    Wants,
    decode,
    encode_context_reply,
    encode_reply,
)

INT32 = st.integers(-(2**31), 2**31 - 1)
PIDS = st.lists(INT32, max_size=20).flatmap(lambda rest: st.integers(1, 2**31 - 1).map(lambda own: (own, *rest)))

# As captured from torch 2.13.0: type 3, two pids, SLURM_JOB_ID 77.
FROM_TORCH = struct.pack("=Q32siiqii", 24, b"req", 3, 2, 77, 7724, 7711)


def test_a_poll_of_real_torch_is_understood() -> None:
    assert decode(FROM_TORCH) == Poll(Wants.EVENTS | Wants.ACTIVITIES, 77, (7724, 7711))
    assert encode_poll(Poll(Wants.EVENTS | Wants.ACTIVITIES, 77, (7724, 7711))) == FROM_TORCH


@given(st.sampled_from([*Wants, Wants(3)]), st.integers(-(2**63), 2**63 - 1), PIDS)
def test_polls_survive_the_way(wants: Wants, job: int, pids: tuple[int, ...]) -> None:
    poll = Poll(wants, job, pids)
    assert decode(encode_poll(poll)) == poll


@given(st.text())
def test_answers_survive_the_way(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        return
    assert decode_reply(encode_reply(text)) == text


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_a_message_or_malformed(data: bytes) -> None:
    with contextlib.suppress(Malformed):
        decode(data)


@given(st.integers(0, 80), st.binary(min_size=1, max_size=8))
def test_a_damaged_poll_is_a_message_or_malformed(at: int, damage: bytes) -> None:
    at = min(at, len(FROM_TORCH))
    with contextlib.suppress(Malformed):
        decode(FROM_TORCH[:at] + damage + FROM_TORCH[at + len(damage) :])


@given(st.integers(0, len(FROM_TORCH) - 1))
def test_a_truncated_poll_is_malformed(size: int) -> None:
    with pytest.raises(Malformed):
        decode(FROM_TORCH[:size])


@pytest.mark.parametrize(
    "data",
    [
        HEADER.pack(16, b"req") + struct.pack("=iiq", 3, 0, 77),  # no pid
        HEADER.pack(16, b"req") + struct.pack("=iiq", 3, -1, 77),
        HEADER.pack(20, b"req") + struct.pack("=iiqi", 3, 2**31 - 1, 77, 1),  # states far more pids than came
        HEADER.pack(20, b"req") + struct.pack("=iiqi", 3, 1, 77, 0),  # pid 0 means everybody elsewhere
        HEADER.pack(20, b"req") + struct.pack("=iiqi", 3, 1, 77, -5),
        HEADER.pack(2**63, b"req") + struct.pack("=iiqi", 3, 1, 77, 5),
        HEADER.pack(20, b"requests") + struct.pack("=iiqi", 3, 1, 77, 5),
        HEADER.pack(20, b"\xff\xfe") + struct.pack("=iiqi", 3, 1, 77, 5),
        HEADER.pack(12, b"ctxt") + b"x" * 12,
    ],
)
def test_a_lying_message_is_malformed(data: bytes) -> None:
    with pytest.raises(Malformed):
        decode(data)


def test_the_registration_of_older_kineto_is_understood() -> None:
    assert decode(HEADER.pack(16, b"ctxt") + struct.pack("=iiq", 2, 55, 77)) == Context(gpu=2, pid=55, job_id=77)
    assert encode_context_reply(4) == HEADER.pack(4, b"ctxt") + struct.pack("=i", 4)


@pytest.mark.parametrize("data", [b"", b"x" * 39, HEADER.pack(5, b"req"), HEADER.pack(1, b"req") + b"\xff"])
def test_a_broken_answer_is_malformed(data: bytes) -> None:
    with pytest.raises(Malformed):
        decode_reply(data)
