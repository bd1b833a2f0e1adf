"""Showing captures: a live table of rank × state on a terminal, one line per change elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterable

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sameshot.api.views import CaptureView
from sameshot.cli.tables import plain
from sameshot.cli.telling import say
from sameshot.model import CaptureState, TargetFact, TargetState
from sameshot.steps.verdict import had_targets

_STEPS = [state for state in TargetState if TargetState.PENDING < state < TargetState.FAILED]
_HEADS = ["rank", "target", *(state.name.lower() for state in _STEPS), ""]


def follow(updates: Iterable[CaptureView], console: Console) -> CaptureView | None:
    """Show updates until the capture is terminal; returns the last one."""
    return _follow_live(updates, console) if console.is_terminal else _follow_lines(updates, console)


def _follow_live(updates: Iterable[CaptureView], console: Console) -> CaptureView | None:
    last = None
    with Live(console=console, refresh_per_second=8, transient=False) as live:
        for view in updates:
            last = view
            live.update(_table(view))
    return last


def _follow_lines(updates: Iterable[CaptureView], console: Console) -> CaptureView | None:
    last: CaptureView | None = None
    before: dict[str, str] = {}
    for view in updates:
        if last is None or (last.state, last.note) != (view.state, view.note):
            console.print(plain(_headline(view)), soft_wrap=True)
        for target in view.targets:
            line = f"  {_who(target)}: {target.state.name}{_why(target)}"
            if before.get(target.target_id) != line:
                before[target.target_id] = line
                console.print(plain(line), soft_wrap=True)
        last = view
    return last


def _table(view: CaptureView) -> Table:
    table = Table(title=plain(_headline(view)), title_justify="left", expand=False, pad_edge=False)
    for head in _HEADS:
        table.add_column(head, no_wrap=head != "", justify="right" if head == "rank" else "left")
    for target in view.targets:
        table.add_row(
            "?" if target.identity.rank is None else str(target.identity.rank),
            plain(target.target_id),
            *_marks(target),
            plain(_why(target).lstrip(": "), "red" if target.failure else "dim"),
        )
    return table


def _marks(target: TargetFact) -> list[Text]:
    """A filled mark for what was observed, a cross where it ended."""
    failed = target.failure is not None
    reached = target.failure.last_state if target.failure else target.state
    marks = [Text("●", style="green") if step <= reached else Text("·", style="dim") for step in _STEPS]
    if failed:
        marks[min(reached, len(marks) - 1)] = Text("✗", style="bold red")
    return marks


def _headline(view: CaptureView) -> str:
    waited = ""
    if view.start_at_ns and not view.state.terminal:
        seconds = (view.start_at_ns - time.time_ns()) / 1e9
        if seconds > 0:
            waited = f", the window opens in {seconds:.0f} s"
    return (
        f"capture {view.capture_id[:12]} of {view.job.name}: {view.state.value}, {view.archived} of "
        f"{view.expected} archived" + (f", {view.failed} failed" if view.failed else "") + waited + _note(view)
    )


def _note(view: CaptureView) -> str:
    return f" ({view.note})" if view.note else ""


def _who(target: TargetFact) -> str:
    rank = target.identity.rank
    return f"rank {'?' if rank is None else rank} ({target.target_id})"


def _why(target: TargetFact) -> str:
    if target.failure:
        return f": {target.failure.reason.value}: {target.failure.detail}"
    late = "late start" if target.late_start else ""
    return ": " + ", ".join(filter(None, [target.note, late])) if target.note or late else ""


def print_result(view: CaptureView, console: Console) -> None:
    """What a finished capture left, and what to do with it."""
    if view.published and view.archived:
        console.print(plain(f"manifest: {view.manifest_uri}"), soft_wrap=True)
        if view.common_window_ns is not None:
            share = view.common_window_ns / 1e6 / view.spec.duration_ms
            console.print(plain(f"window common to all ranks: {view.common_window_ns / 1e6:.0f} ms ({share:.0%})"))
        console.print(plain(f"next: sameshot analyze {view.manifest_uri} --out report"), soft_wrap=True)
    elif view.published:
        console.print(plain(f"the record of this capture: {view.manifest_uri}"), soft_wrap=True)
    elif view.state is CaptureState.UNKNOWN:
        say(f"capture {view.capture_id} is not known to this coordinator nor to the archive")
    elif view.state.terminal and not had_targets(view):
        if view.note:
            say(f"nothing was captured: {view.note}", fg="yellow")
    elif view.state.terminal:
        say(
            f"the manifest could not be published yet: {view.note or 'no agent answers'}; the coordinator keeps "
            f"trying, ask again with: sameshot watch {view.capture_id}",
            fg="yellow",
        )
    if view.withdrawn:
        console.print(plain(f"cancelled: {view.withdrawn}"), soft_wrap=True)
