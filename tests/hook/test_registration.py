"""What a worker writes about itself, and how others see whether it still lives."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hook_lab import environment, held, python, registrations, script, started, until

from sameshot.errors import UsageError
from sameshot.hook import PAYLOAD
from sameshot.model import REGISTRATION_SCHEMA, BoundBy, JobRef, Phase, Registration
from sameshot.profiler.broker import Broker
from sameshot.profiler.place import MAX_DIRECTORY_BYTES

sys.path.insert(0, str(PAYLOAD))
import _sameshot_arm as arm
import _sameshot_rare as rare

RANK = {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}


def the_lock(directory: Path) -> Path:
    (lock,) = (directory / "workers").glob("*.lock")
    return lock


def test_a_registration_has_exactly_the_models_fields(shared_dir: Path, standin: Path) -> None:
    env = environment(
        shared_dir,
        standin,
        **RANK,
        SAMESHOT_POD="train-0",
        SAMESHOT_POD_UID="1c8e",
        SAMESHOT_CONTAINER="trainer",
        SAMESHOT_JOB_ATTEMPT="3",
        TORCHELASTIC_RESTART_COUNT="2",
    )
    with started([sys.executable, "-c", "import torch, os; os.abort()"], env, stdout=subprocess.DEVNULL) as process:
        process.wait()
    (file,) = (shared_dir / "workers").glob("*.json")
    raw = json.loads(file.read_bytes())
    assert set(raw) == set(Registration.__struct_fields__)
    worker = msgspec.convert(raw, Registration)
    assert file.name == f"{worker.uuid}.json"
    assert worker == Registration(
        uuid=worker.uuid,
        pid=process.pid,
        start_ticks=worker.start_ticks,
        job=JobRef("local", "train", "6b1f", 3),
        schema=REGISTRATION_SCHEMA,
        phase=Phase.CANDIDATE,
        rank=5,
        local_rank=1,
        world_size=8,
        local_world_size=4,
        ancestors=worker.ancestors,
        node="node-a",
        pod="train-0",
        pod_uid="1c8e",
        container="trainer",
        host=os.uname().nodename,
        torch_version="9.9.9+standin",
        kineto_job_id=worker.kineto_job_id,
        job_name=f"sameshot/{worker.uuid}",
        restart_count=2,
        registered_at_ns=worker.registered_at_ns,
        updated_at_ns=worker.updated_at_ns,
    )
    assert worker.bound_by is BoundBy.BYTES
    assert worker.ancestors[0] == os.getpid()
    assert 0 < worker.registered_at_ns <= worker.updated_at_ns
    assert 0 < worker.kineto_job_id < 2**31


def test_start_ticks_are_those_of_the_process(shared_dir: Path, standin: Path) -> None:
    code = """
        import torch
        print(open("/proc/self/stat").read().rpartition(")")[2].split()[19])
    """
    done = python(environment(shared_dir, standin, **RANK), code)
    assert registrations(shared_dir)[0].start_ticks == int(done.stdout.split()[-1])


def test_a_registration_is_there_before_torch_executes_and_names_the_version_afterwards(
    shared_dir: Path, standin: Path
) -> None:
    init = standin / "torch" / "__init__.py"
    look = "import glob; print(open(glob.glob(os.environ['SAMESHOT_DIR'] + '/workers/*.json')[0]).read())\n"
    init.write_text(init.read_text() + look)
    done = python(environment(shared_dir, standin, **RANK), "import torch")
    early = msgspec.json.decode(done.stdout.splitlines()[-1], type=Registration)
    assert (early.phase, early.torch_version) == (Phase.CANDIDATE, None)
    assert registrations(shared_dir)[0].torch_version == "9.9.9+standin"


def test_files_are_readable_for_the_agent_whatever_the_umask_and_no_draft_is_left(
    shared_dir: Path, standin: Path
) -> None:
    done = python(environment(shared_dir, standin, **RANK), "import os; os.umask(0o077); import torch")
    assert done.stderr == ""
    for path in [*(shared_dir / "workers").iterdir(), shared_dir / "kineto.conf"]:
        assert path.stat().st_mode & 0o777 == 0o644, path
    assert len(list((shared_dir / "workers").iterdir())) == 2


KINETO_CONFIG = "ENABLE_IPC_FABRIC=true\nON_DEMAND_CONFIG_UPDATE_INTERVAL_SECS=1\n"


def test_the_kineto_config_is_written_once(shared_dir: Path, standin: Path) -> None:
    config = shared_dir / "kineto.conf"
    inodes = set()
    for _ in range(3):
        assert python(environment(shared_dir, standin, **RANK), "import torch").stderr == ""
        assert config.read_text() == KINETO_CONFIG
        inodes.add(config.stat().st_ino)
    assert len(inodes) == 1
    assert sorted(path.name for path in shared_dir.iterdir()) == ["ipc", "kineto.conf", "workers"]  # and no draft


@pytest.mark.parametrize(
    ("text", "warned"), [("# of another version\nENABLE_IPC_FABRIC = true\n", False), ("VERBOSE_LOG_LEVEL=1\n", True)]
)
def test_a_kineto_config_of_somebody_else_is_never_changed(
    shared_dir: Path, standin: Path, text: str, warned: bool
) -> None:
    config = shared_dir / "kineto.conf"
    config.write_text(text)
    inode = config.stat().st_ino
    done = python(environment(shared_dir, standin, **RANK), "import torch")
    assert (config.read_text(), config.stat().st_ino) == (text, inode)
    assert len(registrations(shared_dir)) == 1
    assert done.stderr.count("\n") == warned
    assert ("lacks ENABLE_IPC_FABRIC=true" in done.stderr) == warned


def test_of_two_containers_that_make_the_kineto_config_at_once_the_first_one_wins(
    shared_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config, draft = shared_dir / "kineto.conf", arm.draft
    theirs: list[int] = []

    def overtaken(path: str, data: bytes) -> str:
        config.write_text(KINETO_CONFIG)  # the other one, between our look and our own file
        theirs.append(config.stat().st_ino)
        return draft(path, data)  # type: ignore[no-any-return]

    monkeypatch.setattr(arm, "draft", overtaken)
    monkeypatch.setenv("SAMESHOT_DIR", str(shared_dir))
    rare.prepare(arm.Worker({}, []))
    assert config.stat().st_ino == theirs[0]
    assert sorted(path.name for path in shared_dir.iterdir()) == ["ipc", "kineto.conf", "workers"]
    assert capsys.readouterr().err == ""


def test_drafts_of_processes_with_the_same_pid_are_different_files(tmp_path: Path) -> None:
    target = tmp_path / "kineto.conf"
    first, second = arm.draft(str(target), b"one"), arm.draft(str(target), b"two")
    assert (Path(first).read_bytes(), Path(second).read_bytes()) == (b"one", b"two")
    assert not target.exists()


@pytest.mark.parametrize("size", [50, 51])
def test_hook_and_broker_take_the_same_directories(shared_dir: Path, standin: Path, size: int) -> None:
    directory = shared_dir / ("ü" + "x" * (size - 3 - len(os.fsencode(shared_dir))))
    assert len(os.fsencode(directory)) == size
    assert len(os.fsencode(directory / "ipc")) == size - 50 + MAX_DIRECTORY_BYTES
    done = python(environment(directory, standin, **RANK), "import torch")

    async def serve() -> None:
        broker = Broker(directory / "ipc")
        await broker.start()
        await broker.close()

    if size == 50:
        assert (done.stderr, len(registrations(directory))) == ("", 1)
        asyncio.run(serve())
    else:
        assert "longer than 50 bytes" in done.stderr
        with pytest.raises(UsageError, match="at most 54 bytes"):
            asyncio.run(serve())


def test_children_of_a_worker_do_not_register(shared_dir: Path, standin: Path) -> None:
    code = """
        import torch, subprocess, sys, multiprocessing
        subprocess.run([sys.executable, "-c", "import torch"], check=True)
        process = multiprocessing.get_context("spawn").Process(target=print)
        process.start(); process.join()
    """
    train = script(standin, code.replace("\n        ", "\n"))
    subprocess.run([sys.executable, str(train)], env=environment(shared_dir, standin, **RANK), check=False)
    assert len(registrations(shared_dir)) == 1


def test_a_child_that_imports_first_is_recognised_by_its_ancestors(shared_dir: Path, standin: Path) -> None:
    code = """
        import subprocess, sys
        subprocess.run([sys.executable, "-c", "import torch"], check=True)
        import torch
    """
    python(environment(shared_dir, standin, **RANK), code)
    child, parent = registrations(shared_dir)
    assert (child.rank, child.local_rank) == (parent.rank, parent.local_rank)
    assert parent.pid in child.ancestors
    assert child.pid not in parent.ancestors


OUTLIVED = """
import os, sys, time
import torch
if os.fork() == 0:
    reader, writer = int(sys.argv[1]), int(sys.argv[2])
    os.close(writer)
    os.read(reader, 1)   # lives until the test lets go
    os._exit(0)
