"""`sameshot manifest`: make one over traces that came from elsewhere, and read everything that one names again."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sameshot.cli.bars import bar
from sameshot.cli.options import Output, OutputOption, WorkersOption, print_json
from sameshot.cli.tables import say
from sameshot.errors import UsageError
from sameshot.model import Outcome

if TYPE_CHECKING:
    from sameshot.manifest import Manifest, Target
    from sameshot.trace.imported import Import, Imported

_EXIT = {Outcome.SUCCEEDED: 0, Outcome.PARTIAL: 3}
_MOST_NAMED = 20  # broken files, each on a line of its own


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        help="The receipt of a capture: make one over traces from elsewhere, check one.", no_args_is_help=True
    )
    group.command(
        epilog="Examples: sameshot manifest create --out cap 0=a.json 1=b.json.gz | "
        "sameshot manifest create --out cap --pattern 'rank{rank}.json.gz' traces/ --world-size 8 | "
        "then: sameshot analyze cap --out report"
    )(create)
    group.command(epilog="Example: sameshot manifest verify demo-out/archive/local/demo/0/<capture id>/manifest.json")(
        verify
    )
    app.add_typer(group, name="manifest")


def create(
    files: Annotated[
        list[str], typer.Argument(help="RANK=FILE for each rank; with --pattern, the one folder.", metavar="RANK=FILE…")
    ],
    out: Annotated[Path, typer.Option(help="The new capture folder; it must not exist, or be empty.")],
    pattern: Annotated[
        str | None,
        typer.Option(
            help="Names of the files in that folder, {rank} where the rank stands, * for anything else.",
            show_default=False,
        ),
    ] = None,
    world_size: Annotated[
        int | None,
        typer.Option(help="Ranks of the job; default: what the traces state, else unknown.", show_default=False),
    ] = None,
    job: Annotated[str, typer.Option(help="Name of the job.")] = "imported",
    namespace: Annotated[str, typer.Option(help="Namespace of the job.")] = "local",
    series: Annotated[
        str | None, typer.Option(help="What makes runs comparable over time.", show_default=False)
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(help="RANKS=NAME where traces don't state their host: 3=a or 0-7=a.", show_default=False),
    ] = None,
    node: Annotated[
        list[str] | None, typer.Option(help="RANKS=NAME of the node: 3=a or 0-7=a.", show_default=False)
    ] = None,
    columns: Annotated[
        bool, typer.Option("--columns/--no-columns", help="Keep the events as Parquet, too: analysis is faster then.")
    ] = True,
    workers: WorkersOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Verify traces of torch.profiler (plain, gzip or zstd) and make a capture of them that can be analysed.

    A rank is never guessed: each file is named with it, or --pattern says where in the name it stands. Exit code 3
    when a rank is missing or its file is broken (the report and the manifest say which), 4 when there is no sound file.
    """
    from sameshot.client.wire import os_user
    from sameshot.trace.imported import Import, files_by_pattern

    request = Import(
        files=_files(files) if pattern is None else files_by_pattern(pattern, _folder(files)),
        out=out,
        world_size=world_size,
        namespace=namespace,
        job=job,
        series=series,
        hosts=_names(host or [], "host"),
        nodes=_names(node or [], "node"),
        caller=os_user(),
        columns=columns,
    )
    imported = _import(request, workers)
    manifest = imported.manifest
    if output is Output.JSON:
        print_json(
            {
                "uri": imported.path.absolute().as_uri(),
                "manifest": str(imported.path),
                "capture_id": manifest.capture.capture_id,
                "outcome": manifest.capture.outcome,
                "world_size": manifest.capture.world_size,
                "totals": manifest.totals,
                "without_columns": {str(rank): why for rank, why in imported.trouble.items()},
            }
        )
    else:
        _show(imported)
    raise typer.Exit(_EXIT.get(manifest.capture.outcome, 4))


def _import(request: Import, workers: int | None) -> Imported:
    from sameshot.trace.imported import import_traces

    with bar("verifying") as advance:

        def show(done: int, of: int, target: Target) -> None:
            problem = "" if target.failure is None else f" {target.failure.reason.value}"
            advance(done, of, f"rank {target.identity.rank}{problem}")

        return import_traces(request, workers=workers, progress=show)


