"""Starting the command line costs no more than the command needs."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points

import pytest

from sameshot.cli.main import COMMANDS, application

HEAVY = ("typer", "numpy", "pyarrow", "grpc", "torch", "pandas", "jinja2", "asyncio", "multiprocessing", "rich.console")


def brought_in(code: str) -> set[str]:
    """Which heavy modules a fresh interpreter has after it ran `code`."""
    code = (
        f"import sys\n{code}\nprint('loaded:', *[name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stderr.rpartition("loaded:")[2].split())


def command_names(arguments: list[str]) -> set[str]:
    app = application(arguments)
    assert all(command.callback is not None for command in app.registered_commands)
    found = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    return found | {group.name for group in app.registered_groups if group.name}


def test_the_command_line_itself_is_light() -> None:
    assert brought_in("import sameshot.cli.main") == set()


def test_asking_for_help_of_any_command_loads_neither_capture_nor_analysis() -> None:
    drawn = {"typer", "rich.console"}  # help is drawn with them
    assert brought_in("from sameshot.cli.main import invoke; invoke(['--help'])") <= drawn
    assert brought_in("from sameshot.cli.main import invoke; invoke(['analyze', '--help'])") <= drawn


def test_analysis_loads_nothing_of_capture() -> None:
    unused = brought_in("from sameshot.cli.main import invoke; assert invoke(['analyze', '/nowhere/at/all']) == 5")
    assert unused.isdisjoint({"grpc", "torch", "pandas", "asyncio", "multiprocessing", "rich.console"})


def test_every_command_is_found_both_among_all_and_alone() -> None:
    plugins = {each.name for each in entry_points(group="sameshot.commands")}
    assert command_names([]) == set(COMMANDS) | plugins == command_names(["no such command"])
    for name in COMMANDS:
        alone = command_names([name])
        assert name in alone
        assert alone == {other for other, module in COMMANDS.items() if module == COMMANDS[name]}


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_can_say_what_it_does(name: str) -> None:
    # In a process of its own: imports that one command makes must not hide what another lacks.
    code = f"from sameshot.cli.main import invoke; raise SystemExit(invoke([{name!r}, '--help']))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def test_numpy_starts_no_threads_for_a_command_line_and_the_environment_stays_as_it_was() -> None:
    code = (
        "import os, sys; from sameshot.lean import import_numpy; before = dict(os.environ); import_numpy(); "
        "assert 'numpy' in sys.modules; assert dict(os.environ) == before; "
        "print(len(os.listdir('/proc/self/task')))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True, env=without_threads()).strip() == "1"


def test_a_number_of_threads_that_the_user_has_set_is_kept() -> None:
    code = (
        "import os, sys; from sameshot.lean import import_numpy; import_numpy(); assert 'numpy' not in sys.modules; "
        "print(os.environ['OPENBLAS_NUM_THREADS'])"
    )
    environment = {**without_threads(), "OPENBLAS_NUM_THREADS": "2"}
    assert subprocess.check_output([sys.executable, "-c", code], text=True, env=environment).strip() == "2"


def without_threads() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
