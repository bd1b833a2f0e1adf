"""Names and messages that somebody else wrote reach a terminal as they are, and never as what it obeys."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sameshot.api.views import AgentStatus, CaptureView, WorkersView
from sameshot.cli import capture, jobs, status, tables, telling
from sameshot.cli.main import invoke
from sameshot.cli.progress import follow, print_result
from sameshot.cli.screen import Screen
from sameshot.errors import SameshotError
from sameshot.kube.coordinators import CaptureCoordinator, Condition, Job, Meta, Phase, Spec, Status
from sameshot.model import CaptureState, Failure, FailureReason, Identity, JobRef, Registration, TargetFact, TargetState
from sameshot.model import Worker as Registered
from sameshot.steps import health
from sameshot.steps.health.seen import Seen, SeenAgent, SeenCoordinator, SeenNamespace, SeenPod, Unread

# It wipes the screen in two ways, overwrites its line, makes one of its own and turns letters round; and it is markup
# of which half is never opened.
EVIL = "x\x1b[2J\x9b2J\r\n\u202ey[/x][red]:smile:"
AS_READ = r"x\x1b[2J\x9b2J\x0d\x0a\u202ey[/x][red]:smile:"
JOB = JobRef(EVIL, EVIL, "u")


def targets() -> tuple[TargetFact, ...]:
    return (
        TargetFact(EVIL, Identity(rank=0), TargetState.CONSUMED, note=EVIL),
        TargetFact("1", Identity(rank=1), TargetState.FAILED, failure=Failure(FailureReason.WORKER_EXITED, EVIL)),
    )


VIEW = CaptureView(
    capture_id="c" * 32,
    job=JOB,
    state=CaptureState.CANCELLED,
    request_key=EVIL,
    caller=EVIL,
    note=EVIL,
    withdrawn=EVIL,
    published=True,
    manifest_uri=EVIL,
    targets=targets(),
)
WORKERS = WorkersView(
    job=JOB,
    workers=(Registered(Registration(EVIL, 1, 1, JOB, pod=EVIL, torch_version=EVIL), note=EVIL),),
    agents=(AgentStatus(EVIL, EVIL, detail=EVIL),),
    generation=EVIL,
)


def seen() -> Seen:
    failed = Status(Phase.FAILED, EVIL, conditions=(Condition("Ready", "False", EVIL, EVIL),))
    spec = Spec(Job("batch/v1", EVIL, EVIL, "u"), series=EVIL)
    return Seen(
        pods=(SeenPod(EVIL, EVIL, 900.0, EVIL, "Running", armed=True, job=JobRef("ml", EVIL, "v")),),
        coordinators=(SeenCoordinator(CaptureCoordinator(Meta(EVIL, EVIL), spec, failed), 900.0),),
        namespaces=(SeenNamespace(EVIL, policy_problems=(EVIL,)),),
        agents=(SeenAgent(EVIL, EVIL, False, EVIL),),
        unread=(Unread(EVIL, EVIL),),
    )


class Canned:
    """A coordinator's client that answers with what is in `VIEW` and `WORKERS`."""

    def captures(self) -> list[CaptureView]:
        return [VIEW]

    def cancel(self, capture_id: str | None, request_key: str | None = None) -> CaptureView:
        return VIEW

    def workers(self) -> WorkersView:
        return WORKERS

    def follow(self, capture_id: str | None, request_key: str | None = None) -> Iterator[CaptureView]:
        yield VIEW


@pytest.fixture
def hostile(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster, and a coordinator in it, of which each word is hostile."""
    for module in (capture, jobs):
        monkeypatch.setattr(module, "dial", lambda where: contextlib.nullcontext(Canned()))
    for module in (status, jobs):
        monkeypatch.setattr(module, "api_of", lambda context, kubeconfig: None)
    monkeypatch.setattr(health, "look", lambda api, namespace, **more: seen())
    monkeypatch.setattr(health, "look_at_jobs", lambda api, namespace, labels: seen())


COMMANDS = {
    "status": ["status", "-A"],
    "jobs": ["jobs", "-A"],
    "captures": ["captures"],
    "workers": ["workers"],
    "cancel": ["cancel", "c"],
    "watch": ["watch", "c"],
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS.keys())
def test_no_name_of_a_stranger_steers_a_terminal_or_is_taken_for_markup(
    hostile: None, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    invoke(command)
    told = capsys.readouterr()
    assert [each for each in told.out + told.err if not each.isprintable() and each != "\n"] == []
    assert AS_READ in told.out


@pytest.mark.parametrize("command", ["captures", "workers", "watch c"])
def test_documents_for_scripts_hold_what_was_written_exactly(
    hostile: None, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    invoke([*command.split(), "-o", "json"])
    found = json.loads(capsys.readouterr().out)
    job = found["job"] if isinstance(found, dict) else found[0]["job"]
    assert job["name"] == EVIL


@pytest.mark.parametrize("terminal", [True, False])
def test_the_progress_of_a_capture_does_not_either(terminal: bool) -> None:
    out = io.StringIO()
    screen = Screen(file=out, force_terminal=terminal, width=400, color_system=None)
    follow(iter([VIEW]), screen)
    print_result(VIEW, screen)
    assert "\x1b[2J" not in out.getvalue()
    assert "\x9b" not in out.getvalue()
    assert out.getvalue().count(AS_READ) >= 4  # the job, the target, its note, the other's failure


def _raising(error: Exception) -> Callable[..., Any]:
    def raises(*_: Any, **__: Any) -> Any:
        raise error

    return raises


def test_an_error_shows_them_as_codes_and_no_line_of_it_passes_for_another_message(
    hostile: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Canned, "captures", _raising(SameshotError(f"Pod {EVIL} is away.\nerror: all is well")))
    assert invoke(["captures"]) == 1
    told = capsys.readouterr().err
    assert [each for each in told if not each.isprintable() and each != "\n"] == []
    assert r"x\x1b[2J\x9b2J" in told
    assert [line for line in told.splitlines() if not line.startswith("  ")] == [r"error: Pod x\x1b[2J\x9b2J"]


def test_words_of_several_lines_stay_readable(capsys: pytest.CaptureFixture[str]) -> None:
    telling.say("The agent ended; the end of its log:\nfirst\nsecond")
    assert capsys.readouterr().err == "The agent ended; the end of its log:\n  first\n  second\n"


def test_the_command_line_prints_in_two_places_only() -> None:
    """`main` prints its version, `rights` a document for kubectl."""
    printing = {path.stem for path in Path(tables.__file__).parent.rglob("*.py") if "typer.echo(" in path.read_text()}
    printing |= {path.stem for path in Path(tables.__file__).parent.rglob("*.py") if "secho(" in path.read_text()}
    assert printing == {"tables", "telling", "main", "rights"}
