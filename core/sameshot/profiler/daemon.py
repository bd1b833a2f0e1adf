"""The seam to whatever stands between a node and Kineto: the stock dynolog daemon, or our own broker.

The two back ends can see different facts. `CAPABILITIES` says which, and nobody may claim a fact that its back end
can't observe: stock dynolog can never prove that a worker fetched its config.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Protocol

import msgspec

from sameshot.model import CaptureSpec, TargetState


class BackendName(enum.StrEnum):
    BROKER = "broker"
    DYNOLOG = "dynolog"


class Capabilities(msgspec.Struct, frozen=True):
    """Which facts a back end can observe."""

    sees_polls: bool  # how long ago a worker last asked (ALIVE)
    sees_fetches: bool  # that a worker took its config (CONSUMED)
    can_withdraw: bool  # take back a config that nobody fetched
    strongest_claim: TargetState


CAPABILITIES: dict[BackendName, Capabilities] = {
    BackendName.BROKER: Capabilities(
        sees_polls=True, sees_fetches=True, can_withdraw=True, strongest_claim=TargetState.CONSUMED
    ),
    BackendName.DYNOLOG: Capabilities(
        sees_polls=False, sees_fetches=False, can_withdraw=False, strongest_claim=TargetState.QUEUED
    ),
}


class TriggerStatus(enum.StrEnum):
    """What is known about one request to one worker."""

    NOT_MATCHED = "NOT_MATCHED"  # the daemon does not know the process (yet): retry until the deadline
    BUSY = "BUSY"  # matched, not triggered: another config waits to be fetched; retry
    QUEUED = "QUEUED"  # the config is held for the process
    CONSUMED = "CONSUMED"  # the process fetched it (broker only)
    WITHDRAWN = "WITHDRAWN"  # taken back before anyone fetched it (broker only)


class TriggerRequest(msgspec.Struct, frozen=True):
    """Ask one worker (by pid and Kineto job id, as it states them itself) for one window.

    `output_path` is the worker's own view of the path and ends in `.json`; Kineto turns `x.json` into `x_<pid>.json`.
    `start_at_ns` is CLOCK_REALTIME, the same for every target of a capture. `again`: the caller has looked and nothing
    of the window was begun. A back end that can't see whether a config was fetched then sends it once more.
    """

    capture_id: str
    target_id: str
    pid: int
    kineto_job_id: int
    spec: CaptureSpec
    start_at_ns: int
    output_path: str
    again: bool = False


class TriggerFact(msgspec.Struct, frozen=True):
    """The current, level-triggered answer for one (capture_id, target_id)."""

    capture_id: str
    target_id: str
    status: TriggerStatus
    late_start: bool | None = None  # the offered start could not be met and the window began at once; None: unknown
    consumed_at_ns: int | None = None
    last_poll_age_s: float | None = None  # broker only: how long ago this worker last polled
    note: str = ""


class ProfilerDaemon(Protocol):
    """One node's (in a cluster: one container's) way to Kineto. All methods are safe to call again."""

    name: BackendName

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def trigger(self, requests: Sequence[TriggerRequest]) -> list[TriggerFact]:
        """Ask for these windows; at-least-once, keyed by (capture_id, target_id).

        Repeating a request that is already queued or consumed changes nothing (but see `again`). One fact per request,
        in order.
        Raises `Unreachable` when the daemon does not answer; the request may then have been executed all the same.
        """
        ...

    async def facts(self, capture_id: str) -> list[TriggerFact]:
        """What is known now about every target of this capture that was asked for here."""
        ...

    async def withdraw(self, capture_id: str, target_ids: Sequence[str]) -> list[TriggerFact]:
        """Take back what was not fetched. Where that is impossible the status stays what it was."""
        ...

    async def registered(self) -> dict[tuple[int, int], float | None]:
        """(kineto job id, pid) → seconds since its last poll, of every process this daemon knows.

        Empty where the back end can't tell (stock dynolog).
        """
        ...
