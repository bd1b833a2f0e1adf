"""The values and enums of the domain. Pure: no I/O, no clock, no knowledge of any back end.

The words are those of torch.distributed (rank, local rank, world size) and of docs/architecture.md
(job, worker, generation, target, artifact, manifest). There is one word for each thing.
"""

from __future__ import annotations

import enum
import hashlib
import re
from collections.abc import Iterable
from typing import Any, Self

import msgspec

from sameshot.errors import InvalidSpec, JobBusy, PolicyRefused, UsageError

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


class JobRef(msgspec.Struct, frozen=True, order=True):
    """One attempt of one training job. `attempt` is the controller's own count (JobSet), else 0."""

    namespace: str
    name: str
    uid: str
    attempt: int = 0

    @property
    def path(self) -> str:
        """Where captures of this attempt live below the archive: `<namespace>/<job>/<attempt>`."""
        return f"{self.namespace}/{self.name}/{self.attempt}"

    def __str__(self) -> str:
        return self.path


def is_name(name: str) -> bool:
    """Whether this can be one path segment everywhere (Kubernetes, object stores, file systems)."""
    return _NAME.fullmatch(name) is not None


def check_name(name: str, what: str) -> str:
    """Refuse one that is none (`is_name`)."""
    if not is_name(name):
        raise InvalidSpec(
            f"{what} {name!r} is not usable as a name: start and end with a letter or digit and use only letters, "
            "digits, '.', '_' and '-', at most 253 in all."
        )
    return name


def path_problem(path: str) -> str | None:
    """Why `path` is no name below some root (None: it is one). Object keys and the URIs in a manifest are such names.

    It is taken literally (never percent-decoded), separated by `/`, and can't lead out of the root on any store.
    """
    if not path:
        return "it is empty"
    if not path.isprintable() or "\\" in path:
        return "it has a control character or a backslash"
    if path.startswith("/") or _SCHEME.match(path):
        return "it is absolute or has a scheme"
    if not {"", ".", ".."}.isdisjoint(path.split("/")):
        return "it has an empty, '.' or '..' segment"
    if len(path.encode()) > 1024:  # the limit of S3
        return "it is longer than 1024 bytes"
    return None


class Activity(enum.StrEnum):
    """What Kineto records. Python functions come with `with_stack`, not from here."""

    CPU = "cpu"
    CUDA = "cuda"
    XPU = "xpu"
    MTIA = "mtia"


class CaptureSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to record, the same for every rank. Durations are integer milliseconds of wall clock.

    `warmup_ms` is time in which the profiler runs and discards, so that its start-up cost is not in the trace; Kineto
    takes whole seconds. `start_delay_ms` overrides the offered start (None: as soon as every poll can have seen it).
    """

    duration_ms: int = 2000
    activities: tuple[Activity, ...] = (Activity.CPU, Activity.CUDA)
    with_stack: bool = False
    record_shapes: bool = False
    profile_memory: bool = False
    with_flops: bool = False
    warmup_ms: int = 1000
    start_delay_ms: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.duration_ms <= 3_600_000:
            raise InvalidSpec(f"A window of {self.duration_ms} ms is out of range; ask for 1 ms to 1 h.")
        if not self.activities:
            raise InvalidSpec(f"No activity was named; choose from {_names(Activity)}.")
        if len(set(self.activities)) != len(self.activities):
            raise InvalidSpec("An activity is named twice.")
        if self.warmup_ms < 0 or self.warmup_ms % 1000 or self.warmup_ms > 60_000:
            raise InvalidSpec(f"A warm-up of {self.warmup_ms} ms is impossible: Kineto takes whole seconds, 0 to 60.")
        if self.start_delay_ms is not None and not 0 <= self.start_delay_ms <= 600_000:
            raise InvalidSpec(f"A start delay of {self.start_delay_ms} ms is out of range; ask for 0 to 10 min.")

    @classmethod
    def of(cls, options: dict[str, Any]) -> Self:
        """Build from named options; a misspelt or unsupported one is an `InvalidSpec`, never ignored."""
        try:
            return msgspec.convert(options, cls)
        except msgspec.ValidationError as error:
            raise InvalidSpec(
                f"The capture spec is not valid: {error}; known options are {', '.join(cls.__struct_fields__)}, "
                f"activities are {_names(Activity)}."
            ) from None

    @property
    def digest(self) -> str:
        """Equal specs have equal digests, in whatever order their activities are named; used to refuse one request key
        for two specs."""
        ordered = msgspec.structs.replace(self, activities=tuple(sorted(self.activities)))
        return hashlib.sha256(msgspec.json.encode(ordered, order="sorted")).hexdigest()[:16]


class CapturePolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a job allows, checked by the coordinator before anything is dispatched.

    `min_interval_ms` counts between captures that this coordinator accepted; one that was restarted begins anew.
    """

    max_duration_ms: int = 10_000
    max_duration_with_stack_ms: int = 2_000
    min_interval_ms: int = 0
    max_captures_at_once: int = 4

    def check(self, spec: CaptureSpec) -> None:
        """Raise `PolicyRefused` where `spec` asks for more than this policy ever allows."""
        limit = self.max_duration_with_stack_ms if spec.with_stack else self.max_duration_ms
        if spec.duration_ms > limit:
            stacks = " with Python stacks" if spec.with_stack else ""
            raise PolicyRefused(
                f"The policy of this job allows a window of {limit} ms{stacks}, {spec.duration_ms} ms was asked for."
            )

    def check_now(self, *, unfinished: int, since_last_ms: int | None) -> None:
        """Raise `JobBusy` where this policy allows no capture at this moment; another moment will do.

        `unfinished` counts captures of the job that have not converged; `since_last_ms` is the time since the last
        one was accepted (None: there was none).
        """
        if unfinished >= self.max_captures_at_once:
            raise JobBusy(
                f"{unfinished} captures of this job are still running and its policy allows "
                f"{self.max_captures_at_once} at once. Nothing was started; try again when one has ended."
            )
        if pause := self.pause_ms(since_last_ms):
            raise JobBusy(
                f"The last capture of this job was accepted {since_last_ms} ms ago and its policy asks for "
                f"{self.min_interval_ms} ms between captures. Nothing was started; try again in {pause} ms."
            )

    def pause_ms(self, since_last_ms: int | None) -> int:
        """How long the policy still lets no further capture begin, so long after the last one was accepted."""
        return 0 if since_last_ms is None else max(self.min_interval_ms - since_last_ms, 0)


