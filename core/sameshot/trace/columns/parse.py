"""The hot step: the text of one block of events → columns of what they state. A faster scan may take its place.

`Parser.parse` decodes typed rows of only the fields that columns hold, so a hostile argument ("Input Dims" of a million
entries) is proven and skipped, never built. Where a block holds a value of an unexpected type, its events are decoded
one by one, and a field of a wrong type is left out.

Argument names are libkineto's (include/MetadataFieldCatalog.h, src/output_json.cpp). Older spellings are read where
their meaning is certain: `external id` (2021), `Bytes` of memory instants, `size` of AMD's `hip…` calls (roctracer,
as text). `Device` of 2021's operators is a process id, and AMD's `cid` is no correlation: neither is a column.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable
from typing import Any, Literal

import msgspec
import numpy as np

from sameshot.trace.columns.chunk import MISSING, NO_CODE, Codes, Dictionaries, Dictionary, Ints, Messages
from sameshot.trace.columns.times import MISSING_US, Stated, narrow

# One object stands for "not stated": told by identity, and at once its own value in an int64 column.
_NONE = MISSING

Value = int | float | str | None


class Args(msgspec.Struct, gc=False, frozen=True):
    """The arguments that columns hold."""

    external_id: int | None = msgspec.field(default=_NONE, name="External id")  # text is rare: `_loose` reads it
    correlation: int | None = _NONE
    stream: Value = _NONE
    device: Value = _NONE
    bytes: Value = _NONE
    graph_id: Value = msgspec.field(default=_NONE, name="graph id")
    collective: Value = msgspec.field(default=None, name="Collective name")
    group_name: Value = msgspec.field(default=None, name="Process Group Name")
    in_nelems: Value = msgspec.field(default=None, name="In msg nelems")
    out_nelems: Value = msgspec.field(default=None, name="Out msg nelems")
    group_size: Value = msgspec.field(default=None, name="Group size")
    dtype: Value = None
    group_ranks: Value = msgspec.field(default=None, name="Process Group Ranks")
    group_description: Value = msgspec.field(default=None, name="Process Group Description")
    seq: Value = msgspec.field(default=None, name="Seq")
    name: Value = None
    old_external_id: Value = msgspec.field(default=_NONE, name="external id")
    old_bytes: Value = msgspec.field(default=_NONE, name="Bytes")
    amd_size: Value = msgspec.field(default=_NONE, name="size")


_FIELDS = {field.encode_name: field.name for field in msgspec.structs.fields(Args)}
ARGUMENTS = frozenset(_FIELDS)
"""Keys of `args` that columns hold."""

_NO_ARGS = Args()

_Phase = Literal["", "X", "s", "t", "f", "M", "i", "I", "B", "E", "C", "b", "n", "e", "N", "D", "O", "P", "R", "c"]


class Row(msgspec.Struct, gc=False):
    """One event as nearly all are written."""

    ph: _Phase | None = ""
    cat: str | None = ""
    name: str | None = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: Value = _NONE
    dur: Value = _NONE
    args: Args = _NO_ARGS
    id: Value = _NONE


class FractionalRow(Row, gc=False):
    """The same where times are fractions, so that a column of them is one of floats throughout."""

    ts: Value = MISSING_US
    dur: Value = MISSING_US


class Block(msgspec.Struct, frozen=True):
    """What one block of events states; as in a `Chunk`, but for times, which are µs as written, and sparse columns.

    `rich_row` are the events (indices into the block) that state any of stream, device, bytes and graph id; `other_row`
    those that are no spans, with their `flow` ids; `label_row` metadata with a label.
    """

    ts: Stated
    dur: Stated
    phase: Codes
    category: Codes
    name: Codes
    pid: Codes
    tid: Codes
    correlation: Ints
    external_id: Ints
    rich_row: Ints
    stream: Ints
    device: Ints
    bytes: Ints
    graph_id: Ints
    other_row: Ints
    flow: Ints
    label_row: Ints
    label: Codes
    messages: Messages

    def __len__(self) -> int:
        return len(self.phase)


class Parser:
    """Parses the blocks of one trace into the codes of `words`, which grow."""

    def __init__(self, words: Dictionaries) -> None:
        self.words = words
        for dictionary in (words.phase, words.category, words.name):
            dictionary.codes[None] = dictionary.code("")
        self._span = words.phase.code("X")
        # pid or tid as given → code of its JSON text; a float comes as a tuple of its text, as 5.0 would be found as 5.
        self._threads: dict[Any, int] = {None: NO_CODE}
        self._rows: Any = _rows

    def parse(self, block: bytes) -> Block:
        """The events of one JSON array.

        Raises msgspec.DecodeError where the block is no well-formed array of objects; then `words` is unchanged.
        """
        try:
            rows: list[Row] = self._rows.decode(block)
        except msgspec.ValidationError:
            rows = [_loose(raw) for raw in _raw.decode(block)]
        if rows:
            self._rows = _fractional_rows if rows[0].ts.__class__ is float else _rows
        try:
            phase, category, name, pid, tid = self._codes(rows)
        except KeyError:
            self._learn(rows)
            phase, category, name, pid, tid = self._codes(rows)
        args = [row.args for row in rows]
        external_id = _whole([each.external_id for each in args])
        linked = [at for at, each in enumerate(args) if each.correlation is not _NONE]
        correlation: Ints = np.full(len(rows), MISSING, np.int64)
        correlation[linked] = _whole([args[at].correlation for at in linked])
        rich = [
            at
            for at, each in enumerate(args)
            if each is not _NO_ARGS
            and (
                each.stream is not _NONE
                or each.device is not _NONE
                or each.bytes is not _NONE
                or each.old_external_id is not _NONE
                or each.old_bytes is not _NONE
                or each.collective is not None
                or each.in_nelems is not None
                or each.group_name is not None
                or each.graph_id is not _NONE
                or each.amd_size is not _NONE
            )
        ]
        found = [args[at] for at in rich]
        old = _ints([each.old_external_id for each in found])
        if (stated := old != MISSING).any():
            where = np.asarray(rich)[stated]
            external_id[where] = np.where(external_id[where] == MISSING, old[stated], external_id[where])
        other = np.flatnonzero(phase != self._span)
        others = [rows[at] for at in other.tolist()]
        labels = [
            (at, row.args.name)
            for at, row in zip(other.tolist(), others, strict=True)
            if row.ph == "M" and row.args.name is not None
        ]
        text = self.words.text
        return Block(
            ts=narrow([row.ts for row in rows]),
            dur=narrow([row.dur for row in rows]),
            phase=phase,
            category=category,
            name=name,
            pid=pid,
            tid=tid,
            correlation=correlation,
            external_id=external_id,
            rich_row=np.array(rich, dtype=np.int64),
            stream=_ints([each.stream for each in found]),
            device=_ints([each.device for each in found]),
            bytes=_bytes(found, [rows[at] for at in rich]),
            graph_id=_ints([each.graph_id for each in found]),
            other_row=other,
            flow=_ints([row.id for row in others]),
            label_row=np.array([at for at, _ in labels], dtype=np.int64),
            label=_codes([text.code(label if isinstance(label, str) else str(label)) for _, label in labels]),
            messages=_messages(rich, found, text),
        )

    def _codes(self, rows: list[Row]) -> list[Codes]:
        """Phase, category, name, pid, tid; KeyError where one is new. Plain look-ups: these are the hottest loops."""
        phases, categories, names = self.words.phase.codes, self.words.category.codes, self.words.name.codes
        threads = self._threads
        return [
            _codes([phases[row.ph] for row in rows]),
            _codes([categories[row.cat] for row in rows]),
            _codes([names[row.name] for row in rows]),
            _codes([threads[row.pid] for row in rows]),
            _codes([threads[row.tid] for row in rows]),
        ]

    def _learn(self, rows: list[Row]) -> None:
        words, threads = self.words, self._threads
        for row in rows:
            if row.name not in words.name.codes:
                words.name.code(row.name)  # type: ignore[arg-type]  # None is known from the start
            if row.cat not in words.category.codes:
                words.category.code(row.cat)  # type: ignore[arg-type]
            if row.ph not in words.phase.codes:
                words.phase.code(row.ph)  # type: ignore[arg-type]
            for value in (row.pid, row.tid):
                if value not in threads:
                    text = value[0] if isinstance(value, tuple) else json.dumps(value, ensure_ascii=False)
                    threads[value] = words.thread.code(text)


def _bytes(args: list[Args], rows: list[Row]) -> Ints:
    stated = _ints([each.bytes for each in args])
    for place in np.flatnonzero(stated == MISSING).tolist():
        each = args[place]
        if each.old_bytes is not _NONE:
            stated[place] = integer(each.old_bytes)
        elif each.amd_size is not _NONE and (rows[place].name or "").startswith("hip"):
            stated[place] = integer(each.amd_size)
    return stated


def _messages(rich: list[int], args: list[Args], text: Dictionary) -> Messages:
    found = [
        (at, each)
        for at, each in zip(rich, args, strict=True)
        if each.collective is not None or each.group_name is not None or integer(each.in_nelems) != MISSING
    ]

    def texts(values: Iterable[Value]) -> Codes:
        return _codes([NO_CODE if value is None else text.code(str(value)) for value in values])

    return Messages(
        row=np.array([at for at, _ in found], dtype=np.int64),
        collective=texts(each.collective for _, each in found),
        dtype=texts(each.dtype for _, each in found),
        group_name=texts(each.group_name for _, each in found),
        group_ranks=texts(each.group_ranks for _, each in found),
        group_description=texts(each.group_description for _, each in found),
        in_nelems=_ints([each.in_nelems for _, each in found]),
        out_nelems=_ints([each.out_nelems for _, each in found]),
        group_size=_ints([each.group_size for _, each in found]),
        seq=_ints([each.seq for _, each in found]),
    )


def _codes(values: list[int]) -> Codes:
    return np.array(values, dtype=np.int32)


def _ints(values: list[Any]) -> Ints:
    try:
        # Unlike numpy, an array takes nothing but integers here.
        return np.array(array("q", values), dtype=np.int64)
    except (TypeError, OverflowError):
        return np.array([integer(value) for value in values], dtype=np.int64)


def _whole(values: list[int | None]) -> Ints:
    """Numbers that are known to be whole, if not how large."""
    try:
        return np.array(values, dtype=np.int64)
    except (TypeError, OverflowError):
        return np.array([integer(value) for value in values], dtype=np.int64)


def integer(value: Any) -> int:
    """An integer, also where it is written as text or as an integral float; else MISSING."""
    if value.__class__ is int:
        return value if -(1 << 63) < value < 1 << 63 else MISSING
    if value.__class__ is str and len(value) < 20:
        digits = value.removeprefix("-")
        return integer(int(value)) if digits.isascii() and digits.isdigit() else MISSING
    if value.__class__ is float and value.is_integer() and abs(value) < 1 << 53:
        return int(value)
    return MISSING


# -- events of unexpected types -------------------------------------------------------------------------------------

_rows = msgspec.json.Decoder(list[Row])
_fractional_rows = msgspec.json.Decoder(list[FractionalRow])
_one = msgspec.json.Decoder(Row)
_raw = msgspec.json.Decoder(list[msgspec.Raw])
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_args = msgspec.json.Decoder(Args)
_value = msgspec.json.Decoder(Value)
_text = msgspec.json.Decoder(str)

UNUSABLE = ()
"""What stands for a time that is neither number nor text (a list, `true`)."""


def _loose(raw: msgspec.Raw) -> Row:
    """One event, each field of a wrong type left out."""
    try:
        return _one.decode(raw)
    except msgspec.ValidationError:
        pass
    try:
        fields = _fields.decode(raw)
    except msgspec.ValidationError:
        raise msgspec.DecodeError("an element of the array is not an object") from None
    row = Row(
        ph=_or(_text, fields.get("ph"), ""),
        cat=_or(_text, fields.get("cat"), ""),
        pid=_thread(fields.get("pid")),
        tid=_thread(fields.get("tid")),
        ts=_or(_value, fields.get("ts"), UNUSABLE),
        dur=_or(_value, fields.get("dur"), UNUSABLE),
        id=_or(_value, fields.get("id"), None),
    )
    if (name := fields.get("name")) is not None and bytes(name) != b"null":
        row.name = _or(_text, name, bytes(name).decode())
    if (args := fields.get("args")) is not None:
        row.args = _loose_args(args)
    return row


def _loose_args(raw: msgspec.Raw) -> Args:
    try:
        return _args.decode(raw)
    except msgspec.ValidationError:
        pass
    try:
        fields = _fields.decode(raw)
    except msgspec.ValidationError:
        return _NO_ARGS
    known = {_FIELDS[key]: _or(_value, value, None) for key, value in fields.items() if key in _FIELDS}
    for field in ("external_id", "correlation"):
        if field in known:
            known[field] = integer(known[field])
    return Args(**known)


def _or(decoder: Any, raw: msgspec.Raw | None, otherwise: Any) -> Any:
    """The value; `_NONE` where there is none; `otherwise` where it is of another type."""
    if raw is None:
        return "" if decoder is _text else _NONE
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError:
        return otherwise


def _thread(raw: msgspec.Raw | None) -> Any:
    value = None if raw is None else _or(_value, raw, None)
    return (repr(value),) if isinstance(value, float) else value
