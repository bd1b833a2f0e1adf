"""The hook stays in front of `import torch` until torch has really executed, and disturbs nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hook_lab import environment, python, registrations, script

RANK = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}
WITHOUT_SITE = {"-S": "no site", "-I": "isolated", "-E": "no environment"}


def seen(stdout: str) -> list[dict[str, str]]:
    """Kineto's environment as it was whenever torch executed."""
    return [json.loads(line.removeprefix("SEEN ")) for line in stdout.splitlines() if line.startswith("SEEN ")]


def armed(stdout: str) -> bool:
    (environment_of_torch,) = seen(stdout)
    return environment_of_torch.get("KINETO_USE_DAEMON") == "1"


def test_kineto_finds_its_environment_while_torch_executes(shared_dir: Path, standin: Path) -> None:
    done = python(environment(shared_dir, standin, **RANK), "import torch")
    assert (done.returncode, done.stderr) == (0, "")
    (worker,) = registrations(shared_dir)
    assert seen(done.stdout) == [
        {
            "KINETO_USE_DAEMON": "1",
            "KINETO_LOG_LEVEL": "5",
            "KINETO_IPC_SOCKET_DIR": f"{shared_dir}/ipc",
            "KINETO_ONDEMAND_TRACE_DIR": f"{shared_dir}/captures",
            "KINETO_CONFIG": f"{shared_dir}/kineto.conf",
            "SLURM_JOB_ID": str(worker.kineto_job_id),
            "PT_PROFILER_JOB_NAME": f"sameshot/{worker.uuid}",
        }
    ]
    assert (shared_dir / "ipc").is_dir()
    assert "ENABLE_IPC_FABRIC=true\n" in (shared_dir / "kineto.conf").read_text()


@pytest.mark.parametrize("before", [{}, {"KINETO_USE_DAEMON": "0", "SLURM_JOB_ID": "77", "KINETO_LOG_LEVEL": "1"}])
def test_afterwards_the_environment_is_as_it_was_but_for_what_kineto_reads_at_every_use(
    shared_dir: Path, standin: Path, before: dict[str, str]
) -> None:
    code = """
        import json, os
        before = dict(os.environ)
        import torch
        print(json.dumps([before, dict(os.environ)]))
    """
    done = python(environment(shared_dir, standin, **RANK, **before), code)
    was, now = json.loads(done.stdout.splitlines()[-1])
    changed = {name for name in was.keys() | now.keys() if was.get(name) != now.get(name)}
    assert changed == {
        "SAMESHOT_ARMED",
        "KINETO_IPC_SOCKET_DIR",
        "KINETO_ONDEMAND_TRACE_DIR",
        "KINETO_CONFIG",
        "PT_PROFILER_JOB_NAME",
    }
    assert "SAMESHOT_ARMED" not in now
    (at_import,) = seen(done.stdout)
    assert at_import["SLURM_JOB_ID"] != "77"
    assert at_import["KINETO_USE_DAEMON"] == "1"


@pytest.mark.parametrize(
    ("before", "kept"), [("sameshot/of-a-parent", False), ("", False), ("my-run", True), ("sameshot", True)]
)
def test_a_job_name_of_the_users_own_is_kept(shared_dir: Path, standin: Path, before: str, kept: bool) -> None:
    python(environment(shared_dir, standin, PT_PROFILER_JOB_NAME=before, **RANK), "import torch")
    (worker,) = registrations(shared_dir)
    assert worker.job_name == (before if kept else f"sameshot/{worker.uuid}")


def test_an_unmarked_process_is_left_alone(shared_dir: Path, standin: Path) -> None:
    env = environment(shared_dir, standin, **RANK)
    del env["SAMESHOT_ARMED"]
    code = "import sys, torch; print(any('_sameshot' in name for name in [*sys.modules, *map(repr, sys.meta_path)]))"
    done = python(env, code)
    assert done.stdout.splitlines()[-1] == "False"
    assert not armed(done.stdout)
    assert list(shared_dir.iterdir()) == []


def test_a_marked_process_without_torch_does_nothing(shared_dir: Path) -> None:
    done = python(environment(shared_dir, **RANK), "import sys; print('_sameshot_arm' in sys.modules)")
    assert (done.stdout, done.stderr) == ("False\n", "")
    assert list(shared_dir.iterdir()) == []


def test_probes_for_torch_do_not_use_the_hook_up(shared_dir: Path, standin: Path) -> None:
    code = """
        from importlib.machinery import SourceFileLoader
        from importlib.util import find_spec
        specs = [find_spec("torch") for _ in range(3)]
        assert all(isinstance(spec.loader, SourceFileLoader) for spec in specs)
        assert all(spec.loader.get_filename("torch") == spec.origin for spec in specs)
        assert find_spec("torch.distributed.nothing") is None   # imports the parent
    """
    done = python(environment(shared_dir, standin, **RANK), code)
    assert (done.returncode, done.stderr) == (0, "")
    assert armed(done.stdout)
    assert len(registrations(shared_dir)) == 1


