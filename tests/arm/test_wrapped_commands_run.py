"""The very words that arming writes, run by a real shell with a real Python behind them."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from arm_lab import container, container_of, template

from sameshot.arm import arm_template
from sameshot.arm.command import is_kept
from sameshot.arm.hookmap import hook_files

SHELLS = [shell for shell in ("/bin/sh", "dash", "bash", "busybox", "ksh", "zsh") if shutil.which(shell)]
TELL = "import json, os, sys; print(json.dumps([os.getpid(), sys.argv, sys.path, os.environ.get('PYTHONPATH')]))"


@pytest.fixture
def hook(tmp_path: Path) -> Path:
    """What the kubelet makes of the ConfigMap."""
    folder = tmp_path / "hook"
    folder.mkdir()
    for name, text in hook_files().items():
        (folder / name).write_text(text)
    return folder


def kubelet(words: Sequence[str], environment: dict[str, str]) -> list[str]:
    """What the kubelet does to command and args: `$(NAME)` of a known variable is replaced, `$$` is one `$`
    (https://kubernetes.io/docs/tasks/inject-data-application/define-interdependent-environment-variables/)."""

    def replaced(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return environment.get(match[1], match[0])

    return [re.sub(r"\$\$|\$\(([^)]*)\)", replaced, word) for word in words]


def started(
    command: list[str], hook: Path, *, args: Sequence[str] = (), shell: str | None = None, **environment: str
) -> tuple[list[str], dict[str, str]]:
    """The process that a container runtime would start: /sameshot-hook is `hook` here."""
    armed = container_of(arm_template(template(container(command=command, args=list(args)))).template)
    surroundings = {"PATH": os.environ["PATH"], "SAMESHOT_ARMED": "1"} | environment
    words = kubelet([*armed["command"], *armed["args"]], surroundings)
    assert words[:2] == ["/bin/sh", "-c"]
    assert words[2].count("/sameshot-hook") == 1
    words[2] = words[2].replace("/sameshot-hook", str(hook))
    if shell is not None:
        words[:1] = [shell, "sh"] if shell == "busybox" else [shell]
    return words, surroundings


def run(
    command: list[str], hook: Path, *, args: Sequence[str] = (), shell: str | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    words, surroundings = started(command, hook, args=args, shell=shell, **environment)
    return subprocess.run(words, env=surroundings, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("shell", SHELLS)
def test_the_hook_is_first_and_the_images_path_behind_it(shell: str, hook: Path) -> None:
    done = run([sys.executable, "-c", TELL], hook, shell=shell, PYTHONPATH="/image/a:/image/b")
    _, argv, path, variable = json.loads(done.stdout)
    assert variable == f"{hook}:/image/a:/image/b"
    assert path[:4] == ["", str(hook), "/image/a", "/image/b"]
    assert argv == ["-c"]


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("own", [{}, {"PYTHONPATH": ""}], ids=["unset", "empty"])
def test_without_one_nothing_but_the_hook_is_added(shell: str, own: dict[str, str], hook: Path) -> None:
    """No empty element, which would be the current directory."""
    done = run([sys.executable, "-c", TELL], hook, shell=shell, **own)
    assert json.loads(done.stdout)[3] == str(hook)


def test_python_really_loads_the_hook(hook: Path) -> None:
    script = "import sys; print([type(finder).__module__ for finder in sys.meta_path][0])"
    assert run([sys.executable, "-c", script], hook).stdout.strip() == "_sameshot_import"
    assert run([sys.executable, "-I", "-c", script], hook).stdout.strip() != "_sameshot_import"


@pytest.mark.parametrize("missing", [True, False], ids=["missing", "empty"])
def test_without_the_hooks_files_the_command_runs_all_the_same(missing: bool, tmp_path: Path) -> None:
    """The ConfigMap is optional: its volume is empty, or on an odd runtime not even there."""
    folder = tmp_path / "hook"
    if not missing:
        folder.mkdir()
    done = run([sys.executable, "-c", "print('trained')"], folder, PYTHONPATH="/image")
    assert (done.returncode, done.stdout, done.stderr) == (0, "trained\n", "")


@pytest.mark.parametrize("shell", SHELLS)
def test_words_arrive_as_they_are(shell: str, hook: Path) -> None:
    odd = ["", " ", "a b", "*", "~", "$HOME", "`id`", "$(echo x)", "'\"", "\\n", "-c", "--", "ünïcødé", "line\nbreak"]
    done = run([sys.executable, "-c", TELL, *odd[:7]], hook, args=odd[7:], shell=shell)
    assert json.loads(done.stdout)[1] == ["-c", *odd]


def test_the_kubelets_own_references_work_as_before(hook: Path) -> None:
    """Those of the user are replaced, and nothing in the words in front is one."""
    done = run([sys.executable, "-c", TELL, "$(RUN)", "$$(RUN)", "$(NONE)"], hook, args=["--run=$(RUN)"], RUN="7")
    assert json.loads(done.stdout)[1] == ["-c", "7", "$(RUN)", "$(NONE)", "--run=7"]


def test_a_shells_own_script_keeps_its_zeroth_word_and_arguments(hook: Path) -> None:
    script = 'echo "$0|$1|$PYTHONPATH"'
    done = run(["bash", "-c", script, "name", "first"], hook, PYTHONPATH="/image")
    assert done.stdout == f"name|first|{hook}:/image\n"


@pytest.mark.parametrize("code", [0, 1, 7, 255])
def test_the_exit_code_is_the_commands(code: int, hook: Path) -> None:
    assert run([sys.executable, "-c", f"raise SystemExit({code})"], hook).returncode == code


@pytest.mark.parametrize("shell", SHELLS)
def test_the_process_is_the_command_itself_and_gets_the_signals(shell: str, hook: Path) -> None:
    """A pod's process 1: a shell that stayed there would keep SIGTERM from the training."""
    script = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(42))\n"
        "print(os.getpid(), flush=True)\n"
        "signal.pause()"
    )
    words, surroundings = started([sys.executable, "-c", script], hook, shell=shell)
    with subprocess.Popen(words, env=surroundings, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert int(process.stdout.readline()) == process.pid
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=30) == 42
        finally:
            process.kill()


@pytest.mark.parametrize("shell", SHELLS)
def test_every_variable_that_arming_accepts_arrives(shell: str, hook: Path) -> None:
    """And those that it refuses are lost with some shells, which is why."""
    names = ["a.b", "c-d", "1st", "A_b2", "_x", "NCCL_DEBUG"]
    told = "import json, os; print(json.dumps(list(os.environ)))"
    found = json.loads(run([sys.executable, "-c", told], hook, shell=shell, **dict.fromkeys(names, "1")).stdout)
    accepted = {name for name in names if is_kept(name)}
    assert accepted == {"A_b2", "_x", "NCCL_DEBUG"}
    assert accepted <= set(found)
    if shell == "dash":
        assert not (set(names) - accepted) & set(found)


def test_a_command_that_is_not_there_fails_as_shells_do(hook: Path) -> None:
    done = run(["no-such-program"], hook)
    assert done.returncode == 127
    assert "no-such-program" in done.stderr
