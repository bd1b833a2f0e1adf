"""`sameshot arm`: make a workload's file capturable, before it is applied."""

from __future__ import annotations

import difflib
import sys
from pathlib import Path
from typing import Annotated

import typer

from sameshot.cli.telling import say
from sameshot.errors import UsageError

EXAMPLES = (
    "Examples: `sameshot arm -f job.yaml | kubectl apply -f -`;"
    " `sameshot arm -f job.yaml --diff`;"
    " `kubectl get jobset bert -o yaml | sameshot arm -f - --disarm`;"
    " `sameshot arm -f run.yaml --template-path 'spec.workers[*].template'`;"
    " `sameshot arm --hook-only --namespace team-a | kubectl apply -f -`"
)


def register(app: typer.Typer) -> None:
    app.command("arm", epilog=EXAMPLES)(arm)


def arm(
    file: Annotated[
        str | None,
        typer.Option(
            "--file", "-f", help="YAML or JSON with any number of objects; - is standard input.", show_default=False
        ),
    ] = None,
    disarm: Annotated[bool, typer.Option("--disarm", help="Take out what arming added, and nothing else.")] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Print what would change, as a unified diff.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    container: Annotated[
        str | None,
        typer.Option(
            help="The container that trains; default: the one that asks for an accelerator, else the first.",
            show_default=False,
        ),
    ] = None,
    local_world_size: Annotated[
        str | None,
        typer.Option(
            help="Workers in each pod, or auto; default: what the command and the kind tell.", show_default=False
        ),
    ] = None,
    single: Annotated[bool, typer.Option("--single", help="One process without a launcher.")] = False,
    arm_spawned: Annotated[
        bool, typer.Option("--arm-spawned", help="The script starts its ranks itself with mp.spawn.")
    ] = False,
    pythonpath: Annotated[
        str | None,
        typer.Option(
            help="Set PYTHONPATH instead of wrapping the command (the pod has no `command`, the image no sh); say "
            "what the image's own is, '' for none.",
            show_default=False,
        ),
    ] = None,
    template_path: Annotated[
        list[str] | None,
        typer.Option(
            help="Where a kind that isn't known has its pod templates, such as spec.workers[*].template; repeatable.",
            show_default=False,
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this workload, NAME or KIND/NAME; repeatable. Default: those that ask for an accelerator, "
            "where any does, else all.",
            show_default=False,
        ),
    ] = None,
    namespace: Annotated[
        str | None,
        typer.Option(
            "--namespace", "-n", help="Of objects that name none: where the hook's ConfigMap goes.", show_default=False
        ),
    ] = None,
    hook: Annotated[bool, typer.Option("--hook/--no-hook", help="Put the hook's ConfigMap in front.")] = True,
    hook_only: Annotated[
        bool, typer.Option("--hook-only", help="Print the hook's ConfigMap and nothing else.")
    ] = False,
) -> None:
    """Patch the pod templates in a file so that the job can be captured while it runs; the result goes to standard
    output, with every comment in its place. The model's source and its image are not touched."""
    from sameshot.arm.documents import written
    from sameshot.arm.files import arm_text, disarm_text
    from sameshot.arm.hookmap import hook_configmap
    from sameshot.arm.options import workers_of
    from sameshot.arm.values import ArmOptions

    if hook_only:
        if file is not None or disarm:
            raise UsageError("--hook-only takes no file: it prints the hook's ConfigMap.")
        _write(written([hook_configmap(namespace)]))
        return
    if file is None:
        raise UsageError("Say which file with -f FILE; -f - reads standard input.")
    before = _read(file)
    if disarm:
        done = disarm_text(before, template_paths=template_path or (), only=only or ())
        did = f"{_count(done.templates)} disarmed" if done.templates else "nothing in it is armed"
    else:
        options = ArmOptions(
            container=container,
            local_world_size=None if local_world_size is None else workers_of(local_world_size, "--local-world-size"),
            single=single or None,
            arm_spawned=arm_spawned or None,
            pythonpath=pythonpath,
        )
        done = arm_text(
            before, options, template_paths=template_path or (), only=only or (), namespace=namespace, hook=hook
        )
        did = f"{_count(done.templates)} armed"
        if before == done.text:
            did += ", as before: nothing changes"
        elif done.hooks:
            where = ", ".join(each or "the current namespace" for each in done.hooks)
            did += f"; the hook's ConfigMap for {where} is in front"
    for each in done.told:
        say(f"sameshot: {each.where}: {each.text}", fg="yellow")
    if dry_run or sys.stderr.isatty():
        say(f"sameshot: {did}", fg="cyan")
    if diff:
        _write("".join(_difference(before, done.text, "standard input" if file == "-" else file)))
    elif not dry_run:
        _write(done.text)


def _count(templates: int) -> str:
    return "1 pod template" if templates == 1 else f"{templates} pod templates"


def _read(file: str) -> str:
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return data.decode("utf-8")
    except OSError as error:
        raise UsageError(f"{file} can't be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise UsageError(f"{'Standard input' if file == '-' else file} is not UTF-8 text.") from None


def _write(text: str) -> None:
    """Line ends as they are."""
    sys.stdout.buffer.write(text.encode())
    sys.stdout.buffer.flush()


def _difference(before: str, after: str, name: str) -> list[str]:
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), name, f"{name} (changed)"
    )
    return [line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines]