class Nobody(enum.StrEnum):
    """Why a capture ended without a single target."""

    ENDED = "ENDED"  # every node answered, and all registered workers have gone or are going
    NOT_ARMED = "NOT_ARMED"  # every node answered, and no worker is registered, or none that has a rank yet
    SILENT = "SILENT"  # a node did not answer: whether there are workers is not known
    BROKEN = "BROKEN"  # the coordinator itself failed before it knew


class BoundBy(enum.StrEnum):
    """How a trace proves whose it is: our uuid inside its bytes, or only the path it was written to."""

    BYTES = "bytes"
    PATH = "path"


class Identity(msgspec.Struct, frozen=True):
    """Who a target is. Everything but the rank may be unknown: a rank that nobody registered has only its rank."""

    rank: int | None = None
    local_rank: int | None = None
    pod: str | None = None
    pod_uid: str | None = None
    node: str | None = None
    container: str | None = None
    host: str | None = None
    pid: int | None = None
    registration: str | None = None
    bound_by: BoundBy = BoundBy.BYTES


class Phase(enum.StrEnum):
    """How far a worker's registration has come."""

    CANDIDATE = "candidate"  # torch is being imported under a rank's environment
    CONFIRMED = "confirmed"  # init_process_group returned; observed numbers override the environment
    EXITING = "exiting"  # the interpreter is ending: nothing more may be dispatched


REGISTRATION_SCHEMA = "sameshot.dev/registration/v1"


class Registration(msgspec.Struct, frozen=True):
    """What the hook writes about one worker, as `$SAMESHOT_DIR/workers/<uuid>.json` (atomically).

    The same names are spelt in `hook/`, which may not import this module. `start_ticks` is field 22 of
    /proc/<pid>/stat (clock ticks since boot), so pid and start time together tell incarnations apart. `ancestors` are
    pids upwards from the parent, in the worker's pid namespace. `rank` is None until a process started by
    `mp.spawn` has joined its process group.
    """

    uuid: str
    pid: int
    start_ticks: int
    job: JobRef
    schema: str = REGISTRATION_SCHEMA
    phase: Phase = Phase.CANDIDATE
    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    local_world_size: int | None = None
    ancestors: tuple[int, ...] = ()
    groups: tuple[str, ...] = ()
    node: str | None = None
    pod: str | None = None
    pod_uid: str | None = None
    container: str = "main"
    host: str | None = None
    torch_version: str | None = None
    kineto_job_id: int = 0
    job_name: str | None = None  # the PT_PROFILER_JOB_NAME in force; ours is `sameshot/<uuid>`
    restart_count: int | None = None  # torchrun's; information only
    registered_at_ns: int = 0
    updated_at_ns: int = 0

    @property
    def bound_by(self) -> BoundBy:
        """A user's own PT_PROFILER_JOB_NAME is respected, and then only the path binds the trace."""
        return BoundBy.BYTES if self.job_name == f"sameshot/{self.uuid}" else BoundBy.PATH

    @property
    def target_id(self) -> str:
        """`<pod or node>/<container>/<local rank>`: a logical worker, whatever its incarnation."""
        return f"{self.pod or self.node or 'node'}/{self.container}/{self.local_rank}"

    @property
    def identity(self) -> Identity:
        return Identity(
            rank=self.rank,
            local_rank=self.local_rank,
            pod=self.pod,
            pod_uid=self.pod_uid,
            node=self.node,
            container=self.container,
            host=self.host,
            pid=self.pid,
            registration=self.uuid,
            bound_by=self.bound_by,
        )


