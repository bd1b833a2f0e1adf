"""Blocks of `traceEvents` → typed events, in tiers: as fast as the common case allows, as loose as real traces are.

Every tier proves that its block is one well-formed JSON array: a decoder either consumed it to the closing bracket or
raised `msgspec.DecodeError`. A value of an unexpected type (an unknown phase, `"ts": true`, `"args": "text"`) is no
fault: such a block is decoded again, event by event, and fields of a wrong type are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import msgspec

Number = int | float | str | None


class Phased(msgspec.Struct, gc=False, tag_field="ph"):
    """An event of a known phase, with only what the window needs."""

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


Decoded = Sequence[Phased | AnyEvent]

_phases = msgspec.json.Decoder(list[AnyPhase])
_any = msgspec.json.Decoder(list[AnyEvent])
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
        return [_one(raw) for raw in _raw.decode(block)]


def _one(raw: msgspec.Raw) -> AnyEvent:
    """One event, leaving out each field whose value is of a type that nobody can use."""
    try:
        fields = _fields.decode(raw)
    except msgspec.ValidationError:
        raise msgspec.DecodeError("an element of the array is not an object") from None
    return AnyEvent(
        ph=_scalar(fields.get("ph"), str | None) or "",
        cat=_scalar(fields.get("cat"), str | None),
        name=_scalar(fields.get("name"), str | None),
        ts=_scalar(fields.get("ts"), Number),
        dur=_scalar(fields.get("dur"), Number),
    )


def _scalar(raw: msgspec.Raw | None, wanted: Any) -> Any:
    if raw is None:
        return None
    try:
        return msgspec.json.decode(raw, type=wanted)
    except msgspec.ValidationError:
        return None


Decode = Callable[[bytes], Decoded]
