"""Where an import goes: said before any work where it can't, and nothing of a killed one stays for good."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from make_trace import make_trace

from sameshot.errors import UsageError
from sameshot.manifest import Target
from sameshot.model import Outcome
from sameshot.trace import imported
from sameshot.trace.columns.read import read_footer
from sameshot.trace.imported import Import, Imported, import_traces
from sameshot.trace.source import Store

# progress: what to do when the first file is read
SCRIPT = """
import os, sys
from pathlib import Path
from sameshot.trace.imported import Import, import_traces
def progress(*_):
    print(os.getpid(), flush=True)
    if sys.argv[3] == "dies":
        os.kill(os.getpid(), 9)
    sys.stdin.read()
import_traces(Import(files={0: Path(sys.argv[1])}, out=Path(sys.argv[2])), progress=progress)
"""


@pytest.fixture
def traces(tmp_path: Path) -> dict[int, Path]:
    files = {}
    for rank in range(2):
        files[rank] = tmp_path / f"rank{rank}.json"
        files[rank].write_bytes(make_trace(rank=rank, world_size=2, events=20 + rank))
    return files


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "place").mkdir()
    return tmp_path / "place"


def take(files: dict[int, Path], out: Path) -> Imported:
    return import_traces(Import(files=files, out=out))


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def refused(files: dict[int, Path], out: Path) -> str:
    """The reason, before a single file was read."""

    def progress(done: int, of: int, target: Target) -> None:
        raise AssertionError("a file was read")

    with pytest.raises(UsageError) as caught:
        import_traces(Import(files=files, out=out), progress=progress)
    return str(caught.value)


# -- refused before any work --------------------------------------------------------------------------------------


@pytest.mark.parametrize("there", [True, False])
def test_a_link_is_refused_whether_it_leads_to_an_empty_folder_or_nowhere(
    place: Path, traces: dict[int, Path], there: bool
) -> None:
    target = place / "target"
    if there:
        target.mkdir()
    (place / "cap").symlink_to(target)
    said = refused(traces, place / "cap")
    assert "is a symbolic link" in said
    assert str(target) in said
    assert names(place) == ({"cap", "target"} if there else {"cap"})


def test_the_folder_that_one_is_in_is_refused(
    place: Path, traces: dict[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    for out in (".", "..", "/"):
        assert "a name of its own" in refused(traces, Path(out))
    assert not names(place)


def test_an_empty_folder_is_taken(place: Path, traces: dict[int, Path]) -> None:
    (place / "cap").mkdir()
    assert take(traces, place / "cap").manifest.capture.outcome is Outcome.SUCCEEDED
    assert names(place) == {"cap"}


# -- what was left ------------------------------------------------------------------------------------------------


def started(trace: Path, out: Path, fate: str) -> subprocess.Popen[bytes]:
    """An import in a process of its own that has read its file."""
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(trace), str(out), fate], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert int(process.stdout.readline()) == process.pid
    return process


def test_what_a_killed_import_left_is_removed_by_the_next_into_that_place_and_by_no_other(
    place: Path, traces: dict[int, Path]
) -> None:
    killed = started(traces[0], place / "cap", "dies")
    assert killed.wait(60) == -signal.SIGKILL
    part = f".cap.{killed.pid}.part"
    assert names(place) == {part}
    assert names(place / part / "rank-0") == {"trace.json.gz", "columns.parquet"}
    take(traces, place / "other")
    take(traces, place / "c.p")  # a name is no pattern
    assert names(place) == {part, "other", "c.p"}
    take(traces, place / "cap")
    assert names(place) == {"cap", "other", "c.p"}


def test_what_a_living_import_is_making_is_left_alone(place: Path, traces: dict[int, Path]) -> None:
    living = started(traces[0], place / "cap", "lives")
    try:
        part = place / f".cap.{living.pid}.part"
        take(traces, place / "cap")
        assert (part / "rank-0" / "trace.json.gz").exists()
    finally:
        living.communicate(timeout=60)
    assert living.returncode, "the place was taken meanwhile"
    assert names(place) == {"cap"}


@pytest.mark.parametrize("own", [True, False])
def test_a_number_may_be_another_machines_process_whose_lock_tells(
    place: Path, traces: dict[int, Path], own: bool
) -> None:
    """Containers give the same small numbers; a shared disk is used by processes that nobody here can see."""
    part = place / f".cap.{os.getpid() if own else 999_999_999}.part"
    part.mkdir()
    (part / "precious").touch()
    lock = os.open(part, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    if own:
        with pytest.raises(UsageError, match="Nothing was imported: File exists"):
            take(traces, place / "cap")
    else:
        take(traces, place / "cap")
    assert names(part) == {"precious"}
    os.close(lock)
    take(traces, place / ("cap" if own else "cap2"))
    assert names(place) == ({"cap"} if own else {"cap", "cap2", part.name})


# -- a full disk --------------------------------------------------------------------------------------------------


def test_a_disk_that_the_columns_of_other_ranks_filled_takes_all_traces_without_columns(
    place: Path, traces: dict[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    put = Store._put

    def full(self: Store, block: bytes) -> None:
        if len(list(place.rglob("columns.parquet"))) > (self._path.parent / "columns.parquet").exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        put(self, block)

    monkeypatch.setattr(Store, "_put", full)
    found = take(traces, place / "cap")
    assert found.manifest.capture.outcome is Outcome.SUCCEEDED
    assert [target.artifact.columns for target in found.manifest.targets if target.artifact] == [None, None]
    assert set(found.trouble) == {0, 1}
    assert all("No space left on device" in why for why in found.trouble.values())
    assert names(place) == {"cap"}
    assert names(place / "cap" / "rank-0") == {"trace.json.gz"}


def test_a_disk_without_room_for_the_traces_is_said_and_nothing_stays(
    place: Path, traces: dict[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(folder: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(imported, "sync", full)
    with pytest.raises(UsageError, match="Nothing was imported: No space left on device"):
        take(traces, place / "cap")
    assert not names(place)
    monkeypatch.undo()
    assert read_footer(take(traces, place / "cap").path.parent / "rank-1" / "columns.parquet").rank == 1