print("forked", flush=True)
time.sleep(600)
"""


def test_a_killed_rank_is_seen_dead_while_its_forked_workers_live(shared_dir: Path, standin: Path) -> None:
    reader, writer = os.pipe()
    command = [sys.executable, "-c", OUTLIVED, str(reader), str(writer)]
    env = environment(shared_dir, standin, **RANK)
    with started(command, env, stdout=subprocess.PIPE, pass_fds=(reader, writer)) as process:
        until(lambda: registrations(shared_dir), "registered", process)
        lock = the_lock(shared_dir)
        assert process.stdout is not None
        while process.stdout.readline() != "forked\n":
            pass
        assert held(lock)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        process.send_signal(signal.SIGKILL)
        process.wait()
        until(lambda: not held(lock), "seen dead")
        (child,) = children
        assert Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] in "SR"  # still running
        assert str(lock) in {os.path.realpath(link) for link in Path(f"/proc/{child}/fd").iterdir()}
        os.close(writer)
        os.close(reader)


def test_the_lock_is_held_until_the_very_end_of_the_process(shared_dir: Path, standin: Path) -> None:
    code = """
        import atexit, gc, glob, os, subprocess, sys
        probe = '''
        import fcntl, sys
        with open(sys.argv[1], "r+b") as file:
            try: fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError: print("held", flush=True)
            else: print("free", flush=True)
        '''.replace(chr(10) + " " * 8, chr(10))
        def last():
            (lock,) = glob.glob(os.environ["SAMESHOT_DIR"] + "/workers/*.lock")
            subprocess.run([sys.executable, "-c", probe, lock])
        atexit.register(last)    # registered before ours, so it runs after it
        import torch
        gc.collect()
    """
    done = python(environment(shared_dir, standin, **RANK), code)
    assert done.stdout.splitlines()[-1] == "held"
    assert registrations(shared_dir)[0].phase is Phase.EXITING
    assert not held(the_lock(shared_dir))


def test_the_process_group_overrides_what_the_environment_said(shared_dir: Path, standin: Path) -> None:
    code = """
        import inspect, torch
        from torch.distributed import init_process_group   # as user code has it
        import torch.distributed.distributed_c10d as c10d
        assert init_process_group is c10d.init_process_group is torch.distributed.init_process_group
        assert init_process_group.__name__ == "init_process_group"
        assert init_process_group.__doc__.startswith("Initialize the default")
        assert list(inspect.signature(init_process_group).parameters) == [
            "backend", "init_method", "world_size", "rank", "group_name"]
        assert init_process_group("gloo", rank=2, world_size=6) == "returned"
    """
    done = python(environment(shared_dir, standin, **RANK), code)
    assert (done.returncode, done.stderr) == (0, "")
    (worker,) = registrations(shared_dir)
    assert (worker.rank, worker.local_rank, worker.world_size, worker.groups) == (2, 1, 6, ("0",))


def test_a_process_group_that_fails_confirms_nothing_and_fails_as_ever(shared_dir: Path, standin: Path) -> None:
    code = """
        import os, torch
        from torch.distributed import init_process_group
        try: init_process_group(world_size=13)
        except ValueError as error: print(error)
        os._exit(0)
    """
    done = python(environment(shared_dir, standin, **RANK), code.replace("print(error)", "print(error, flush=True)"))
    assert done.stdout.splitlines()[-1] == "unlucky"
    (worker,) = registrations(shared_dir)
    assert (worker.phase, worker.rank) == (Phase.CANDIDATE, 5)


def test_confirmed_follows_when_the_group_is_there(shared_dir: Path, standin: Path) -> None:
    code = "import os, torch; torch.distributed.init_process_group(rank=5, world_size=8); os._exit(0)"
    python(environment(shared_dir, standin, **RANK), code)
    assert registrations(shared_dir)[0].phase is Phase.CONFIRMED


def test_a_forked_child_never_speaks_for_the_worker(shared_dir: Path, standin: Path) -> None:
    code = """
        import os, sys, torch
        if os.fork() == 0:
            torch.distributed.init_process_group(rank=0, world_size=1)
            sys.exit(0)   # runs the exit handlers it inherited
        os.wait()
        os._exit(0)
    """
    done = python(environment(shared_dir, standin, **RANK), code)
    assert done.stderr == ""
    (worker,) = registrations(shared_dir)
    assert (worker.phase, worker.rank, worker.world_size) == (Phase.CANDIDATE, 5, 8)


def test_a_registration_that_can_no_longer_be_written_costs_one_line(shared_dir: Path, standin: Path) -> None:
    code = """
        import os, shutil, torch
        shutil.rmtree(os.environ["SAMESHOT_DIR"] + "/workers")
        assert torch.distributed.init_process_group(rank=2, world_size=6) == "returned"
    """
    done = python(environment(shared_dir, standin, **RANK), code)
    assert done.returncode == 0
    assert done.stderr.count("\n") == 1
    assert done.stderr.endswith("; training goes on, but captures of this worker may fail\n")