def test_after_the_import_nothing_of_the_wrapping_is_left(shared_dir: Path, standin: Path) -> None:
    code = """
        import importlib.util, torch
        from importlib.machinery import SourceFileLoader
        assert type(torch.__spec__.loader) is SourceFileLoader
        assert type(torch.__loader__) is SourceFileLoader
        assert type(importlib.util.find_spec("torch").loader) is SourceFileLoader
        importlib.reload(torch)
    """
    done = python(environment(shared_dir, standin, **RANK), code)
    assert (done.returncode, done.stderr) == (0, "")
    first, second = seen(done.stdout)
    assert "KINETO_USE_DAEMON" in first
    assert "KINETO_USE_DAEMON" not in second
    assert len(registrations(shared_dir)) == 1


def test_a_failing_first_import_is_undone_and_a_second_one_arms(shared_dir: Path, standin: Path) -> None:
    init = standin / "torch" / "__init__.py"
    init.write_text(init.read_text() + "if os.environ.pop('BROKEN', None): raise ImportError('no libcudart')\n")
    code = """
        import os
        from pathlib import Path
        workers = Path(os.environ["SAMESHOT_DIR"], "workers")
        try:
            import torch
        except ImportError as error:
            assert str(error) == "no libcudart"
        assert list(workers.iterdir()) == []
        assert os.environ["SAMESHOT_ARMED"] == "1"
        assert "KINETO_USE_DAEMON" not in os.environ
        import torch
        import torch.distributed as dist
        dist.init_process_group(rank=1, world_size=2)
    """
    done = python(environment(shared_dir, standin, BROKEN="1", **RANK), code)
    assert (done.returncode, done.stderr) == (0, "")
    assert [one.get("KINETO_USE_DAEMON") for one in seen(done.stdout)] == ["1", "1"]
    (worker,) = registrations(shared_dir)
    assert worker.torch_version == "9.9.9+standin"
    assert worker.groups == ("0",)


def test_torch_may_be_imported_from_a_thread(shared_dir: Path, standin: Path) -> None:
    code = """
        import importlib, threading
        threads = [threading.Thread(target=importlib.import_module, args=["torch"]) for _ in range(4)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
    """
    done = python(environment(shared_dir, standin, **RANK), code)
    assert (done.returncode, done.stderr) == (0, "")
    assert armed(done.stdout)
    assert len(registrations(shared_dir)) == 1


