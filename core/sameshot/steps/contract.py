"""What each workflow engine gives to a step and asks of it, as data: the table that every plugin is built on.

The engines differ in who retries, what survives that, and what tells a retry (the same picture is wanted) from a new
request (a new picture is). The last decides the request key: parts that an automatic retry keeps and a person's new
request changes.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from urllib.parse import unquote

import msgspec

from sameshot.errors import CaptureCancelled, CaptureFailed, Denied, PartialCapture, SameshotError, TryAgain, UsageError


class Engine(enum.StrEnum):
    AIRFLOW = "airflow"
    FLYTE = "flyte"
    KFP = "kfp"
    ARGO = "argo"


class ExecutionContract(msgspec.Struct, frozen=True, kw_only=True):
    """One engine's terms. `key_parts` name what a request key is made of, in order; the rest is said in words."""

    engine: Engine
    unit: str  # what the engine schedules
    becomes_real: str  # when a user's DAG begins to exist for the engine
    key_parts: tuple[str, ...]
    key_note: str  # why these
    waits: str  # what a running capture occupies meanwhile
    retries: str  # who retries, and what survives it
    retried: str  # which failures
    cancels: str  # how a person's cancel reaches the capture
    fan_out: str
    small_result: str
    shows: str

    def request_key(self, **parts: object) -> str:
        """`airflow/<dag>/<run>/<task>/<map index>/<max tries>`: the engine's name and the parts, in order.

        A part may hold any text: what could be mistaken for a separator, or can't be printed, is percent-encoded.
        Raises UsageError unless exactly `key_parts` are given and none is empty.
        """
        wrong = sorted(set(self.key_parts) ^ set(parts))
        if wrong:
            raise UsageError(
                f"A request key of {self.engine.value} is made of {', '.join(self.key_parts)}; "
                f"missing or unknown: {', '.join(wrong)}."
            )
        values = [_encoded(str(parts[name])) for name in self.key_parts]
        if empty := [name for name, value in zip(self.key_parts, values, strict=True) if not value]:
            raise UsageError(f"The request key's {', '.join(empty)} must not be empty: it tells captures apart.")
        return _bounded("/".join((self.engine.value, *values)))

    def family(self, **parts: object) -> str:
        """How all request keys begin that have these first parts: `airflow/<dag>/<run>/<task>/<map index>/`.

        Empty where the parts are so long that keys may not hold them whole: such keys have nothing in common.
        """
        names = self.key_parts[: len(parts)]
        if set(names) != set(parts):
            raise UsageError(f"A family of keys is told by the first parts, {', '.join(names)}.")
        begins = "/".join((self.engine.value, *(_encoded(str(parts[name])) for name in names))) + "/"
        return begins if len(begins.encode()) < _KEY_LIMIT - _DIGITS else ""

    def made_of(self, request_key: str, **parts: object) -> bool:
        """Whether a request key was made of these parts, whatever the others are.

        A shortened key is made again from the parts that it still shows. One that hides a part that isn't given can't
        be told from others: False. Raises UsageError for an unknown part, and an empty one.
        """
        if wrong := [name for name, part in parts.items() if name not in self.key_parts or not str(part)]:
            raise UsageError(f"A request key of {self.engine.value} has no such part: {', '.join(sorted(wrong))}.")
        if set(parts) == set(self.key_parts[: len(parts)]) and len(parts) < len(self.key_parts):
            family = self.family(**parts)
            return family != "" and request_key.startswith(family)
        engine, *shown = request_key.split("/")
        try:
            read = {
                name: unquote(part, errors="surrogatepass") for name, part in zip(self.key_parts, shown, strict=False)
            }
        except UnicodeDecodeError:
            return False
        made = {**read, **parts}
        if engine != self.engine.value or set(made) != set(self.key_parts) or not all(map(str, made.values())):
            return False
        return request_key == self.request_key(**made)


_FINAL = frozenset({UsageError.exit_code, PartialCapture.exit_code, CaptureCancelled.exit_code, Denied.exit_code})


def retryable(failed: SameshotError | int, *, reads_only: bool = False) -> bool:
    """Whether another attempt under the same request key may end better than `failed`, an error or an exit code. Pure.

    For a capture that is so of all but these, and an engine that can be told should not repeat them:

    - 2, UsageError, and 77, Denied: the same words get the same answer.
    - 3, PartialCapture: the same key gives the same capture, with the same ranks missing.
    - 7, CaptureCancelled: somebody said stop. (A deadline did, too: whoever knows that may try again.)

    After a capture that FAILED (4) or was lost (5) the same key begins a new one. A step that only reads a published
    capture (`reads_only`: analyses, comparisons) finds the same bytes again, so 4 is final for it, too.
    """
    code = failed if isinstance(failed, int) else failed.exit_code
    return code not in _FINAL and not (reads_only and code == CaptureFailed.exit_code)