class TargetState(enum.IntEnum):
    """The strongest fact that was really observed about one target, weakest first. States never go back."""

    PENDING = 0  # in the set; nothing was sent
    DISPATCHED = 1  # its agent accepted the request and wrote it down
    QUEUED = 2  # the profiler daemon holds or triggered the config: the strongest claim of stock dynolog
    CONSUMED = 3  # the worker's Kineto fetched the config (only the broker can see this)
    ANNOUNCED = 4  # a file with its final name was seen and moved into the spool
    VERIFIED = 5  # every byte was read: a well-formed trace of this very worker
    ARCHIVED = 6  # durable storage confirmed it; terminal
    FAILED = 7  # terminal, with a reason

    @property
    def terminal(self) -> bool:
        return self in (TargetState.ARCHIVED, TargetState.FAILED)


class FailureReason(enum.StrEnum):
    """Why a target has no verified, archived trace."""

    NEVER_REGISTERED = "NEVER_REGISTERED"  # no worker ever covered this rank
    STALE_REGISTRATION = "STALE_REGISTRATION"  # the worker was replaced by another incarnation
    WORKER_EXITED = "WORKER_EXITED"  # its lock was released before a trace appeared
    REFUSED = "REFUSED"  # its agent refused the request for another reason; the detail is its answer
    NO_ROOM = "NO_ROOM"  # the window might not fit on the node: refused before dispatch
    NOT_MATCHED = "NOT_MATCHED"  # the profiler daemon never knew the process
    BUSY = "BUSY"  # the daemon's slot for the process never became free
    MISSING = "MISSING"  # no final file by the announce deadline
    EMPTY = "EMPTY"  # a valid trace without a single recorded event, or a file of 0 bytes
    INVALID = "INVALID"  # not a well-formed Kineto trace; kind and byte offset in the detail
    WRONG_IDENTITY = "WRONG_IDENTITY"  # the bytes name another worker or rank
    UNSAFE_FILE = "UNSAFE_FILE"  # a link, FIFO, socket or foreign file stood where the trace should be
    SPOOL_FAILED = "SPOOL_FAILED"  # the node can't take the file over (another mount, permissions); it stays in place
    VERIFY_FAILED = "VERIFY_FAILED"  # the verifier itself broke (out of memory, killed) more than once
    VERIFY_TIMEOUT = "VERIFY_TIMEOUT"
    ARCHIVE_FAILED = "ARCHIVE_FAILED"  # storage refused or the disk is full; bytes are kept in the spool
    ARCHIVE_TIMEOUT = "ARCHIVE_TIMEOUT"
    AGENT_UNREACHABLE = "AGENT_UNREACHABLE"
    CANCELLED = "CANCELLED"


class WaitsFor(enum.StrEnum):
    """What a target's note begins with while its profiler has not taken the request; on the wire a note is text."""

    NOT_MATCHED = "NOT_MATCHED"  # the profiler daemon does not know the process (yet)
    BUSY = "BUSY"  # another request holds the profiler of the process

    @classmethod
    def in_note(cls, note: str) -> WaitsFor | None:
        return next((each for each in cls if note.startswith(each)), None)

    @property
    def reason(self) -> FailureReason:
        """What it was, when it lasted until the end."""
        return FailureReason(self.value)


class InvalidKind(enum.StrEnum):
    """What is wrong with the bytes of a trace."""

    EMPTY = "empty"  # no bytes, or no recorded event
    TRUNCATED = "truncated"  # the file ends in the middle
    UTF8 = "utf8"  # not UTF-8
    JSON = "json"  # not JSON
    NON_FINITE = "non_finite"  # NaN, Infinity, or a number beyond float64 (1e400)
    BOM = "bom"
    DEPTH = "depth"  # nested deeper than 64
    DUPLICATE_EVENTS = "duplicate_events"  # two `traceEvents`
    NO_EVENTS_KEY = "no_events_key"  # JSON, but without `traceEvents`
    NOT_A_TRACE = "not_a_trace"  # JSON of another kind, or events that are not objects
    COMPRESSION = "compression"  # broken gzip/zstd stream, or a second member
    IDENTITY = "identity"  # another registration uuid or rank
    LIMIT = "limit"  # a single value larger than the verifier reads at once: neither proven right nor wrong

    @property
    def reason(self) -> FailureReason:
        """What it means for the target whose trace that was to be."""
        return _REASONS.get(self, FailureReason.INVALID)


