"""Thousands of damaged files: never a crash, a hang or unbounded memory, never a success that a strict judge refuses.

Each damage is made from its number, so a failure names all that is needed to see it again.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import random
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from make_trace import make_trace
from oracle import is_trace

from sameshot.analysis.frame import Frame, FrameBuilder
from sameshot.analysis.names import Cat
from sameshot.errors import TraceError
from sameshot.model import InvalidKind
from sameshot.trace.columns.build import ColumnBuilder
from sameshot.trace.columns.read import read_columns
from sameshot.trace.columns.write import ColumnWriter
from sameshot.trace.verify import VerifiedTrace, verify

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

ALL = 10_000
QUICK = 600
BATCH = 1_000
MOST_MEMORY = 48 << 20  # above what the process held before, for files below 200 KB
LONGEST_S = 20.0  # on a loaded machine; a file takes milliseconds

TOKENS = (
    *(b"NaN", b"-Infinity", b"1e400", b"1" * 400, b"null", b"true", b'"x"', b"{}", b"[]", b'{"a":1}', b"-", b"0x1f"),
    *(b"\\", b'"', b"}", b"]", b"{", b"[", b",", b":", b"\x00", b"\x01", b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf"),
    *(b"\\ud800", b"\\u0000", b"[" * 70, b"[" * 70 + b"]" * 70, b'"traceEvents":[],', b"},{", b"]}", b"\n\n", b"/**/"),
    *(b"9223372036854775807", b"-9223372036854775809", b"1e300", b"0.1e-5", b'"123.5"', b'" 7 "', b"\xc3\xa9"),
)

Damage = Callable[[random.Random, bytes, bytes], bytes]


def _range(rng: random.Random, data: bytes, most: int = 4000) -> tuple[int, int]:
    start = rng.randrange(len(data) + 1)
    return start, min(len(data), start + rng.randint(1, most))


def flip(rng: random.Random, data: bytes, other: bytes) -> bytes:
    hit = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 8)) if data else 0):
        hit[rng.randrange(len(hit))] ^= 1 << rng.randrange(8)
    return bytes(hit)


def overwrite(rng: random.Random, data: bytes, other: bytes) -> bytes:
    start = rng.randrange(len(data) + 1)
    token = rng.choice(TOKENS)
    return data[:start] + token + data[start + len(token) :]


def insert(rng: random.Random, data: bytes, other: bytes) -> bytes:
    start = rng.randrange(len(data) + 1)
    return data[:start] + rng.choice(TOKENS) + data[start:]


def replace_value(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """A value where one is due: text that is still JSON, of another type."""
    start = data.find(b":", rng.randrange(len(data) + 1))
    end = min((at for sign in (b",", b"}") if (at := data.find(sign, start)) > 0), default=-1)
    return data if start < 0 or end < 0 else data[: start + 1] + rng.choice(TOKENS) + data[end:]


def truncate(rng: random.Random, data: bytes, other: bytes) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def behead(rng: random.Random, data: bytes, other: bytes) -> bytes:
    return data[rng.randrange(len(data) + 1) :]


def remove(rng: random.Random, data: bytes, other: bytes) -> bytes:
    start, end = _range(rng, data)
    return data[:start] + data[end:]


def duplicate(rng: random.Random, data: bytes, other: bytes) -> bytes:
    start, end = _range(rng, data)
    return data[:end] + data[start:end] * rng.choice((1, 1, 3)) + data[end:]


def swap(rng: random.Random, data: bytes, other: bytes) -> bytes:
    (a, b), (c, d) = sorted((_range(rng, data), _range(rng, data)))
    b = min(b, c)
    return data[:a] + data[c:d] + data[b:c] + data[a:b] + data[d:]


def splice(rng: random.Random, data: bytes, other: bytes) -> bytes:
    return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other) + 1) :]


def move_event(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """Whole events swapped, doubled or dropped: well-formed where nothing else is damaged."""
    parts = data.split(b"},{")
    if len(parts) > 3:
        at, to = sorted(rng.sample(range(1, len(parts) - 1), 2)) if len(parts) > 4 else (1, 1)
        parts = rng.choice(
            (
                [*parts[:at], *parts[at + 1 :]],
                [*parts[:at], parts[at], *parts[at:]],
                [*parts[:at], parts[to], *parts[at + 1 : to], parts[at], *parts[to + 1 :]],
            )
        )
    return b"},{".join(parts)


DAMAGES: tuple[Damage, ...] = (
    *(flip, overwrite, insert, replace_value, replace_value, truncate, behead),
    *(remove, duplicate, swap, splice, move_event, move_event),
)


def own_files() -> list[bytes]:
    return [
        make_trace(rank=0),
        make_trace(rank=1, indent=None, events=60),
        json.dumps(json.loads(make_trace(events=4))["traceEvents"]).encode(),
    ]


def real_files(shared_data: Path) -> list[bytes]:
    found = []
    for path in sorted((*shared_data.glob("traces/broken/*"), *shared_data.glob("traces/oddities/*/*"))):
        data = path.read_bytes()
        if data.startswith(b"\x1f\x8b"):
            try:
                data = zlib.decompressobj(31).decompress(data)
            except zlib.error:
                continue
        found.append(data)
        if len(data) > 20_000:  # most damage to a long file hits only its middle
            found.append(data[:6_000])
    return found


def mutate(number: int, files: list[bytes]) -> bytes:
    """Damaged file `number`: plain, packed after the damage, or damaged after it was packed."""
    rng = random.Random(number)
    data, other = rng.choice(files), rng.choice(files)
    if rng.random() < 0.5:  # another layout: events are then found another way
        with contextlib.suppress(ValueError):
            data = json.dumps(json.loads(data), separators=rng.choice(((",", ":"), (", ", ": ")))).encode()
    form = rng.choice(("plain", "plain", "gzip", "zstd", "damaged gzip", "damaged zstd"))
    pack = gzip.compress if "gzip" in form else zstd.compress
    if form.startswith("damaged"):
        data, other = pack(data), pack(other)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        data = rng.choice(DAMAGES)(rng, data, other)
    return pack(data) if form in ("gzip", "zstd") else data


def decoded(data: bytes) -> bytes | None:
    """What a strict reader of one member finds in the file; None: it is damaged."""
    try:
        if data.startswith(b"\x1f\x8b"):
            member = zlib.decompressobj(31)
            plain = member.decompress(data) + member.flush()
            return plain if member.eof and not member.unused_data else None
        if data.startswith(b"\x28\xb5\x2f\xfd"):
            frame = zstd.ZstdDecompressor()
            plain = frame.decompress(data)
            return plain if frame.eof and not frame.unused_data else None
    except (zlib.error, zstd.ZstdError):
        return None
    return data


class Memory:
    """Peak memory of this process since the last `start`, above what it held then (Linux, proc(5))."""

    def start(self) -> None:
        Path("/proc/self/clear_refs").write_text("5")
        self._held = self._kib("VmRSS")

    def grown(self) -> int:
        return (self._kib("VmHWM") - self._held) << 10

    def _kib(self, name: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith(name)).split()[1])


def verdict(data: bytes, **options: Any) -> VerifiedTrace | TraceError:
    try:
        return verify(io.BytesIO(data), **options)
    except TraceError as error:
        return error


def framed(data: bytes) -> tuple[VerifiedTrace | TraceError, Frame | None]:
    """The same on the way to columns."""
    frames = FrameBuilder()
    builder = ColumnBuilder(frames)
    found = verdict(data, sink=builder)
    frames.oddities.update(builder.oddities)
    return found, None if isinstance(found, TraceError) else frames.frame()


def stored(data: bytes, path: Path) -> Frame:
    """What is read from the columns of a sound trace."""
    writer = ColumnWriter(path)
    builder = ColumnBuilder(writer)
    writer.close(builder.facts(verify(io.BytesIO(data), sink=builder)))
    frames = FrameBuilder()
    return frames.frame(read_columns(path, frames, frames.wanted))


def content(frame: Frame) -> dict[str, Any]:
    """Comparable: rows of one event each, whatever codes stand for their names and lanes."""
    found: dict[str, Any] = {"odd": frame.oddities, "categories": frame.by_category, "messages": len(frame.messages)}
    for kind in Cat:
        rows = frame.rows(kind)
        found[kind.name] = sorted(
            zip(
                rows.event.tolist(),
                rows.start.tolist(),
                rows.end.tolist(),
                [frame.names[name] for name in rows.name.tolist()],
                [frame.lanes[lane] for lane in rows.lane.tolist()],
                strict=True,
            ),
            key=lambda row: row[:3],
        )
    return found


def judge(number: int, data: bytes, path: Path) -> str:
    """What is wrong with our answer to this file; empty: nothing."""
    memory, began = Memory(), time.monotonic()
    memory.start()
    found, (with_columns, frame) = verdict(data), framed(data)
    took, grown = time.monotonic() - began, memory.grown()
    if took > LONGEST_S:
        return f"took {took:.1f} s"
    if grown > MOST_MEMORY:
        return f"took {grown >> 20} MiB"
    plain = decoded(data)
    sound = plain is not None and is_trace(plain)
    if isinstance(found, TraceError):
        if sound and found.kind != InvalidKind.LIMIT:
            return f"refused, but sound: {found}"
        if plain is None and found.kind != InvalidKind.COMPRESSION:
            return f"a damaged stream was called {found}"
        if not isinstance(with_columns, TraceError) or with_columns.kind != found.kind:
            return f"{found} alone, {with_columns} on the way to columns"
        return ""
    if not sound:
        return f"accepted, but not sound: {found}"
    if with_columns != found:
        return f"{found} alone, {with_columns} on the way to columns"
    assert plain is not None
    assert frame is not None
    document = json.loads(plain)
    events = document if isinstance(document, list) else document["traceEvents"]
    if not found.elements == frame.events == len(events):
        return f"{len(events)} events, of which {found.elements} were verified and {frame.events} became columns"
    if content(stored(data, path)) != content(frame):
        return "stored columns tell something else"
    return ""


def run(numbers: range, files: list[bytes], folder: Path) -> dict[int, str]:
    path = folder / "columns.parquet"
    judge(-1, files[0], path)  # what is needed once is no growth
    return {number: said for number in numbers if (said := judge(number, mutate(number, files), path))}


def test_damaged_files_of_our_own_get_the_right_answer(tmp_path: Path) -> None:
    assert run(range(QUICK), own_files(), tmp_path) == {}


def test_damaged_real_files_get_the_right_answer(shared_data: Path, tmp_path: Path) -> None:
    assert run(range(QUICK // 3), real_files(shared_data), tmp_path) == {}


def test_the_damage_is_of_every_kind_and_some_of_it_survives() -> None:
    """Else the tests above prove nothing: they need refusals of many kinds, and successes."""
    kinds: set[str] = set()
    files = own_files()
    for number in range(QUICK):
        found = verdict(mutate(number, files))
        kinds.add(found.kind if isinstance(found, TraceError) else "sound")
    assert kinds >= {"sound", "truncated", "json", "utf8", "compression", "non_finite", "depth", "not_a_trace"}


@pytest.mark.full
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("first", range(QUICK, QUICK + ALL, BATCH))
def test_ten_thousand_damaged_real_files_get_the_right_answer(shared_data: Path, tmp_path: Path, first: int) -> None:
    assert run(range(first, first + BATCH), [*own_files(), *real_files(shared_data)], tmp_path) == {}
