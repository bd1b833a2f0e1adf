"""Columns make way for the trace: for its room on the disk, and for its time."""

from __future__ import annotations

import contextlib
import errno
import json
import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from make_trace import make_document

from sameshot.model import Encoding
from sameshot.trace import stored
from sameshot.trace.columns.build import ColumnBuilder
from sameshot.trace.source import Store
from sameshot.trace.stored import StoredTrace, verify_and_store
from sameshot.trace.verify import Expectation, verify

UUID = "0199c0de-0000-7000-8000-000000000001"
EVENTS = 140_000  # columns of the first 131,072 are written while the rest is read


@contextlib.contextmanager
def small_disk(at: Path, size: str) -> Iterator[None]:
    at.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(at)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(at)], check=True)


def store(source: Path, folder: Path, *, columns: bool = True, by: float | None = None) -> StoredTrace:
    return verify_and_store(
        source,
        Expectation(UUID),
        store_as=folder / "stored",
        encoding=Encoding.IDENTITY,
        columns_as=folder / "columns" if columns else None,
        columns_by=by,
    )


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("traces") / "source.json"
    document = make_document(UUID, events=EVENTS)
    numbers = random.Random(0)
    for event in document["traceEvents"]:
        if "dur" in event:  # nothing that columns would pack well
            event["ts"] += round(numbers.random() * 1e6, 3)
            event["dur"] = round(numbers.random() * 1e6, 3)
            event["args"]["External id"] = numbers.randrange(1 << 40)
    path.write_text(json.dumps(document, separators=(",", ":")))
    return path


def test_where_a_disk_has_room_for_the_trace_alone_it_is_stored_without_columns(tmp_path: Path, source: Path) -> None:
    size = source.stat().st_size
    disk = tmp_path / "disk"
    with small_disk(disk, f"{(size >> 10) + 300}k"):  # 300 kB more than the trace itself
        found = store(source, disk)
        assert found.columns is None
        assert found.trouble == "the trace itself needed their room (No space left on device)"
        assert found.trace == verify(disk / "stored", Expectation(UUID))
        assert [path.name for path in disk.iterdir()] == ["stored"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_trace_that_finds_no_room_beside_its_columns_gets_theirs(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    put = Store._put

    def full(self: Store, block: bytes) -> None:
        if (tmp_path / "columns").exists() and self.size > 1 << 20:
            raise OSError(code, "a quota")
        put(self, block)

    monkeypatch.setattr(Store, "_put", full)
    found = store(source, tmp_path)
    assert (found.columns, found.trouble) == (None, "the trace itself needed their room (a quota)")
    assert found.trace == verify(tmp_path / "stored", Expectation(UUID))
    assert [path.name for path in tmp_path.iterdir()] == ["stored"]


@pytest.mark.parametrize(("code", "readings"), [(errno.ENOSPC, 2), (errno.EIO, 1)])
def test_a_disk_that_is_full_without_columns_too_or_broken_is_said(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, code: int, readings: int
) -> None:
    seen = []

    def fail(self: Store, block: bytes) -> None:
        seen.append(block)
        raise OSError(code, "no")

    monkeypatch.setattr(Store, "_put", fail)
    with pytest.raises(OSError) as caught:
        store(source, tmp_path)
    assert (caught.value.errno, len(seen)) == (code, readings)
    assert not list(tmp_path.iterdir())


def test_once_columns_are_given_up_the_rest_is_read_as_if_nobody_had_wanted_them(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = store(source, tmp_path, columns=False).trace
    parsed: list[int] = []
    parse = ColumnBuilder.parse

    def counted(self: ColumnBuilder, block: bytes) -> Any:
        parsed.append(len(block))
        if len(parsed) == 40:  # from here on there is no time, with some events in hand
            monkeypatch.setattr(stored.time, "monotonic", lambda: now + 3600)
        return parse(self, block)

    now = time.monotonic()
    monkeypatch.setattr(ColumnBuilder, "parse", counted)
    found = store(source, tmp_path, by=now + 600)
    assert (found.columns, found.trouble) == (None, "there was no time for them")
    assert found.trace == alone
    assert len(parsed) == 40
    assert store(source, tmp_path, by=now).trace == alone
    assert len(parsed) == 40, "there was no time from the start"


def test_a_window_goes_on_from_columns_to_events_with_the_same_result(tmp_path: Path) -> None:
    """Borders lie in either part, and beside what lies within them by less than a float tells."""
    for first, then, start_ns, end_ns in (
        ("1000.001", "1000.000", 1_000_000, 1_001_501),
        ("1000.000", "1000.001", 1_000_000, 1_001_501),
        ("4398046511104001.5", "4398046511104001", 4398046511104001000, 4398046511104003000),
        ('"4398046511104001.7"', "4398046511104001.5", 4398046511104001500, 4398046511104003200),
    ):
        spans = [f'{{"ph":"X","cat":"cpu_op","name":"a","ts":{ts},"dur":1.5}}' for ts in (first, then)]
        builder = ColumnBuilder(stored.MaybeColumns(tmp_path / "columns"))
        builder.take(builder.parse(f"[{spans[0]}]".encode()))
        builder.finish()
        builder.window.add(stored.decode_lean(f"[{spans[1]}]".encode()))
        (tmp_path / "t.json").write_text(f'{{"traceEvents":[{",".join(spans)}]}}')
        whole = verify(tmp_path / "t.json")
        assert (builder.window.start_ns, builder.window.end_ns) == (start_ns, end_ns)
        assert (whole.window_start_ns, whole.window_end_ns) == (start_ns, end_ns)
