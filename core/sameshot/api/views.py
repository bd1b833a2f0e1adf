"""What a coordinator answers, as values: the same names as in sameshot.proto, so `convert` serves them all."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from sameshot.model import CapturePolicy, CaptureSpec, CaptureState, JobRef, Nobody, Outcome, TargetFact, Worker


class CaptureView(msgspec.Struct, frozen=True, kw_only=True):
    """One capture as its coordinator (or, for `from_archive`, its manifest) knows it now.

    `n` counts the captures of one request key from 1 on. `published`: the manifest is in the archive; a terminal
    capture without it keeps its traces in the archive, and `note` says what stands in the way. `manifest_uri` is where
    it is, or will be; empty in a terminal capture: it never will be. `withdrawn` says in words what a cancel really
    did. `targets` are sorted by rank and empty in lists. `nobody` says why a FAILED capture has no targets; None: it
    has some, or its coordinator is of a version that did not say.
    """

    capture_id: str
    job: JobRef
    series: str = ""
    caller: str = ""
    request_key: str = ""
    n: int = 1
    spec: CaptureSpec = CaptureSpec()
    state: CaptureState = CaptureState.WAITING
    note: str = ""
    backend: str = ""
    world_size: int | None = None
    generation: str = ""
    accepted_at_ns: int = 0
    start_at_ns: int | None = None
    common_window_ns: int | None = None
    frozen_at_ns: int | None = None
    converged_at_ns: int | None = None
    published: bool = False
    manifest_uri: str = ""
    cancel_requested: bool = False
    withdrawn: str = ""
    expected: int = 0
    archived: int = 0
    failed: int = 0
    targets: tuple[TargetFact, ...] = ()
    nobody: Nobody | None = None

    @property
    def outcome(self) -> Outcome | None:
        """How it ended; None while it runs."""
        return Outcome(self.state.value) if self.state.terminal else None


class AgentStatus(msgspec.Struct, frozen=True):
    """Whether a node's agent answered the last question, and if not, what is known."""

    address: str
    node: str = ""
    reachable: bool = False
    detail: str = ""


class WorkersView(msgspec.Struct, frozen=True, kw_only=True):
    """Who is registered in a job right now, and which ranks nobody covers."""

    job: JobRef
    workers: tuple[Worker, ...] = ()
    agents: tuple[AgentStatus, ...] = ()
    generation: str = ""
    world_size: int | None = None
    missing_ranks: tuple[int, ...] = ()


class JobDescription(msgspec.Struct, frozen=True, kw_only=True):
    """What a coordinator serves and what it allows; for `pause_ms` its policy's interval lets no new capture begin.

    `registered` live workers and `world_size` are what agents last said (None: nothing yet), `unsettled` counts the
    captures that it still works on, `caller` is who the asking one is there (empty: a version that does not say), and
    `retired` why it takes no new captures (empty: it does).
    """

    job: JobRef
    series: str = ""
    version: str = ""
    backend: str = ""
    archive: str = ""
    policy: CapturePolicy = CapturePolicy()
    pause_ms: int = 0
    registered: int | None = None
    world_size: int | None = None
    unsettled: int = 0
    caller: str = ""
    retired: str = ""


def in_use(job: str, others: Sequence[CaptureView]) -> str:
    """That these captures have, or wait for, the job's profilers, the oldest one named. `others` are newest first."""
    first = others[-1]
    key = first.request_key if len(first.request_key) <= 80 else f"{first.request_key[:79]}…"
    whose = f" (request key {key})" if key else ""
    more = f" and {len(others) - 1} more" if len(others) > 1 else ""
    return (
        f"Job {job} is being captured by {first.caller or 'somebody else'}: capture {first.capture_id}{whose} is "
        f"{first.state.value}{more}. Nothing was started; try again when it has ended."
    )


def by_rank(fact: TargetFact) -> tuple[bool, int, str]:
    """Sort key of targets: rank, unknown ranks last, then target_id."""
    rank = fact.identity.rank
    return rank is None, rank or 0, fact.target_id