def test_python_dash_m_is_armed(shared_dir: Path, standin: Path, tmp_path: Path) -> None:
    script(tmp_path, "import torch", "train.py")
    done = subprocess.run(
        [sys.executable, "-m", "train"],
        env=environment(shared_dir, standin, tmp_path, **RANK),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    assert armed(done.stdout)


OTHER_HOOKS = {
    "one in front that asks the others and brings its own loader": """
        import importlib.util, sys
        class Wrapping:
            busy = False
            def find_spec(self, name, path=None, target=None):
                if name != "torch" or self.busy: return None
                self.busy = True
                try: spec = importlib.util.find_spec(name)
                finally: self.busy = False
                class Loader:
                    def __init__(self, inner): self.inner = inner
                    def create_module(self, spec): return self.inner.create_module(spec)
                    def exec_module(self, module):
                        self.inner.exec_module(module); module.touched = True
                spec.loader = Loader(spec.loader)
                return spec
        sys.meta_path.insert(0, Wrapping())
        import torch
        assert torch.touched
    """,
    "one behind that asks the others again": """
        import importlib.util, sys
        class Asking:
            busy = False
            @classmethod
            def find_spec(cls, name, path=None, target=None):
                if name != "torch" or cls.busy: return None
                cls.busy = True
                try: return importlib.util.find_spec(name)
                finally: cls.busy = False
        sys.meta_path.insert(1, Asking)
        import torch
    """,
    "one behind with a loader that is no file loader": """
        import importlib.util, os, sys
        from importlib.machinery import PathFinder
        class Memory:
            source = open(PathFinder.find_spec("torch").origin).read()
            where = os.path.dirname(PathFinder.find_spec("torch").origin)
            def find_spec(self, name, path=None, target=None):
                if name != "torch": return None
                spec = importlib.util.spec_from_loader(name, self, is_package=True)
                spec.submodule_search_locations = [self.where]
                return spec
            def create_module(self, spec): return None
            def exec_module(self, module): exec(self.source, module.__dict__)
        memory = Memory()
        sys.meta_path.insert(1, memory)
        import torch
        assert torch.__loader__ is memory
    """,
    "a lazy loader": """
        import importlib.util, sys
        spec = importlib.util.find_spec("torch")
        spec.loader = importlib.util.LazyLoader(spec.loader)
        torch = importlib.util.module_from_spec(spec)
        sys.modules["torch"] = torch
        spec.loader.exec_module(torch)
        print("not yet executed")
        assert torch.__version__
    """,
}


@pytest.mark.parametrize("code", OTHER_HOOKS.values(), ids=OTHER_HOOKS.keys())
def test_other_import_hooks_keep_working(shared_dir: Path, standin: Path, code: str) -> None:
    done = python(environment(shared_dir, standin, **RANK), code)
    assert (done.returncode, done.stderr) == (0, "")
    assert armed(done.stdout)
    assert len(registrations(shared_dir)) == 1


def test_a_hook_that_forbids_torch_still_forbids_it(shared_dir: Path, standin: Path) -> None:
    code = """
        import sys
        class No:
            def find_spec(self, name, path=None, target=None):
                if name == "torch": raise ImportError("torch is not allowed here")
        sys.meta_path.insert(1, No())
        try: import torch
        except ImportError as error: print(error)
    """
    done = python(environment(shared_dir, standin, **RANK), code)
    assert (done.stdout, done.stderr) == ("torch is not allowed here\n", "")
    assert list(shared_dir.iterdir()) == []


def test_without_torch_the_import_fails_as_ever(shared_dir: Path, tmp_path: Path) -> None:
    bare = os.path.join(sys.base_prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}")
    results = [
        subprocess.run([bare, "-c", "import torch"], env=env, capture_output=True, text=True, check=False)
        for env in (environment(None), environment(shared_dir, **RANK))
    ]
    if "ModuleNotFoundError" not in results[0].stderr:
        pytest.skip("the base interpreter has a torch of its own")
    assert results[0].stderr == results[1].stderr
    assert results[0].returncode == results[1].returncode == 1
    assert list(shared_dir.iterdir()) == []


@pytest.mark.parametrize("option", WITHOUT_SITE, ids=WITHOUT_SITE.values())
def test_an_interpreter_without_site_or_environment_trains_on_unregistered(
    shared_dir: Path, standin: Path, option: str
) -> None:
    code = f"import sys; sys.path.insert(0, {str(standin)!r}); import torch; print('trained')"
    done = python(environment(shared_dir, **RANK), code, option)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("trained\n")
    assert not armed(done.stdout)
    assert list(shared_dir.iterdir()) == []


def unusable(folder: Path) -> dict[str, str]:
    (folder / "file").touch()
    return {
        "missing and not to be made": "/proc/nowhere",
        "a file": str(folder / "file"),
        "too long for a socket": f"/tmp/{'x' * 46}",
        "relative": "shared",
        "spelt with a detour": "/tmp/../tmp/x",
        "empty": "",
    }


@pytest.mark.parametrize("what", unusable(Path("/dev/shm")))
def test_an_unusable_shared_directory_costs_one_line(standin: Path, tmp_path: Path, what: str) -> None:
    code = """
        import os, subprocess, sys, torch
        print(sorted(name for name in os.environ if name.startswith(("KINETO", "PT_PROF", "SAMESHOT_ARMED"))))
        subprocess.run([sys.executable, "-c", "import torch"], check=True)
    """
    directory = unusable(tmp_path)[what]
    done = python(environment(Path("/x"), standin, **RANK) | {"SAMESHOT_DIR": directory}, code, cwd=tmp_path)
    assert done.returncode == 0
    assert "[]" in done.stdout.splitlines()
    assert all("KINETO_USE_DAEMON" not in one for one in seen(done.stdout))
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("sameshot: ")
    assert done.stderr.endswith("; training goes on unprofiled\n")


def test_a_broken_payload_costs_one_line(shared_dir: Path, standin: Path, tmp_path: Path) -> None:
    import shutil

    from sameshot.hook import PAYLOAD

    copy = shutil.copytree(PAYLOAD, tmp_path / "payload")
    for broken, code in [("_sameshot_rare.py", "1 / 0"), ("_sameshot_arm.py", "1 / 0"), ("_sameshot_import.py", "def")]:
        (copy / broken).write_text(code)
        env = environment(shared_dir, **RANK) | {"PYTHONPATH": f"{copy}:{standin}"}
        done = python(env, "import torch")
        assert done.returncode == 0
        assert not armed(done.stdout)
        assert done.stderr.count("\n") == 1
        assert done.stderr.startswith("sameshot: ")


def test_the_payload_is_flat_small_and_needs_only_the_standard_library() -> None:
    import ast

    from sameshot.hook import PAYLOAD

    files = [path for path in PAYLOAD.iterdir() if path.name != "__pycache__"]
    assert {path.suffix for path in files} == {".py"}
    assert sum(path.stat().st_size for path in files) < 100_000  # a ConfigMap holds 1 MiB
    own = {path.stem for path in files}
    for path in files:
        tree = ast.parse(path.read_text(), feature_version=(3, 9))
        typing_only = {
            node
            for block in ast.walk(tree)
            if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
            for statement in block.body
            for node in ast.walk(statement)
        }
        for node in ast.walk(tree):
            if node in typing_only:
                continue
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or "."]
            for name in names:
                assert name.partition(".")[0] in sys.stdlib_module_names | own, (path.name, name)
