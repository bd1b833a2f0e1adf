"""The local archive: nothing half-written under a final name, and a full disk said as such."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from sameshot.errors import StorageError
from sameshot.storage import Storage, local

SIZE = 4 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    mount = tmp_path / "small"
    mount.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1M", "none", str(mount)], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"mounting a tmpfs is not permitted here: {mounted.stderr.strip()}")
    try:
        yield mount
    finally:
        subprocess.run(["umount", str(mount)], check=True)


def spooled(folder: Path, size: int = SIZE) -> tuple[Path, str]:
    path = folder / "spooled.json.gz"
    path.write_bytes(os.urandom(size))
    return path, hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_full_disk_is_named_and_leaves_no_debris(small_disk: Path, tmp_path: Path) -> None:
    source, sha256 = spooled(tmp_path)
    storage = Storage.open(str(small_disk))
    with pytest.raises(StorageError) as caught:
        asyncio.run(storage.put_file("job/trace", source, size=SIZE, sha256=sha256))
    for part in (str(small_disk / "job/trace"), "no space is left", f"{source} is kept"):
        assert part in str(caught.value)
    assert hashlib.sha256(source.read_bytes()).hexdigest() == sha256
    assert [path for path in small_disk.rglob("*") if path.is_file()] == []
    asyncio.run(storage.put_new("job/small", b"there is room again"))
    with pytest.raises(StorageError, match="no space is left"):
        asyncio.run(storage.put_new("job/manifest.json", bytes(SIZE)))
    assert asyncio.run(storage.list()) == ["job/small"]


def test_a_file_size_limit_is_reported_like_a_full_disk(tmp_path: Path) -> None:
    """The same without any privilege: RLIMIT_FSIZE makes the write fail in the middle."""
    source, sha256 = spooled(tmp_path)
    script = f"""
        import asyncio, pathlib, resource, signal
        from sameshot.errors import StorageError
        from sameshot.storage import Storage
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        try:
            put = Storage.open({str(tmp_path / "archive")!r}).put_file
            asyncio.run(put("job/trace", pathlib.Path({str(source)!r}), size={SIZE}, sha256={sha256!r}))
        except StorageError as error:
            print(error)
    """
    said = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True)
    assert "no space is left" in said.stdout
    assert str(tmp_path / "archive/job/trace") in said.stdout
    assert [path for path in (tmp_path / "archive").rglob("*") if path.is_file()] == []


def test_a_read_only_archive_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    storage = Storage.open(str(tmp_path / "file"))  # a root that can't be a folder, also for root
    with pytest.raises(StorageError, match="file"):
        asyncio.run(storage.put_new("job/manifest.json", b"x"))
    assert asyncio.run(storage.size("job/manifest.json")) is None


def test_a_reader_never_sees_a_part_of_a_replaced_object(tmp_path: Path) -> None:
    """A put that fails at its end leaves the old object whole: the final name was never opened for writing."""
    source, sha256 = spooled(tmp_path)
    storage = Storage.open(str(tmp_path / "archive"))
    asyncio.run(storage.put_file("trace", source, size=SIZE, sha256=sha256))
    first = source.read_bytes()
    source.write_bytes(os.urandom(SIZE))
    with pytest.raises(StorageError, match="changed after it was verified"):
        asyncio.run(storage.put_file("trace", source, size=SIZE, sha256=sha256))
    assert storage.get_sync("trace") == first


def test_bytes_are_synced_before_they_get_their_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    real = {name: getattr(os, name) for name in ("fsync", "replace", "link")}

    def recording(name: str) -> object:
        def call(*args: object) -> object:
            target = os.readlink(f"/proc/self/fd/{args[0]}") if name == "fsync" else str(args[1])
            events.append(f"{name} {'folder' if os.path.isdir(target) else 'file'}")
            return real[name](*args)

        return call

    source, sha256 = spooled(tmp_path, 10)
    (tmp_path / "archive").mkdir()
    storage = Storage.open(str(tmp_path / "archive"))
    for name in real:
        monkeypatch.setattr(os, name, recording(name))
    asyncio.run(storage.put_file("trace", source, size=10, sha256=sha256))
    asyncio.run(storage.put_new("manifest.json", b"x"))
    assert events == ["fsync file", "replace file", "fsync folder", "fsync file", "link file", "fsync folder"]


def test_files_of_writers_that_died_are_not_listed(tmp_path: Path) -> None:
    storage = Storage.open(str(tmp_path))
    asyncio.run(storage.put_new("job/manifest.json", b"x"))
    (tmp_path / "job/.sameshot-0123.tmp").write_bytes(b"half")
    assert asyncio.run(storage.list()) == ["job/manifest.json"]


def test_a_fifo_in_the_archive_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "trace")
    storage = Storage.open(str(tmp_path))
    assert asyncio.run(storage.size("trace")) is None
    with pytest.raises(StorageError):
        storage.open_read("trace")


def test_a_disk_that_hangs_ends_at_the_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (release.wait(60), real(handle)))
    source, sha256 = spooled(tmp_path, 10)

    async def put() -> None:
        storage = Storage.open(str(tmp_path), deadline_s=0.2)
        try:
            async with asyncio.timeout(10):
                with pytest.raises(StorageError, match=r"deadline of 0\.2 s"):
                    await storage.put_file("trace", source, size=10, sha256=sha256)
            assert not (tmp_path / "trace").exists()
        finally:
            release.set()

    asyncio.run(put())


# --- a file system that hangs ----------------------------------------------------------------------------------


def test_operations_that_hang_take_no_threads_but_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server_is_back = threading.Event()
    hanging = []

    def hang(*_: object) -> None:
        hanging.append(threading.current_thread())
        server_is_back.wait()

    async def scenario() -> None:
        storage = Storage.open(str(tmp_path / "archive"))
        source, sha256 = spooled(tmp_path, 10)

        async def put() -> None:
            await storage.put_file("trace", source, size=10, sha256=sha256, deadline_s=0.3)

        monkeypatch.setattr(local, "_copy", hang)
        ends = await asyncio.gather(*(put() for _ in range(40)), return_exceptions=True)
        assert all(isinstance(end, StorageError) and "did not end within its deadline" in str(end) for end in ends)
        assert len(hanging) <= 8
        assert await asyncio.wait_for(asyncio.to_thread(lambda: "free"), 30) == "free"
        monkeypatch.undo()
        with pytest.raises(StorageError, match="did not end"):
            await put()  # there is no thread for it …
        server_is_back.set()
        await asyncio.wait_for(_until_it_works(put), 30)  # … until one of them has come back
        assert storage.get_sync("trace") == source.read_bytes()

    try:
        asyncio.run(scenario())
    finally:
        server_is_back.set()


async def _until_it_works(put: Callable[[], Awaitable[None]]) -> None:
    while True:
        with contextlib.suppress(StorageError):
            return await put()


def test_a_process_ends_although_an_operation_hangs(tmp_path: Path) -> None:
    source, sha256 = spooled(tmp_path, 10)
    script = f"""
        import asyncio, pathlib, threading
        import sameshot.storage.local as local
        from sameshot.errors import StorageError
        from sameshot.storage import Storage
        local._copy = lambda *_: threading.Event().wait()
        put = Storage.open({str(tmp_path / "archive")!r}).put_file
        try:
            asyncio.run(put("t", pathlib.Path({str(source)!r}), size=10, sha256={sha256!r}, deadline_s=0.2))
        except StorageError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True, timeout=60
    )
    assert "did not end within its deadline" in done.stdout
