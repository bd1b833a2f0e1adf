"""What a connector is asked for, and what it remembers of that between its calls: pure values.

Flyte keeps the bytes of an `Asked` and hands them to `get` and `delete` of any process, and calls `create` again where
it lost the answer: so all that is needed is in it, it never changes, and the capture is found by its request key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import msgspec

from sameshot.errors import UsageError
from sameshot.steps.contract import FLYTE
from sameshot.steps.links import web_problem
from sameshot.steps.options import CAPTURE, capture_request, label, said
from sameshot.steps.request import CaptureRequest
from sameshot.steps.results import CaptureResult, shortened

VERSION = 1
NOT_MAPPED = -1

INPUTS: Mapping[str, tuple[type, Any]] = {
    "address": (str, ...),
    "job": (str, ""),
    "uid": (str, ""),
    "attempt": (int, -1),
    "duration": (str, "2s"),
    "activities": (str, "cpu,cuda"),
    "with_stack": (bool, False),
    "record_shapes": (bool, False),
    "warmup": (str, "1s"),
    "min_ranks": (int, 0),
    "if_unavailable": (str, "fail"),
    "if_busy": (str, "wait"),
    "timeout": (str, "15m"),
    "caller": (str, ""),
}
"""The inputs of the capture task, their types and defaults (`...`: it must be given). Every form and every launch plan
can write them; what says nothing is the empty text, 0 (`min_ranks`: all are needed) or -1 (`attempt`: any).

`if_unavailable` and `if_busy` "fail" end the attempt, and Flyte tries again as often as the task's `retries` say: the
job may be there, or free, by then (`steps.contract.retryable`). For a failure at once, make them 0."""

_NAMES = ("address", "job", "uid", "caller")


WHY_NO_CACHE = (
    "and a cached capture is a picture of another time. Leave `cache` out; analyses have caches of their own, by the "
    "manifest's digest."
)


def check_task(name: str, *, cached: bool, archive_base_url: str) -> None:
    """What the author of a capture task has set for good. Raises UsageError, naming the task."""
    if cached:
        raise UsageError(f"The capture task {name!r} is told to cache, {WHY_NO_CACHE}")
    if archive_base_url and (problem := web_problem(archive_base_url)):
        raise UsageError(f"The archive_base_url of the capture task {name!r} is {problem}.")


@dataclass(frozen=True)
class Place:
    """Where in Flyte a capture is asked for. Never the attempt: a retry wants the same picture."""

    project: str
    domain: str
    execution: str
    node: str
    map_index: int = NOT_MAPPED

    @classmethod
    def local(cls, task: str, output_prefix: str) -> Self:
        """Of a local execution, where nobody says which it is: its output prefix is its own."""
        return cls("local", "local", hashlib.sha256(output_prefix.encode()).hexdigest()[:32], task)

    @property
    def request_key(self) -> str:
        return FLYTE.request_key(
            project=self.project,
            domain=self.domain,
            execution=self.execution,
            node=self.node,
            map_index=self.map_index,
        )


def request_of(inputs: Mapping[str, Any], place: Place, caller: str) -> CaptureRequest:
    """What a task's inputs ask for; those left out have their defaults. `caller`: unless the inputs say another.

    Raises UsageError, naming the input; InvalidSpec for an address that names a file of the connector's machine.
    """
    from sameshot.client.cluster import of_an_author  # the client brings grpc, which tasks' modules don't need

    if unknown := sorted(set(inputs) - set(INPUTS)):
        raise UsageError(f"Unknown inputs of a capture task: {', '.join(unknown)}.")
    given = {name: said(name, value) for name, value in inputs.items()}
    given = {name: value for name, value in given.items() if value is not None}
    for name in _NAMES:
        if not isinstance(value := given.get(name, ""), str):
            raise UsageError(f"The input `{name}` is {shortened(repr(value))} ({type(value).__name__}), not a text.")
    if (address := label(given.get("address"))) is None:
        raise UsageError(
            "The input `address` is empty: give the job's coordinator, kube:<namespace>/<job>, host:port (or "
            "local:<name>)."
        )
    return capture_request(
        {name: value for name, value in given.items() if name in CAPTURE},
        address=of_an_author(address),
        request_key=place.request_key,
        caller=label(given.get("caller")) or caller,
    )


class Asked(msgspec.Struct, frozen=True, kw_only=True):  # with its defaults: a version that is left out says nothing
    """A capture that was asked for. Times in seconds since the epoch.

    `capture_id` empty: none has begun yet, as the request waits for its job (or nobody said in time); whoever looks
    next begins it. `unanswered`: a start was sent, and nobody has said what came of it. `settled`: nothing was begun,
    and never will be for this `Asked`: skipped, or refused. `base_url`: where browsers find the archive, for links;
    empty: none.
    """

    version: int = VERSION
    request: CaptureRequest
    since: float
    deadline: float
    capture_id: str = ""
    manifest_uri: str = ""
    unanswered: bool = False
    settled: CaptureResult | None = None
    base_url: str = ""

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Fields of newer versions are ignored; raises UsageError for what no version of ours has written, and for a
        version that means something else."""
        try:
            found = msgspec.json.decode(data, type=cls)
        except (msgspec.MsgspecError, UsageError, ValueError, RecursionError) as error:
            raise UsageError(f"Flyte handed over the state of a capture that can't be read: {error}.") from None
        if found.version != VERSION:
            raise UsageError(
                f"The state of a capture that Flyte handed over is of version {found.version}; this connector reads "
                f"{VERSION}. Let the connector that began it finish it, or upgrade this one."
            )
        return found
