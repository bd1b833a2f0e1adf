"""Capture options as workflow engines hand them over: texts from templates and forms, or plain values.

One reading of them for every plugin and for the command line, strict: a text that is no such value is an error that
names the option, never a default. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from sameshot.errors import InvalidSpec
from sameshot.model import CaptureSpec
from sameshot.steps.request import Action, CaptureRequest

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min|h)?")
_UNIT_MS = {"ms": 1, "s": 1000, "": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000}
_FLAGS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_NOTHING = ("", "none", "null")  # what a template makes of a value that isn't there


def milliseconds(value: object, name: str = "") -> int:
    """`2s`, `500ms`, `1.5s`, `1m`, `2h`, a timedelta; a bare number is seconds. Raises InvalidSpec."""
    if isinstance(value, timedelta):
        exact = value / timedelta(milliseconds=1)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        exact = value * 1000
    elif isinstance(value, str) and (match := _DURATION.fullmatch(value.strip())):
        exact = float(match[1]) * _UNIT_MS[match[2] or ""]
    else:
        exact = -1.0
    found = round(exact) if 0 <= exact < float("inf") else -1
    if found < 0 or abs(exact - found) > 1e-6:  # 0.001 s is 1 ms, whatever the binary fraction makes of it
        raise InvalidSpec(f"{_the(name)}{value!r} is not a duration; write for example 2s, 500ms or 1m.")
    return found


def whole(value: object, name: str = "") -> int | None:
    """A whole number from 0 on; None, and a text that says nothing, is None. Raises InvalidSpec."""
    if value is None or (isinstance(value, str) and value.strip().lower() in _NOTHING):
        return None
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, str) and re.fullmatch(r"\d{1,18}", value.strip()):
        return int(value)
    raise InvalidSpec(f"{_the(name)}{value!r} is not a whole number.")


def flag(value: object, name: str = "") -> bool:
    """True or False, also as a form or a template writes them. Raises InvalidSpec."""
    if isinstance(value, bool):
        return value
    found = _FLAGS.get(str(value).strip().lower())
    if found is None:
        raise InvalidSpec(f"{_the(name)}{value!r} is neither true nor false.")
    return found


def text(value: object, name: str = "") -> str | None:
    """A text, or None where it says nothing. A whole number is taken for its digits (a commit may look like one); any
    other value is an error, as the text that it was before a template engine read it is lost. Raises InvalidSpec."""
    return label(str(value) if isinstance(value, int) and not isinstance(value, bool) else value, name)


def label(value: object, name: str = "") -> str | None:
    """A name, exactly: what a template engine made a number of (`1e3`, `0x10`) was another one. None where the text
    says nothing. Raises InvalidSpec."""
    if value is None or (isinstance(value, str) and value.strip().lower() in _NOTHING):
        return None
    if isinstance(value, str):
        return value.strip()
    raise InvalidSpec(
        f"{_the(name)}{value!r} is a {type(value).__name__}, not a text. A template that is rendered as a native "
        "object takes texts for numbers or lists; quotes around it keep the text: \"'{{ … }}'\"."
    )


def words(value: object, name: str = "") -> tuple[str, ...]:
    """`cpu, cuda` or a list of texts. Raises InvalidSpec."""
    if isinstance(value, str):
        bare = value.strip().removeprefix("[").removesuffix("]")  # a list that a template made a text of
        return tuple(word for part in bare.split(",") if (word := part.strip().strip("'\"")))
    if isinstance(value, Iterable) and not isinstance(value, Mapping | bytes):
        return tuple(str(each) for each in value)
    raise InvalidSpec(f"{_the(name)}{value!r} is no list of names.")


_SAYS_NOTHING = {"min_ranks": 0, "attempt": -1}


def said(name: str, value: Any) -> Any:
    """An option of an engine that knows no absent values: None where it says nothing, which is the empty text, and of
    numbers 0 (`min_ranks`: all are needed) and -1 (`attempt`: any). Whole numbers are ints, also where the wire has
    one kind of number; texts have no blanks around them."""
    if isinstance(value, str):
        value = value.strip()
    nothing = _SAYS_NOTHING.get(name)
    if nothing is not None and isinstance(value, float) and value.is_integer():
        value = int(value)
    if value == "" or (nothing is not None and not isinstance(value, bool) and str(value) == str(nothing)):
        return None
    return value


def capture_spec(
    *,
    duration: object = "2s",
    activities: object = ("cpu", "cuda"),
    with_stack: object = False,
    record_shapes: object = False,
    profile_memory: object = False,
    with_flops: object = False,
    warmup: object = "1s",
    start_in: object = None,
) -> CaptureSpec:
    """What to record, and when the window opens (`start_in` None: as soon as all can). Raises InvalidSpec."""
    return CaptureSpec.of(
        {
            "duration_ms": milliseconds(duration, "duration"),
            "activities": list(words(activities, "activities")),
            "with_stack": flag(with_stack, "with_stack"),
            "record_shapes": flag(record_shapes, "record_shapes"),
            "profile_memory": flag(profile_memory, "profile_memory"),
            "with_flops": flag(with_flops, "with_flops"),
            "warmup_ms": milliseconds(warmup, "warmup"),
            "start_delay_ms": None if start_in is None else milliseconds(start_in, "start_in"),
        }
    )


def action(value: object, name: str = "") -> Action:
    """`fail`, `skip` or `wait`. Raises InvalidSpec."""
    try:
        return Action(str(getattr(value, "value", value)).strip().lower())
    except ValueError:
        raise InvalidSpec(f"{_the(name)}{value!r} is not one of {', '.join(each.value for each in Action)}.") from None


SPEC = ("duration", "activities", "with_stack", "record_shapes", "warmup")
CAPTURE = (*SPEC, "job", "uid", "attempt", "min_ranks", "if_unavailable", "if_busy", "timeout")
"""The options of a capture step, by the names that they have everywhere. Two of a spec are not among them: torch
ignores them when a window is asked for from outside (`profiler.config.check_spec`)."""


def capture_request(given: Mapping[str, object], **where: Any) -> CaptureRequest:
    """A capture step's request: `given` are options of `CAPTURE` (those left out have their defaults), `where` the
    fields of a `CaptureRequest` that are no options: `request_key`, `address`, `caller`, … Raises UsageError."""
    if unknown := sorted(set(given) - set(CAPTURE)):
        raise InvalidSpec(f"Unknown capture options: {', '.join(unknown)}.")
    return CaptureRequest(
        spec=capture_spec(**{name: given[name] for name in SPEC if name in given}),
        job=label(given.get("job"), "job"),
        uid=label(given.get("uid"), "uid"),
        attempt=whole(given.get("attempt"), "attempt"),
        min_ranks=whole(given.get("min_ranks"), "min_ranks"),
        if_unavailable=action(given.get("if_unavailable", Action.FAIL), "if_unavailable"),
        if_busy=action(given.get("if_busy", Action.WAIT), "if_busy"),
        timeout_s=milliseconds(given.get("timeout", "15m"), "timeout") / 1000,
        **where,
    )


def _the(name: str) -> str:
    return f"{name}: " if name else ""
