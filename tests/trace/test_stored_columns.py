"""Columns come with the verification of a trace, and nothing that goes wrong with them touches the trace."""

from __future__ import annotations

import errno
import hashlib
import time
from pathlib import Path
from typing import Any

import pytest
from make_trace import make_trace

from sameshot.analysis.frame import FrameBuilder
from sameshot.analysis.names import Cat
from sameshot.errors import TraceError
from sameshot.model import Encoding
from sameshot.trace.columns.build import ColumnBuilder
from sameshot.trace.columns.read import read_columns, read_footer
from sameshot.trace.columns.write import ColumnWriter
from sameshot.trace.stored import StoredTrace, verify_and_store
from sameshot.trace.verify import Expectation, verify

UUID = "0199c0de-0000-7000-8000-000000000001"


def store(folder: Path, data: bytes, columns_as: Path | None = None, **options: Any) -> StoredTrace:
    source = folder / "source.json"
    source.write_bytes(data)
    return verify_and_store(
        source,
        Expectation(UUID),
        store_as=folder / "stored",
        encoding=Encoding.GZIP,
        columns_as=columns_as or folder / "columns",
        **options,
    )


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def sound_without_columns(folder: Path, found: StoredTrace, why: str) -> None:
    assert found.columns is None
    assert why in found.trouble
    assert found.trace == verify(folder / "stored", Expectation(UUID))
    assert left(folder) == ["source.json", "stored"]


def test_columns_state_what_the_verification_found_and_hold_every_event(tmp_path: Path) -> None:
    data = make_trace(UUID, events=300)
    found = store(tmp_path, data)
    columns = tmp_path / "columns"
    assert found.trouble == ""
    assert found.columns is not None
    assert (found.columns.size, found.columns.sha256) == (
        columns.stat().st_size,
        hashlib.sha256(columns.read_bytes()).hexdigest(),
    )
    footer = read_footer(columns)
    assert (footer.raw_sha256, footer.raw_size) == (hashlib.sha256(data).hexdigest(), len(data))
    assert (footer.window_start_ns, footer.window_end_ns) == (found.trace.window_start_ns, found.trace.window_end_ns)
    assert footer.events == found.trace.elements == 305
    frames = FrameBuilder()
    read_columns(columns, frames, frames.wanted)
    assert len(frames.frame(footer).rows(Cat.OPERATOR)) == 300
    assert found.trace == verify(tmp_path / "stored", Expectation(UUID))


@pytest.mark.parametrize("data", [make_trace(UUID)[:-9], b"", make_trace("other"), make_trace(UUID, events=0)])
def test_a_faulty_trace_leaves_no_columns(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(TraceError):
        store(tmp_path, data)
    assert left(tmp_path) == ["source.json"]


def test_a_place_where_columns_can_not_be_written_costs_only_them(tmp_path: Path) -> None:
    found = store(tmp_path, make_trace(UUID), tmp_path / "no such folder" / "columns")
    sound_without_columns(tmp_path, found, "No such file or directory")


@pytest.mark.parametrize("step", ["chunk", "close"])
@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), MemoryError(), TypeError("a bug in the writer")]
)
def test_a_writer_that_fails_costs_only_the_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, error: Exception
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(ColumnWriter, step, fail)
    sound_without_columns(tmp_path, store(tmp_path, make_trace(UUID)), str(error) or type(error).__name__)


@pytest.mark.parametrize("step", ["parse", "take", "finish", "facts"])
def test_a_builder_that_fails_is_left_out_and_the_trace_read_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def fail(*_: Any) -> None:
        raise KeyError("a bug in the builder")

    monkeypatch.setattr(ColumnBuilder, step, fail)
    sound_without_columns(tmp_path, store(tmp_path, make_trace(UUID)), "a bug in the builder")


def test_columns_are_given_up_where_they_would_cost_a_trace_its_time(tmp_path: Path) -> None:
    found = store(tmp_path, make_trace(UUID), columns_by=time.monotonic() - 1)
    sound_without_columns(tmp_path, found, "no time")
    assert store(tmp_path, make_trace(UUID), columns_by=time.monotonic() + 600).columns is not None


def test_a_disk_that_is_full_for_the_trace_itself_is_said(tmp_path: Path) -> None:
    (tmp_path / "stored").symlink_to("/dev/full")
    with pytest.raises(OSError):
        store(tmp_path, make_trace(UUID))
    assert left(tmp_path) == ["source.json", "stored"]
