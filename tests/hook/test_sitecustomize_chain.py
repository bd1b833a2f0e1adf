"""Another sitecustomize runs exactly as it would without ours in front of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hook_lab import environment, python, registrations, script

RANK = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
REPORT = """
    import sys
    module = sys.modules.get("sitecustomize")
    print(getattr(module, "MARK", None), getattr(module, "__file__", None), getattr(module, "__name__", None))
    print([entry for entry in sys.path if "payload" not in entry])
    import torch
"""
THEIRS = {
    "plain": "MARK = 'theirs'",
    "raises": "raise RuntimeError('their bug')",
    "lacks a module": "import no_such_module",
    "exits": "raise SystemExit(5)",
    "prints": "print('hello'); MARK = 'theirs'",
    "changes the path": "import sys; sys.path.append('/their/path'); MARK = 'theirs'",
    "replaces the path": "import sys; sys.path = sys.path + ['/their/path']; MARK = 'theirs'",
    "imports torch": "import torch; MARK = 'theirs'",
}


@pytest.mark.parametrize("code", THEIRS.values(), ids=THEIRS.keys())
@pytest.mark.parametrize("marked", [True, False])
def test_the_next_sitecustomize_behaves_as_without_us(
    shared_dir: Path, standin: Path, tmp_path: Path, code: str, marked: bool
) -> None:
    script(tmp_path, code, "sitecustomize.py")
    without = python(environment(None, tmp_path, standin, **RANK), REPORT)
    env = environment(shared_dir, tmp_path, standin, **RANK)
    if not marked:
        del env["SAMESHOT_ARMED"]
    ours = python(env, REPORT)

    def plain(stdout: str) -> list[str]:
        return [line for line in stdout.splitlines() if not line.startswith("SEEN ")]

    assert plain(ours.stdout) == plain(without.stdout)
    if "Traceback" in without.stderr:  # a fatal error: ours may stand among the frames
        assert ours.stderr.splitlines()[-1] == without.stderr.splitlines()[-1]
    else:
        assert ours.stderr == without.stderr
    assert ours.returncode == without.returncode
    assert len(registrations(shared_dir)) == (1 if marked and ours.returncode == 0 else 0)


def test_without_another_sitecustomize_nothing_is_said(shared_dir: Path, standin: Path) -> None:
    done = python(
        environment(shared_dir, standin, **RANK), "import sitecustomize, torch; print(sitecustomize.__name__)"
    )
    assert done.stdout.splitlines()[-1] == "sitecustomize"
    assert done.stderr == ""
    assert len(registrations(shared_dir)) == 1


def test_a_payload_that_is_twice_on_the_path_arms_once(shared_dir: Path, standin: Path, tmp_path: Path) -> None:
    import shutil

    from sameshot.hook import PAYLOAD

    copy = shutil.copytree(PAYLOAD, tmp_path / "again")
    done = python(environment(shared_dir, copy, standin, **RANK), "import torch")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(registrations(shared_dir)) == 1