TERMINATED = 143
"""Exit code of a step that SIGTERM ended (128 + 15), whoever sent it: an eviction or a person's stop."""
THE_SAME_AGAIN = (TryAgain.exit_code, TERMINATED)
"""Exit codes of a step that has found out nothing: whatever was begun goes on, and the same step finds it again. All
that an engine needs to repeat that repeats by exit code."""

_KEY_LIMIT = 512  # bytes: what a coordinator takes
_DIGITS = 33  # bytes that the digest of a long key takes


def _encoded(text: str) -> str:
    return "".join(
        char
        if char.isprintable() and char not in "%/~"
        else "".join(f"%{byte:02X}" for byte in char.encode(errors="surrogatepass"))
        for char in text
    )


def _bounded(key: str) -> str:
    """A key that is too long keeps its beginning, for people, and a digest of the whole, for uniqueness.

    No other key has the `~` before the digest: parts have theirs encoded.
    """
    raw = key.encode()
    if len(raw) <= _KEY_LIMIT:
        return key
    import hashlib

    digest = hashlib.sha256(raw).hexdigest()[:32]
    return raw[: _KEY_LIMIT - _DIGITS].decode(errors="ignore") + "~" + digest


AIRFLOW = ExecutionContract(
    engine=Engine.AIRFLOW,
    unit="task instance",
    becomes_real="when the DAG file is parsed",
    key_parts=("dag_id", "run_id", "task_id", "map_index", "max_tries"),
    key_note="a person's clear raises max_tries (unless `retries` was lowered meanwhile), an automatic retry does not",
    waits="a deferrable trigger: no worker slot",
    retries="the scheduler retries the task; nothing but the request key survives (XComs are cleared)",
    retried="every error that another attempt may mend (`retryable`); the rest fails for good",
    cancels="on_kill of the operator or of the trigger, by capture id; never on timeout or restart",
    fan_out="mapped tasks",
    small_result="XCom",
    shows="extra links, Asset events",
)

FLYTE = ExecutionContract(
    engine=Engine.FLYTE,
    unit="registered task",
    becomes_real="at registration",
    key_parts=("project", "domain", "execution", "node", "map_index"),
    key_note="never the attempt: a retry of the node wants the same picture",
    waits="an async connector: no pod",
    retries="the back end retries the node; nothing but the request key survives. create may come twice for an attempt",
    retried="what another attempt may mend (`retryable`), and a capture at its deadline; the rest fails for good",
    cancels="delete of the connector, by capture id: a person's abort or Flyte's own timeout, never a restart",
    fan_out="map task",
    small_result="typed outputs",
    shows="Deck",
)

KFP = ExecutionContract(
    engine=Engine.KFP,
    unit="container step",
    becomes_real="when the pipeline is compiled to IR",
    key_parts=("run_id", "task_name", "key"),
    key_note="the task-uuid placeholder is the parent DAG's, so tasks of one DAG need their own `key`",
    waits="a container",
    retries="the backend retries the pod; a new pod knows nothing of the old one",
    retried="every container that failed, evicted ones too, whatever the exit code; not pods that were deleted or lost",
    cancels="an exit handler: what the run still captures, found by its request keys",
    fan_out="ParallelFor",
    small_result="output parameters",
    shows="HTML and Metrics artifacts",
)

ARGO = ExecutionContract(
    engine=Engine.ARGO,
    unit="pod",
    becomes_real="when the Workflow is submitted",
    key_parts=("workflow_uid", "key"),
    key_note="node ids and names differ per retry, so the caller gives a `key` of its own",
    waits="a container",
    retries="the controller by retryStrategy: lost nodes, evictions and exit codes 75 and 143",
    retried="pods that were lost, evicted or deleted, and exit codes 75 and 143: what the step itself found out is not",
    cancels="an exit hook of the step; SIGTERM leaves the capture running, since an evicted pod is retried",
    fan_out="withParam",
    small_result="output parameters",
    shows="artifacts and output parameters",
)

CONTRACTS: Mapping[Engine, ExecutionContract] = {each.engine: each for each in (AIRFLOW, FLYTE, KFP, ARGO)}
