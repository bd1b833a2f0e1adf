"""`capture`, `watch`, `cancel` and `captures`."""

from __future__ import annotations

import contextlib
import enum
from typing import TYPE_CHECKING, Annotated

import typer

from sameshot.cli import tables
from sameshot.cli.options import CaptureArgument, KeyOption, Output, OutputOption, print_json
from sameshot.cli.tables import console, table
from sameshot.cli.telling import program, say
from sameshot.cli.where import Where, at_job, dial
from sameshot.errors import SameshotError, UsageError

if TYPE_CHECKING:  # the client brings grpc and asyncio: whoever only asks for help does not pay for it
    from sameshot.api.views import CaptureView
    from sameshot.client import Client

# After Ctrl-C a cancelled capture gets this long to say what it kept.
CANCEL_WAIT_S = 10.0


class OnFailed(enum.StrEnum):
    NEW = "NEW"
    RETURN = "RETURN"


def register(app: typer.Typer) -> None:
    app.command(
        epilog="Examples: sameshot capture --duration 2s --activities cpu,cuda --wait | "
        "sameshot capture --with-stack --record-shapes --wait -o json | sameshot capture --key nightly-7 --wait | in a "
        "cluster: sameshot capture --namespace ml --job llama-7b --duration 2s --wait"
    )(at_job(capture))
    app.command(epilog="Example: sameshot watch 0197f3a2c4d17e0a8b54d6f1c2a3b4c5")(at_job(watch))
    app.command(epilog="Example: sameshot cancel 0197f3a2c4d17e0a8b54d6f1c2a3b4c5")(at_job(cancel))
    app.command(epilog="Example: sameshot captures -o json")(at_job(captures))


def capture(
    where: Where,
    duration: Annotated[str, typer.Option(help="Length of the window: 2s, 500ms.")] = "2s",
    activities: Annotated[str, typer.Option(help="Comma-separated: cpu, cuda, xpu, mtia.")] = "cpu,cuda",
    with_stack: Annotated[bool, typer.Option("--with-stack", help="Record Python functions (large traces).")] = False,
    record_shapes: Annotated[bool, typer.Option("--record-shapes", help="Record operator input shapes.")] = False,
    warmup: Annotated[str, typer.Option(help="Profiler warm-up before the window, whole seconds.")] = "1s",
    start_in: Annotated[
        str | None, typer.Option(help="Open the window this long from now; default: as soon as all can.")
    ] = None,
    key: KeyOption = None,
    on_failed: Annotated[
        OnFailed, typer.Option(case_sensitive=False, help="What a known key of a failed capture gives.")
    ] = OnFailed.NEW,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Show progress until the manifest is there.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Record a window on every rank of a running job, now. With --wait, Ctrl-C cancels it."""
    from sameshot.cli.progress import print_result
    from sameshot.steps.options import capture_spec
    from sameshot.steps.verdict import exit_code

    spec = capture_spec(
        duration=duration,
        activities=activities,
        with_stack=with_stack,
        record_shapes=record_shapes,
        warmup=warmup,
        start_in=start_in,
    )
    with dial(where) as client:
        view = client.start_capture(spec, request_key=key, on_failed="NEW" if on_failed is OnFailed.NEW else "RETURN")
        if wait:
            view = _wait_or_cancel(client, view, output, where)
        elif output is Output.TABLE:
            tables.say(f"capture {view.capture_id} is {view.state.value}; see: {_watch(where, view.capture_id)}")
    if output is Output.JSON:
        print_json(view)
    elif wait:
        print_result(view, console())
    raise typer.Exit(exit_code(view) if wait else 0)


def watch(
    where: Where,
    capture_id: CaptureArgument = None,
    key: KeyOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Follow a capture until it has ended. Ctrl-C stops watching; the capture goes on."""
    from sameshot.cli.progress import follow, print_result
    from sameshot.steps.verdict import exit_code

    with dial(where) as client:
        _one_of(capture_id, key)
        updates = client.follow(capture_id, request_key=key)
        if output is Output.JSON:
            last = None
            for last in updates:
                print_json(last)
            view = _last(last)
        else:
            view = _last(follow(updates, console()))
            print_result(view, console())
    raise typer.Exit(exit_code(view))


def cancel(
    where: Where,
    capture_id: CaptureArgument = None,
    key: KeyOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Cancel a capture: what no worker has fetched is withdrawn, what was archived stays."""
    with dial(where) as client:
        _one_of(capture_id, key)
        view = client.cancel(capture_id, request_key=key)
        if not view.state.terminal:  # it has converged, and its manifest is on the way
            with contextlib.suppress(SameshotError):
                view = client.wait(view.capture_id, timeout_s=CANCEL_WAIT_S)
    if output is Output.JSON:
        print_json(view)
    else:
        tables.say(
            f"capture {view.capture_id} is {view.state.value}" + (f": {view.withdrawn}" if view.withdrawn else "")
        )


def captures(where: Where, output: OutputOption = Output.TABLE) -> None:
    """List the captures of a running job, newest first."""
    with dial(where) as client:
        found = client.captures()
    if output is Output.JSON:
        print_json(found)
        return
    listing = table("capture", "state", "ranks", "window", "key", "manifest", whole=("capture", "state"))
    for view in found:
        listing.add_row(
            view.capture_id,
            view.state.value,
            f"{view.archived}/{view.expected}",
            f"{view.spec.duration_ms} ms",
            view.request_key,
            view.manifest_uri if view.published else "",
        )
    console().print(listing)


def _one_of(capture_id: str | None, key: str | None) -> None:
    if (capture_id is None) == (key is None):
        raise UsageError("Name the capture by its id or by --key, and not by both.")


def _wait_or_cancel(client: Client, view: CaptureView, output: Output, where: Where) -> CaptureView:
    from sameshot.cli.progress import follow

    try:
        return _last(follow(client.follow(view.capture_id), console(quiet=output is Output.JSON)))
    except KeyboardInterrupt:
        say("")  # after the terminal's ^C
        say("cancelling…", fg="yellow")
        say(_cancelled(client, view.capture_id, where), fg="yellow")
        raise


def _cancelled(client: Client, capture_id: str, where: Where) -> str:
    """Cancel, and say what that is known to have done."""
    try:
        view = client.cancel(capture_id)
        if not view.state.terminal:
            view = client.wait(capture_id, timeout_s=CANCEL_WAIT_S)
    except (KeyboardInterrupt, SameshotError) as error:
        why = str(error) or "interrupted again"
        return f"the cancel of capture {capture_id} is not confirmed ({why}); see: {_watch(where, capture_id)}"
    place = view.manifest_uri if view.published else "their manifest is not published yet"
    kept = f"{view.archived} traces are kept, {place}" if view.archived else "no trace was kept"
    return f"capture {capture_id} is {view.state.value}; {kept}"


def _watch(where: Where, capture_id: str) -> str:
    return f"{program()} watch {capture_id}{where.again}"


def _last(view: CaptureView | None) -> CaptureView:
    if view is None:
        raise SameshotError("The coordinator closed the stream without an answer; ask again with `sameshot watch`.")
    return view
