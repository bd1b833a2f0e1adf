"""What each workflow engine gives to a step and asks of it, as data: the table that every plugin is built on.

The engines differ in who retries, what survives that, and what tells a retry (the same picture is wanted) from a new
request (a new picture is). The last decides the request key: parts that an automatic retry keeps and a person's new
request changes.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec

from sameshot.errors import UsageError


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
    key_note="a person's clear raises max_tries, an automatic retry does not",
    waits="a deferrable trigger: no worker slot",
    retries="the scheduler retries the task; nothing but the request key survives (XComs are cleared)",
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
    retries="propeller retries the node; the connector's create may be called again for the same attempt",
    cancels="delete of the connector",
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
    cancels="an exit hook of the task; SIGTERM leaves the capture running, since an evicted pod is retried",
    fan_out="withParam",
    small_result="output parameters",
    shows="artifacts and output parameters",
)

CONTRACTS: Mapping[Engine, ExecutionContract] = {each.engine: each for each in (AIRFLOW, FLYTE, KFP, ARGO)}
