"""Kineto's configuration text. The only place that spells its keys.

Kineto ignores a key that it doesn't know and loses the whole request for a value that it can't parse, both without a
word to anybody, so nothing here is optional: every key is always written, every type name is one that Kineto's
`toActivityType` knows (libkineto/include/ActivityType.h), and what could break a line is refused.
The parser (libkineto/src/AbstractConfig.cpp) cuts a line at `#`, needs exactly one `=` in it and trims blanks;
Config.cpp puts the pid before the *first* `.json` of the path, and torch >= 2.14 refuses a path with `..`.
"""

from __future__ import annotations

import re

from sameshot.errors import InvalidSpec
from sameshot.model import Activity, CaptureSpec

# Where an unknown name would cost the whole request, only names that torch has known for years are listed
# (`xpu_driver`, `mtia_counters` and others came in 2026). All of them are harmless on a CPU-only torch.
ACTIVITY_TYPES: dict[Activity, tuple[str, ...]] = {
    Activity.CPU: ("cpu_op", "user_annotation", "cpu_instant_event"),
    Activity.CUDA: (
        "gpu_user_annotation",
        "gpu_memcpy",
        "gpu_memset",
        "kernel",
        "external_correlation",
        "cuda_runtime",
        "cuda_driver",
        "cuda_sync",
        "overhead",
    ),
    Activity.XPU: ("gpu_user_annotation", "gpu_memcpy", "gpu_memset", "kernel", "external_correlation", "xpu_runtime"),
    Activity.MTIA: ("external_correlation", "mtia_runtime", "mtia_ccp_events"),
}
STACK_TYPE = "python_function"

TRACE_NAME = "trace.json"  # every output path ends in it; the hook looks for it beside its own pid

NS_PER_MS = 1_000_000

# Kineto's profiler thread looks for work once a second (Config::kControllerIntervalMsecs). A window that begins "at
# once" therefore begins two such ticks and the warm-up after the config was read (Config::validate); and a stated start
# needs one tick before the warm-up. Measured on torch 2.13: 1.0 s ahead of the warm-up was refused ("insufficient time
# for warmup"); the rest of the margin is for a tick that comes late on a busy machine.
START_AT_ONCE_DELAY_NS = 2_000 * NS_PER_MS
START_MARGIN_NS = 1_500 * NS_PER_MS

_LINE_BREAKERS = re.compile(r"[=#\x00-\x1f\x7f-\x9f\u2028\u2029]")


def activity_types(spec: CaptureSpec) -> tuple[str, ...]:
    """Kineto's names of everything that `spec` asks for, each once."""
    names = [name for activity in spec.activities for name in ACTIVITY_TYPES[activity]]
    if spec.with_stack:
        names.append(STACK_TYPE)
    return tuple(dict.fromkeys(names))


def check_spec(spec: CaptureSpec) -> None:
    """Refuse what Kineto takes without a word and then does not do. Raises `InvalidSpec`.

    Measured on torch 2.13: with PROFILE_PROFILE_MEMORY and PROFILE_WITH_FLOPS an on-demand trace has not one event or
    argument more (torch hands memory events only to a profiler that the program itself started in that thread).
    """
    for option, asked in (("profile_memory", spec.profile_memory), ("with_flops", spec.with_flops)):
        if asked:
            raise InvalidSpec(
                f"{option} has no effect on a capture that is requested from outside the training program: torch "
                "records it only for a profiler that the program starts itself. Ask again without it."
            )


def check_output_path(path: str) -> str:
    """Refuse a path that Kineto would cut, lose or write elsewhere. Raises `InvalidSpec`."""
    if found := _LINE_BREAKERS.search(path):
        why = f"has the character {found.group()!r}, which breaks Kineto's configuration"
    elif not _is_utf8(path):
        why = "is not UTF-8"
    elif path != path.strip():
        why = "begins or ends with a blank, which Kineto cuts off"
    elif not path.startswith("/"):
        why = "is not absolute, so it would depend on the worker's working directory"
    elif ".." in path:
        why = "has `..`, which torch 2.14 and later refuse"
    elif not path.endswith(".json") or path.index(".json") != len(path) - len(".json"):
        why = "must end in its only `.json`: Kineto puts the pid before the first one"
    elif path.endswith(".pt.trace.json"):
        why = "ends in `.pt.trace.json`, where Kineto versions disagree about the file's final name"
    else:
        return path
    raise InvalidSpec(f"The trace path {path!r} {why}; nothing was sent to any worker.")


def traced_file(output_path: str, pid: int) -> str:
    """The name under which Kineto leaves the finished file; `pid` as the worker sees it itself."""
    return f"{output_path.removesuffix('.json')}_{pid}.json"


def config_text(spec: CaptureSpec, output_path: str, start_at_ns: int | None) -> str:
    """The text that makes Kineto record one window.

    `start_at_ns` is CLOCK_REALTIME, used to the millisecond; None or 0 begins at once, that is
    `START_AT_ONCE_DELAY_NS` and the warm-up after the worker reads it. Kineto silently drops a start that it can't
    meet: ask `can_start_at` first. Raises `InvalidSpec` for a path that Kineto can't take and for an option that it
    ignores.
    """
    check_spec(spec)
    return "".join(
        f"{key}={value}\n"
        for key, value in {
            "ACTIVITIES_LOG_FILE": check_output_path(output_path),
            "ACTIVITY_TYPES": ",".join(activity_types(spec)),
            "ACTIVITIES_DURATION_MSECS": spec.duration_ms,
            "ACTIVITIES_WARMUP_PERIOD_SECS": spec.warmup_ms // 1000,
            "PROFILE_START_TIME": (start_at_ns or 0) // NS_PER_MS,
            "PYTHON_STACK_TRACE": _flag(spec.with_stack),
            "PROFILE_REPORT_INPUT_SHAPES": _flag(spec.record_shapes),
            "PROFILE_PROFILE_MEMORY": _flag(spec.profile_memory),
            "PROFILE_WITH_FLOPS": _flag(spec.with_flops),
            "PROFILE_WITH_MODULES": _flag(False),
        }.items()
    )


def can_start_at(spec: CaptureSpec, start_at_ns: int, read_at_ns: int) -> bool:
    """Whether Kineto can meet this start when it reads its config at `read_at_ns` (both CLOCK_REALTIME)."""
    return start_at_ns >= read_at_ns + START_MARGIN_NS + spec.warmup_ms * NS_PER_MS


def expected_window(spec: CaptureSpec, start_at_ns: int | None, read_at_ns: int) -> tuple[int, int]:
    """When the window begins and ends, for a config with this start that is read at `read_at_ns`."""
    begin = start_at_ns or read_at_ns + START_AT_ONCE_DELAY_NS + spec.warmup_ms * NS_PER_MS
    return begin, begin + spec.duration_ms * NS_PER_MS


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _flag(value: bool) -> str:
    return "true" if value else "false"