_REASONS = {InvalidKind.EMPTY: FailureReason.EMPTY, InvalidKind.IDENTITY: FailureReason.WRONG_IDENTITY}


class RawBytes(msgspec.Struct, frozen=True):
    """The bytes of a trace that failed verification, kept beside the failure record."""

    uri: str
    size: int
    sha256: str


class Failure(msgspec.Struct, frozen=True):
    """Why a target failed; `last_state` is the strongest fact known before."""

    reason: FailureReason
    detail: str
    last_state: TargetState = TargetState.PENDING
    raw: RawBytes | None = None


class Encoding(enum.StrEnum):
    IDENTITY = "identity"
    GZIP = "gzip"


class Columns(msgspec.Struct, frozen=True):
    """The same events as Parquet, written by the verifier in the same pass."""

    uri: str
    size: int
    sha256: str
    schema: str


class Artifact(msgspec.Struct, frozen=True):
    """An archived, verified trace. `uri` is relative to the manifest, `size`/`sha256` are of the stored bytes,
    `raw_*` of the decoded JSON. `window_*_ns` is CLOCK_REALTIME of that host, first to last recorded event."""

    uri: str
    size: int
    sha256: str
    encoding: Encoding
    raw_size: int
    raw_sha256: str
    window_start_ns: int
    window_end_ns: int
    media_type: str = "application/json"
    late_start: bool = False
    columns: Columns | None = None


class Outcome(enum.StrEnum):
    """How a capture ended. UNKNOWN is never written to a manifest."""

    SUCCEEDED = "SUCCEEDED"
    PARTIAL = "PARTIAL"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    UNKNOWN = "UNKNOWN"


class CaptureState(enum.StrEnum):
    """Where a capture is. The four outcomes and UNKNOWN are terminal."""

    WAITING = "WAITING"  # accepted; another capture of the job holds the slot
    DISPATCHING = "DISPATCHING"  # targets are being frozen and dispatched
    COLLECTING = "COLLECTING"  # the set is frozen; facts are coming in
    PUBLISHING = "PUBLISHING"  # converged; the manifest is on its way
    SUCCEEDED = "SUCCEEDED"
    PARTIAL = "PARTIAL"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    UNKNOWN = "UNKNOWN"

    @property
    def terminal(self) -> bool:
        return self.value in Outcome.__members__


def _names(of: type[enum.StrEnum]) -> str:
    return ", ".join(member.value for member in of)


class Worker(msgspec.Struct, frozen=True):
    """One registration with what its node observes about it right now."""

    registration: Registration
    alive: bool = False  # its record lock is held
    current: bool = False  # the live registration of its (pod, container, local rank)
    last_poll_age_s: float | None = None  # broker only
    note: str = ""  # why it is not current or not usable


class TargetFact(msgspec.Struct, frozen=True):
    """The strongest fact known about one target. Level-triggered: safe to lose, to duplicate and to reorder."""

    target_id: str
    identity: Identity = Identity()
    state: TargetState = TargetState.PENDING
    note: str = ""  # what it waits for: a `WaitsFor`, or in a short sentence (uploading 3 of 8 parts)
    artifact: Artifact | None = None  # set exactly when ARCHIVED
    failure: Failure | None = None  # set exactly when FAILED
    late_start: bool | None = None  # None: not known
    announced_bytes: int | None = None  # size of the file, from ANNOUNCED on
    last_poll_age_s: float | None = None


def check_caller(caller: str) -> str:
    """The same; raises UsageError where it can't travel in the metadata of a call, or would arrive as another one."""
    if caller.isascii() and caller.isprintable() and caller == caller.strip():
        return caller
    raise UsageError(f"The caller {caller!r} must be printable ASCII without spaces around it; it names who asks.")


def keyed_capture_id(job: JobRef, caller: str, request_key: str, n: int) -> str:
    """The id of the n-th capture of one request key: derived, so that a restarted coordinator finds it again."""
    body = msgspec.json.encode([job.uid, job.attempt, caller, request_key, n])
    return hashlib.sha256(body).hexdigest()[:32]


def unkeyed_capture_id(now_ns: int, entropy: bytes) -> str:
    """A UUIDv7 (RFC 9562, 5.7) as 32 hex digits: sorts by time. `entropy` is 10 random bytes."""
    value = (now_ns // 1_000_000) << 80 | int.from_bytes(entropy, "big") & ((1 << 80) - 1)
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    return f"{value:032x}"


def generation_of(registrations: Iterable[str]) -> str:
    """Names a set of workers: 12 hex digits of the sha256 over their sorted registration uuids."""
    return hashlib.sha256("\n".join(sorted(registrations)).encode()).hexdigest()[:12]
