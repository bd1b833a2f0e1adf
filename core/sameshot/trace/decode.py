"""Blocks of `traceEvents` → typed events, in tiers: as fast as the common case allows, as loose as real traces are.

Every tier proves that its block is one well-formed JSON array: a decoder either consumed it to the closing bracket or
raised `msgspec.DecodeError`. A value of an unexpected type (an unknown phase, `"ts": true`, `"args": "text"`) is no
fault: such a block is decoded again, event by event, and fields of a wrong type are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import msgspec

from sameshot.trace.events import Event, EventArgs

Number = int | float | str | None


class Phased(msgspec.Struct, gc=False, tag_field="ph"):
    """An event of a known phase, with only what the window needs; `Event` is the full form."""

    ph: ClassVar[str] = ""


class Span(Phased, gc=False, tag="X"):
    ph: ClassVar[str] = "X"
    cat: str | None = None
    ts: Number = None
    dur: Number = None


class Instant(Phased, gc=False, tag="i"):
    ph: ClassVar[str] = "i"
    cat: str | None = None
    name: str | None = None
    ts: Number = None


class Metadata(Phased, gc=False, tag="M"):
    ph: ClassVar[str] = "M"


class FlowStart(Phased, gc=False, tag="s"):
    ph: ClassVar[str] = "s"


class FlowStep(Phased, gc=False, tag="t"):
    ph: ClassVar[str] = "t"


class FlowEnd(Phased, gc=False, tag="f"):
    ph: ClassVar[str] = "f"


class Begin(Phased, gc=False, tag="B"):
    ph: ClassVar[str] = "B"
    cat: str | None = None
    ts: Number = None


class End(Phased, gc=False, tag="E"):
    ph: ClassVar[str] = "E"
    cat: str | None = None
    ts: Number = None


class Counter(Phased, gc=False, tag="C"):
    ph: ClassVar[str] = "C"
    cat: str | None = None
    ts: Number = None


AnyPhase = Span | Instant | Metadata | FlowStart | FlowStep | FlowEnd | Begin | End | Counter


class AnyEvent(msgspec.Struct, gc=False):
    """An event whose phase is none of the above, or missing."""

    ph: str | None = ""
    cat: str | None = None
    name: str | None = None
    ts: Number = None
    dur: Number = None


Decoded = Sequence[Phased | AnyEvent | Event]

_phases = msgspec.json.Decoder(list[AnyPhase])
_any = msgspec.json.Decoder(list[AnyEvent])
_full = msgspec.json.Decoder(list[Event])
_one_full = msgspec.json.Decoder(Event)
_raw = msgspec.json.Decoder(list[msgspec.Raw])
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


def decode_lean(block: bytes) -> Decoded:
    """The events of one JSON array with only phase, category and times."""
    try:
        return _phases.decode(block)
    except msgspec.ValidationError:
        pass
    try:
        return _any.decode(block)
    except msgspec.ValidationError:
        return [_one(raw, with_args=False) for raw in _raw.decode(block)]


def decode_full(block: bytes) -> list[Event]:
    """The events of one JSON array as `Event`."""
    try:
        return _full.decode(block)
    except msgspec.ValidationError:
        return [_one(raw, with_args=True) for raw in _raw.decode(block)]


def _one(raw: msgspec.Raw, *, with_args: bool) -> Event:
    """One event, leaving out each field whose value is of a type that nobody can use."""
    if with_args:
        try:
            return _one_full.decode(raw)
        except msgspec.ValidationError:
            pass
    try:
        fields = _fields.decode(raw)
    except msgspec.ValidationError:
        raise msgspec.DecodeError("an element of the array is not an object") from None
    event = Event(
        ph=_scalar(fields.get("ph"), str) or "",
        cat=_scalar(fields.get("cat"), str | None),
        name=_scalar(fields.get("name"), Any),
        ts=_scalar(fields.get("ts"), Number),
        dur=_scalar(fields.get("dur"), Number),
    )
    if with_args:
        event.pid = _scalar(fields.get("pid"), Number)
        event.tid = _scalar(fields.get("tid"), Number)
        event.id = _scalar(fields.get("id"), Any)
        event.args = _scalar(fields.get("args"), EventArgs | None)
    return event


def _scalar(raw: msgspec.Raw | None, wanted: Any) -> Any:
    if raw is None:
        return None
    try:
        return msgspec.json.decode(raw, type=wanted)
    except msgspec.ValidationError:
        return None


Decode = Callable[[bytes], Decoded]