def _show(imported: Imported) -> None:
    manifest = imported.manifest
    broken = [target for target in manifest.targets if target.failure is not None and target.failure.raw is not None]
    for target in broken[:_MOST_NAMED]:
        assert target.failure is not None
        assert target.failure.raw is not None
        say(
            f"rank {target.identity.rank}: {target.failure.reason.value}, {target.failure.detail} "
            f"(kept as {target.failure.raw.uri})"
        )
    if len(broken) > _MOST_NAMED:
        say(f"… and {len(broken) - _MOST_NAMED} more broken files; the manifest names them all")
    for rank, why in imported.trouble.items():
        say(f"rank {rank}: verified and stored, but without columns: {why}")
    if absent := _absent(manifest):
        say(f"no file was given for {'rank' if len(absent) == 1 else 'ranks'} {ranges(absent)}")
    capture, totals = manifest.capture, manifest.totals
    if capture.world_size is None:
        say(
            f"{totals.archived} of {totals.expected} given files are sound; no trace says how many ranks the job has: "
            "--world-size N would name missing ones"
        )
    else:
        say(f"{totals.archived} of {capture.world_size} ranks are there, {capture.outcome.value}")
    say(f"manifest: {imported.path}")
    if totals.archived:
        say(f"next: sameshot analyze {shlex.quote(str(imported.path.parent))} --out report")


def _absent(manifest: Manifest) -> list[int]:
    return [
        target.identity.rank
        for target in manifest.targets
        if target.failure is not None and target.failure.raw is None and target.identity.rank is not None
    ]


def ranges(ranks: Iterable[int]) -> str:
    """`0, 2-5, 9`, of ascending ranks."""
    found: list[list[int]] = []
    for rank in ranks:
        if found and found[-1][1] == rank - 1:
            found[-1][1] = rank
        else:
            found.append([rank, rank])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


def _files(items: list[str]) -> dict[int, Path]:
    found: dict[int, Path] = {}
    for item in items:
        rank, equals, path = item.partition("=")
        if not equals or not path or not _is_rank(rank):
            raise UsageError(
                f"{item!r} is not of the form RANK=FILE, as in 0={item or 'a.json'}; a rank is never guessed from "
                "a name. --pattern 'rank{rank}.json' FOLDER says where in the names it stands."
            )
        if int(rank) in found:
            raise UsageError(f"Two files were given for rank {int(rank)}: {found[int(rank)]} and {path}.")
        found[int(rank)] = Path(path)
    return found


def _folder(items: list[str]) -> Path:
    if len(items) != 1:
        raise UsageError(f"With --pattern there is exactly one folder, {len(items)} were given: {', '.join(items)}.")
    return Path(items[0])


def _names(items: list[str], what: str) -> dict[int, str]:
    """RANKS=NAME options, RANKS being `3` or `0-7`."""
    found: dict[int, str] = {}
    for item in items:
        ranks, equals, name = item.partition("=")
        first, _, last = ranks.partition("-")
        last = last or first
        if not equals or not name or not _is_rank(first) or not _is_rank(last) or int(last) < int(first):
            raise UsageError(f"The {what} {item!r} is not of the form RANK=NAME or FIRST-LAST=NAME.")
        for rank in range(int(first), int(last) + 1):
            if found.setdefault(rank, name) != name:
                raise UsageError(f"Two {what}s were given for rank {rank}: {found[rank]} and {name}.")
    return found


def _is_rank(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 6


def verify(
    manifest: Annotated[str, typer.Argument(help="Path or URI of a manifest, or of the folder that holds it.")],
    output: OutputOption = Output.TABLE,
) -> None:
    """Check size, digests and identity of every file. Exit code 4 when anything differs."""
    from sameshot.trace.capture_check import inspect_capture, locate

    storage, key = locate(manifest)
    report = inspect_capture(storage, key)
    if output is Output.JSON:
        print_json({"uri": report.uri, "ok": not report.failed, "targets": report.targets})
    else:
        for target in report.targets:
            rank = "?" if target.rank is None else target.rank
            problems = "; ".join(target.problems)
            say(f"rank {rank} ({target.target_id}): " + (problems or f"ok, {target.files} files, {target.size} bytes"))
        bad = len(report.failed)
        say(f"{len(report.targets)} targets, {bad} with problems" if bad else "all files are as stated")
    raise typer.Exit(4 if report.failed else 0)
