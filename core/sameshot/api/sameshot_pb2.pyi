from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TargetState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PENDING: _ClassVar[TargetState]
    DISPATCHED: _ClassVar[TargetState]
    QUEUED: _ClassVar[TargetState]
    CONSUMED: _ClassVar[TargetState]
    ANNOUNCED: _ClassVar[TargetState]
    VERIFIED: _ClassVar[TargetState]
    ARCHIVED: _ClassVar[TargetState]
    FAILED: _ClassVar[TargetState]

class OnFailed(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NEW: _ClassVar[OnFailed]
    RETURN: _ClassVar[OnFailed]

class Retirement(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RETIREMENT_UNSPECIFIED: _ClassVar[Retirement]
    FINISHED: _ClassVar[Retirement]
    SUPERSEDED: _ClassVar[Retirement]
    REPLACED: _ClassVar[Retirement]
PENDING: TargetState
DISPATCHED: TargetState
QUEUED: TargetState
CONSUMED: TargetState
ANNOUNCED: TargetState
VERIFIED: TargetState
ARCHIVED: TargetState
FAILED: TargetState
NEW: OnFailed
RETURN: OnFailed
RETIREMENT_UNSPECIFIED: Retirement
FINISHED: Retirement
SUPERSEDED: Retirement
REPLACED: Retirement

class JobRef(_message.Message):
    __slots__ = ("namespace", "name", "uid", "attempt")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    name: str
    uid: str
    attempt: int
    def __init__(self, namespace: _Optional[str] = ..., name: _Optional[str] = ..., uid: _Optional[str] = ..., attempt: _Optional[int] = ...) -> None: ...

class CaptureSpec(_message.Message):
    __slots__ = ("duration_ms", "activities", "with_stack", "record_shapes", "profile_memory", "with_flops", "warmup_ms", "start_delay_ms")
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    ACTIVITIES_FIELD_NUMBER: _ClassVar[int]
    WITH_STACK_FIELD_NUMBER: _ClassVar[int]
    RECORD_SHAPES_FIELD_NUMBER: _ClassVar[int]
    PROFILE_MEMORY_FIELD_NUMBER: _ClassVar[int]
    WITH_FLOPS_FIELD_NUMBER: _ClassVar[int]
    WARMUP_MS_FIELD_NUMBER: _ClassVar[int]
    START_DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    duration_ms: int
    activities: _containers.RepeatedScalarFieldContainer[str]
    with_stack: bool
    record_shapes: bool
    profile_memory: bool
    with_flops: bool
    warmup_ms: int
    start_delay_ms: int
    def __init__(self, duration_ms: _Optional[int] = ..., activities: _Optional[_Iterable[str]] = ..., with_stack: bool = ..., record_shapes: bool = ..., profile_memory: bool = ..., with_flops: bool = ..., warmup_ms: _Optional[int] = ..., start_delay_ms: _Optional[int] = ...) -> None: ...

class Identity(_message.Message):
    __slots__ = ("rank", "local_rank", "pod", "pod_uid", "node", "container", "host", "pid", "registration", "bound_by")
    RANK_FIELD_NUMBER: _ClassVar[int]
    LOCAL_RANK_FIELD_NUMBER: _ClassVar[int]
    POD_FIELD_NUMBER: _ClassVar[int]
    POD_UID_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    REGISTRATION_FIELD_NUMBER: _ClassVar[int]
    BOUND_BY_FIELD_NUMBER: _ClassVar[int]
    rank: int
    local_rank: int
    pod: str
    pod_uid: str
    node: str
    container: str
    host: str
    pid: int
    registration: str
    bound_by: str
    def __init__(self, rank: _Optional[int] = ..., local_rank: _Optional[int] = ..., pod: _Optional[str] = ..., pod_uid: _Optional[str] = ..., node: _Optional[str] = ..., container: _Optional[str] = ..., host: _Optional[str] = ..., pid: _Optional[int] = ..., registration: _Optional[str] = ..., bound_by: _Optional[str] = ...) -> None: ...

class Registration(_message.Message):
    __slots__ = ("uuid", "pid", "start_ticks", "job", "schema", "phase", "rank", "local_rank", "world_size", "local_world_size", "ancestors", "groups", "node", "pod", "pod_uid", "container", "host", "torch_version", "kineto_job_id", "job_name", "restart_count", "registered_at_ns", "updated_at_ns")
    UUID_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    START_TICKS_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    LOCAL_RANK_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    LOCAL_WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    ANCESTORS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    POD_FIELD_NUMBER: _ClassVar[int]
    POD_UID_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    TORCH_VERSION_FIELD_NUMBER: _ClassVar[int]
    KINETO_JOB_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_NAME_FIELD_NUMBER: _ClassVar[int]
    RESTART_COUNT_FIELD_NUMBER: _ClassVar[int]
    REGISTERED_AT_NS_FIELD_NUMBER: _ClassVar[int]
    UPDATED_AT_NS_FIELD_NUMBER: _ClassVar[int]
    uuid: str
    pid: int
    start_ticks: int
    job: JobRef
    schema: str
    phase: str
    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    ancestors: _containers.RepeatedScalarFieldContainer[int]
    groups: _containers.RepeatedScalarFieldContainer[str]
    node: str
    pod: str
    pod_uid: str
    container: str
    host: str
    torch_version: str
    kineto_job_id: int
    job_name: str
    restart_count: int
    registered_at_ns: int
    updated_at_ns: int
    def __init__(self, uuid: _Optional[str] = ..., pid: _Optional[int] = ..., start_ticks: _Optional[int] = ..., job: _Optional[_Union[JobRef, _Mapping]] = ..., schema: _Optional[str] = ..., phase: _Optional[str] = ..., rank: _Optional[int] = ..., local_rank: _Optional[int] = ..., world_size: _Optional[int] = ..., local_world_size: _Optional[int] = ..., ancestors: _Optional[_Iterable[int]] = ..., groups: _Optional[_Iterable[str]] = ..., node: _Optional[str] = ..., pod: _Optional[str] = ..., pod_uid: _Optional[str] = ..., container: _Optional[str] = ..., host: _Optional[str] = ..., torch_version: _Optional[str] = ..., kineto_job_id: _Optional[int] = ..., job_name: _Optional[str] = ..., restart_count: _Optional[int] = ..., registered_at_ns: _Optional[int] = ..., updated_at_ns: _Optional[int] = ...) -> None: ...

class Worker(_message.Message):
    __slots__ = ("registration", "alive", "current", "last_poll_age_s", "note")
    REGISTRATION_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    CURRENT_FIELD_NUMBER: _ClassVar[int]
    LAST_POLL_AGE_S_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    registration: Registration
    alive: bool
    current: bool
    last_poll_age_s: float
    note: str
    def __init__(self, registration: _Optional[_Union[Registration, _Mapping]] = ..., alive: bool = ..., current: bool = ..., last_poll_age_s: _Optional[float] = ..., note: _Optional[str] = ...) -> None: ...

class RawBytes(_message.Message):
    __slots__ = ("uri", "size", "sha256")
    URI_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    uri: str
    size: int
    sha256: str
    def __init__(self, uri: _Optional[str] = ..., size: _Optional[int] = ..., sha256: _Optional[str] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("reason", "detail", "last_state", "raw")
    REASON_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    LAST_STATE_FIELD_NUMBER: _ClassVar[int]
    RAW_FIELD_NUMBER: _ClassVar[int]
    reason: str
    detail: str
    last_state: TargetState
    raw: RawBytes
    def __init__(self, reason: _Optional[str] = ..., detail: _Optional[str] = ..., last_state: _Optional[_Union[TargetState, str]] = ..., raw: _Optional[_Union[RawBytes, _Mapping]] = ...) -> None: ...

class Columns(_message.Message):
    __slots__ = ("uri", "size", "sha256", "schema")
    URI_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    uri: str
    size: int
    sha256: str
    schema: str
    def __init__(self, uri: _Optional[str] = ..., size: _Optional[int] = ..., sha256: _Optional[str] = ..., schema: _Optional[str] = ...) -> None: ...

class Artifact(_message.Message):
    __slots__ = ("uri", "size", "sha256", "encoding", "raw_size", "raw_sha256", "window_start_ns", "window_end_ns", "media_type", "late_start", "columns")
    URI_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    ENCODING_FIELD_NUMBER: _ClassVar[int]
    RAW_SIZE_FIELD_NUMBER: _ClassVar[int]
    RAW_SHA256_FIELD_NUMBER: _ClassVar[int]
    WINDOW_START_NS_FIELD_NUMBER: _ClassVar[int]
    WINDOW_END_NS_FIELD_NUMBER: _ClassVar[int]
    MEDIA_TYPE_FIELD_NUMBER: _ClassVar[int]
    LATE_START_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    uri: str
    size: int
    sha256: str
    encoding: str
    raw_size: int
    raw_sha256: str
    window_start_ns: int
    window_end_ns: int
    media_type: str
    late_start: bool
    columns: Columns
    def __init__(self, uri: _Optional[str] = ..., size: _Optional[int] = ..., sha256: _Optional[str] = ..., encoding: _Optional[str] = ..., raw_size: _Optional[int] = ..., raw_sha256: _Optional[str] = ..., window_start_ns: _Optional[int] = ..., window_end_ns: _Optional[int] = ..., media_type: _Optional[str] = ..., late_start: bool = ..., columns: _Optional[_Union[Columns, _Mapping]] = ...) -> None: ...

class Target(_message.Message):
    __slots__ = ("target_id", "identity", "state", "note", "artifact", "failure", "late_start", "announced_bytes", "last_poll_age_s")
    TARGET_ID_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    LATE_START_FIELD_NUMBER: _ClassVar[int]
    ANNOUNCED_BYTES_FIELD_NUMBER: _ClassVar[int]
    LAST_POLL_AGE_S_FIELD_NUMBER: _ClassVar[int]
    target_id: str
    identity: Identity
    state: TargetState
    note: str
    artifact: Artifact
    failure: Failure
    late_start: bool
    announced_bytes: int
    last_poll_age_s: float
    def __init__(self, target_id: _Optional[str] = ..., identity: _Optional[_Union[Identity, _Mapping]] = ..., state: _Optional[_Union[TargetState, str]] = ..., note: _Optional[str] = ..., artifact: _Optional[_Union[Artifact, _Mapping]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ..., late_start: bool = ..., announced_bytes: _Optional[int] = ..., last_poll_age_s: _Optional[float] = ...) -> None: ...

class Capture(_message.Message):
    __slots__ = ("capture_id", "job", "series", "caller", "request_key", "n", "spec", "state", "note", "backend", "world_size", "generation", "accepted_at_ns", "start_at_ns", "common_window_ns", "frozen_at_ns", "converged_at_ns", "published", "manifest_uri", "cancel_requested", "withdrawn", "expected", "archived", "failed", "targets", "nobody")
    CAPTURE_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    SERIES_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    REQUEST_KEY_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_AT_NS_FIELD_NUMBER: _ClassVar[int]
    START_AT_NS_FIELD_NUMBER: _ClassVar[int]
    COMMON_WINDOW_NS_FIELD_NUMBER: _ClassVar[int]
    FROZEN_AT_NS_FIELD_NUMBER: _ClassVar[int]
    CONVERGED_AT_NS_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_URI_FIELD_NUMBER: _ClassVar[int]
    CANCEL_REQUESTED_FIELD_NUMBER: _ClassVar[int]
    WITHDRAWN_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    ARCHIVED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    NOBODY_FIELD_NUMBER: _ClassVar[int]
    capture_id: str
    job: JobRef
    series: str
    caller: str
    request_key: str
    n: int
    spec: CaptureSpec
    state: str
    note: str
    backend: str
    world_size: int
    generation: str
    accepted_at_ns: int
    start_at_ns: int
    common_window_ns: int
    frozen_at_ns: int
    converged_at_ns: int
    published: bool
    manifest_uri: str
    cancel_requested: bool
    withdrawn: str
    expected: int
    archived: int
    failed: int
    targets: _containers.RepeatedCompositeFieldContainer[Target]
    nobody: str
    def __init__(self, capture_id: _Optional[str] = ..., job: _Optional[_Union[JobRef, _Mapping]] = ..., series: _Optional[str] = ..., caller: _Optional[str] = ..., request_key: _Optional[str] = ..., n: _Optional[int] = ..., spec: _Optional[_Union[CaptureSpec, _Mapping]] = ..., state: _Optional[str] = ..., note: _Optional[str] = ..., backend: _Optional[str] = ..., world_size: _Optional[int] = ..., generation: _Optional[str] = ..., accepted_at_ns: _Optional[int] = ..., start_at_ns: _Optional[int] = ..., common_window_ns: _Optional[int] = ..., frozen_at_ns: _Optional[int] = ..., converged_at_ns: _Optional[int] = ..., published: bool = ..., manifest_uri: _Optional[str] = ..., cancel_requested: bool = ..., withdrawn: _Optional[str] = ..., expected: _Optional[int] = ..., archived: _Optional[int] = ..., failed: _Optional[int] = ..., targets: _Optional[_Iterable[_Union[Target, _Mapping]]] = ..., nobody: _Optional[str] = ...) -> None: ...

class StartCaptureRequest(_message.Message):
    __slots__ = ("job", "spec", "request_key", "on_failed", "only_if_free", "family")
    JOB_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    REQUEST_KEY_FIELD_NUMBER: _ClassVar[int]
    ON_FAILED_FIELD_NUMBER: _ClassVar[int]
    ONLY_IF_FREE_FIELD_NUMBER: _ClassVar[int]
    FAMILY_FIELD_NUMBER: _ClassVar[int]
    job: JobRef
    spec: CaptureSpec
    request_key: str
    on_failed: OnFailed
    only_if_free: bool
    family: str
    def __init__(self, job: _Optional[_Union[JobRef, _Mapping]] = ..., spec: _Optional[_Union[CaptureSpec, _Mapping]] = ..., request_key: _Optional[str] = ..., on_failed: _Optional[_Union[OnFailed, str]] = ..., only_if_free: bool = ..., family: _Optional[str] = ...) -> None: ...

class StartCaptureResponse(_message.Message):
    __slots__ = ("capture", "created")
    CAPTURE_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    capture: Capture
    created: bool
    def __init__(self, capture: _Optional[_Union[Capture, _Mapping]] = ..., created: bool = ...) -> None: ...

class CaptureSelector(_message.Message):
    __slots__ = ("capture_id", "request_key")
    CAPTURE_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_KEY_FIELD_NUMBER: _ClassVar[int]
    capture_id: str
    request_key: str
    def __init__(self, capture_id: _Optional[str] = ..., request_key: _Optional[str] = ...) -> None: ...

class CaptureUpdate(_message.Message):
    __slots__ = ("capture", "changed", "delta")
    CAPTURE_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    capture: Capture
    changed: _containers.RepeatedCompositeFieldContainer[Target]
    delta: bool
    def __init__(self, capture: _Optional[_Union[Capture, _Mapping]] = ..., changed: _Optional[_Iterable[_Union[Target, _Mapping]]] = ..., delta: bool = ...) -> None: ...

class ListCapturesRequest(_message.Message):
    __slots__ = ("unsettled",)
    UNSETTLED_FIELD_NUMBER: _ClassVar[int]
    unsettled: bool
    def __init__(self, unsettled: bool = ...) -> None: ...

class ListCapturesResponse(_message.Message):
    __slots__ = ("captures",)
    CAPTURES_FIELD_NUMBER: _ClassVar[int]
    captures: _containers.RepeatedCompositeFieldContainer[Capture]
    def __init__(self, captures: _Optional[_Iterable[_Union[Capture, _Mapping]]] = ...) -> None: ...

class ListJobWorkersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AgentStatus(_message.Message):
    __slots__ = ("address", "node", "reachable", "detail")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    REACHABLE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    address: str
    node: str
    reachable: bool
    detail: str
    def __init__(self, address: _Optional[str] = ..., node: _Optional[str] = ..., reachable: bool = ..., detail: _Optional[str] = ...) -> None: ...

class ListJobWorkersResponse(_message.Message):
    __slots__ = ("job", "workers", "agents", "generation", "world_size", "missing_ranks")
    JOB_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    MISSING_RANKS_FIELD_NUMBER: _ClassVar[int]
    job: JobRef
    workers: _containers.RepeatedCompositeFieldContainer[Worker]
    agents: _containers.RepeatedCompositeFieldContainer[AgentStatus]
    generation: str
    world_size: int
    missing_ranks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, job: _Optional[_Union[JobRef, _Mapping]] = ..., workers: _Optional[_Iterable[_Union[Worker, _Mapping]]] = ..., agents: _Optional[_Iterable[_Union[AgentStatus, _Mapping]]] = ..., generation: _Optional[str] = ..., world_size: _Optional[int] = ..., missing_ranks: _Optional[_Iterable[int]] = ...) -> None: ...

class ManifestResponse(_message.Message):
    __slots__ = ("manifest", "uri")
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    URI_FIELD_NUMBER: _ClassVar[int]
    manifest: bytes
    uri: str
    def __init__(self, manifest: _Optional[bytes] = ..., uri: _Optional[str] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeResponse(_message.Message):
    __slots__ = ("job", "series", "version", "backend", "archive", "policy_json", "pause_ms", "registered", "world_size", "unsettled", "caller", "retired")
    JOB_FIELD_NUMBER: _ClassVar[int]
    SERIES_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    ARCHIVE_FIELD_NUMBER: _ClassVar[int]
    POLICY_JSON_FIELD_NUMBER: _ClassVar[int]
    PAUSE_MS_FIELD_NUMBER: _ClassVar[int]
    REGISTERED_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    UNSETTLED_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    RETIRED_FIELD_NUMBER: _ClassVar[int]
    job: JobRef
    series: str
    version: str
    backend: str
    archive: str
    policy_json: bytes
    pause_ms: int
    registered: int
    world_size: int
    unsettled: int
    caller: str
    retired: str
    def __init__(self, job: _Optional[_Union[JobRef, _Mapping]] = ..., series: _Optional[str] = ..., version: _Optional[str] = ..., backend: _Optional[str] = ..., archive: _Optional[str] = ..., policy_json: _Optional[bytes] = ..., pause_ms: _Optional[int] = ..., registered: _Optional[int] = ..., world_size: _Optional[int] = ..., unsettled: _Optional[int] = ..., caller: _Optional[str] = ..., retired: _Optional[str] = ...) -> None: ...

class RetireRequest(_message.Message):
    __slots__ = ("why",)
    WHY_FIELD_NUMBER: _ClassVar[int]
    why: Retirement
    def __init__(self, why: _Optional[_Union[Retirement, str]] = ...) -> None: ...

class RetireResponse(_message.Message):
    __slots__ = ("unsettled",)
    UNSETTLED_FIELD_NUMBER: _ClassVar[int]
    unsettled: int
    def __init__(self, unsettled: _Optional[int] = ...) -> None: ...

class ListWorkersRequest(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: JobRef
    def __init__(self, job: _Optional[_Union[JobRef, _Mapping]] = ...) -> None: ...

class ListWorkersResponse(_message.Message):
    __slots__ = ("node", "version", "backend", "poll_interval_s", "workers", "unregistered")
    NODE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    POLL_INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    UNREGISTERED_FIELD_NUMBER: _ClassVar[int]
    node: str
    version: str
    backend: str
    poll_interval_s: float
    workers: _containers.RepeatedCompositeFieldContainer[Worker]
    unregistered: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, node: _Optional[str] = ..., version: _Optional[str] = ..., backend: _Optional[str] = ..., poll_interval_s: _Optional[float] = ..., workers: _Optional[_Iterable[_Union[Worker, _Mapping]]] = ..., unregistered: _Optional[_Iterable[str]] = ...) -> None: ...

class DispatchTarget(_message.Message):
    __slots__ = ("target_id", "registration")
    TARGET_ID_FIELD_NUMBER: _ClassVar[int]
    REGISTRATION_FIELD_NUMBER: _ClassVar[int]
    target_id: str
    registration: str
    def __init__(self, target_id: _Optional[str] = ..., registration: _Optional[str] = ...) -> None: ...

class DispatchRequest(_message.Message):
    __slots__ = ("job", "capture_id", "spec", "start_at_ns", "announce_timeout_ms", "targets")
    JOB_FIELD_NUMBER: _ClassVar[int]
    CAPTURE_ID_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    START_AT_NS_FIELD_NUMBER: _ClassVar[int]
    ANNOUNCE_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    job: JobRef
    capture_id: str
    spec: CaptureSpec
    start_at_ns: int
    announce_timeout_ms: int
    targets: _containers.RepeatedCompositeFieldContainer[DispatchTarget]
    def __init__(self, job: _Optional[_Union[JobRef, _Mapping]] = ..., capture_id: _Optional[str] = ..., spec: _Optional[_Union[CaptureSpec, _Mapping]] = ..., start_at_ns: _Optional[int] = ..., announce_timeout_ms: _Optional[int] = ..., targets: _Optional[_Iterable[_Union[DispatchTarget, _Mapping]]] = ...) -> None: ...

class CaptureFacts(_message.Message):
    __slots__ = ("capture_id", "known", "targets")
    CAPTURE_ID_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    capture_id: str
    known: bool
    targets: _containers.RepeatedCompositeFieldContainer[Target]
    def __init__(self, capture_id: _Optional[str] = ..., known: bool = ..., targets: _Optional[_Iterable[_Union[Target, _Mapping]]] = ...) -> None: ...

class FactsRequest(_message.Message):
    __slots__ = ("job", "capture_id")
    JOB_FIELD_NUMBER: _ClassVar[int]
    CAPTURE_ID_FIELD_NUMBER: _ClassVar[int]
    job: JobRef
    capture_id: str
    def __init__(self, job: _Optional[_Union[JobRef, _Mapping]] = ..., capture_id: _Optional[str] = ...) -> None: ...

class WithdrawRequest(_message.Message):
    __slots__ = ("job", "capture_id", "reason", "target_ids")
    JOB_FIELD_NUMBER: _ClassVar[int]
    CAPTURE_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TARGET_IDS_FIELD_NUMBER: _ClassVar[int]
    job: JobRef
    capture_id: str
    reason: str
    target_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, job: _Optional[_Union[JobRef, _Mapping]] = ..., capture_id: _Optional[str] = ..., reason: _Optional[str] = ..., target_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class KnownCapturesRequest(_message.Message):
    __slots__ = ("job", "capture_ids")
    JOB_FIELD_NUMBER: _ClassVar[int]
    CAPTURE_IDS_FIELD_NUMBER: _ClassVar[int]
    job: JobRef
    capture_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, job: _Optional[_Union[JobRef, _Mapping]] = ..., capture_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class KnownCapturesResponse(_message.Message):
    __slots__ = ("capture_ids",)
    CAPTURE_IDS_FIELD_NUMBER: _ClassVar[int]
    capture_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, capture_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class PublishManifestRequest(_message.Message):
    __slots__ = ("job", "capture_id", "manifest")
    JOB_FIELD_NUMBER: _ClassVar[int]
    CAPTURE_ID_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    job: JobRef
    capture_id: str
    manifest: bytes
    def __init__(self, job: _Optional[_Union[JobRef, _Mapping]] = ..., capture_id: _Optional[str] = ..., manifest: _Optional[bytes] = ...) -> None: ...

class PublishManifestResponse(_message.Message):
    __slots__ = ("uri", "already_there")
    URI_FIELD_NUMBER: _ClassVar[int]
    ALREADY_THERE_FIELD_NUMBER: _ClassVar[int]
    uri: str
    already_there: bool
    def __init__(self, uri: _Optional[str] = ..., already_there: bool = ...) -> None: ...
