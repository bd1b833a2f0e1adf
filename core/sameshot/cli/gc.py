"""`sameshot gc`: remove old captures from an archive."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Annotated

import typer

from sameshot.cli.bars import bar
from sameshot.cli.options import Output, OutputOption, print_json
from sameshot.cli.tables import say
from sameshot.cli.telling import say as warn
from sameshot.errors import UsageError

if TYPE_CHECKING:
    from sameshot.gc.sweep import Report

_AGE = re.compile(r"(\d{1,6})([hdw])")
_UNIT_S = {"h": 3_600.0, "d": 86_400.0, "w": 604_800.0}
_MOST_NAMED = 20


def register(app: typer.Typer) -> None:
    app.command(
        name="gc",
        epilog="Examples: sameshot gc s3://traces/prod --older-than 30d --keep 10 --dry-run | "
        "sameshot gc /archive --keep 3 --namespace ml -o json",
    )(gc)


def gc(
    archive: Annotated[str, typer.Argument(help="A folder, or s3://bucket/prefix; the credential must allow deletes.")],
    older_than: Annotated[
        str | None,
        typer.Option(help="None younger goes, by when it ended: 30d, 4w, 36h; at least 1d.", show_default=False),
    ] = None,
    keep: Annotated[
        int | None,
        typer.Option(help="The newest so many with traces stay, of each series, however old.", show_default=False),
    ] = None,
    namespace: Annotated[str | None, typer.Option(help="Only captures of this namespace.", show_default=False)] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go, and touch nothing.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Remove captures that are old enough from an archive, and what captures that were lost left there.

    With both --older-than and --keep a capture goes only when both let it. None of the last day goes, files without a
    manifest only after a week, and nothing that is not called as a capture's file is. Results of analyses are not
    touched. Exit code 75 where the store failed, 1 where a manifest can't be understood; all else was done.
    """
    import asyncio

    from sameshot.gc.choose import Rule
    from sameshot.gc.sweep import sweep
    from sameshot.model import check_name
    from sameshot.storage import Storage

    rule = Rule(older_than_s=None if older_than is None else _age(older_than), keep=keep)
    where = None if namespace is None else check_name(namespace, "Namespace")
    with bar("gc") as advance:
        report = asyncio.run(
            sweep(
                Storage.open(archive),
                rule,
                now_s=time.time(),
                namespace=where,
                dry_run=dry_run,
                tell=advance,
            )
        )
    if output is Output.JSON:
        print_json(report)
    else:
        _show(report)
    raise typer.Exit(75 if report.troubles else 1 if report.unreadable else 0)


def _age(text: str) -> float:
    if (match := _AGE.fullmatch(text.strip())) is None:
        raise UsageError(f"{text!r} is no age; write for example 30d, 4w or 36h.")
    return int(match[1]) * _UNIT_S[match[2]]


def _show(report: Report) -> None:
    for each in report.removed[:_MOST_NAMED]:
        series = "no manifest" if each.series is None else f"series {each.series}"
        say(f"{each.namespace}/{each.job}/{each.attempt}/{each.capture_id}  {series}, {_mb(each.size)}")
    if len(report.removed) > _MOST_NAMED:
        say(f"… and {len(report.removed) - _MOST_NAMED} more")
    verb = "would be removed" if report.dry_run else "removed"
    say(f"{len(report.removed)} captures {verb} ({_mb(report.size)}); {_kept(report)}")
    if report.uploads:
        say(f"{report.uploads} uploads that never ended were aborted")
    elif report.uploads is None and not report.dry_run:
        say(
            "Uploads that never ended were not looked for: that needs boto3 (sameshot[gc]), or a lifecycle rule of the "
            "bucket (AbortIncompleteMultipartUpload)."
        )
    for trouble in (*report.troubles, *report.unreadable)[:_MOST_NAMED]:
        warn(f"warning: {trouble}", fg="yellow")


def _kept(report: Report) -> str:
    words = [f"{count} {why.value}" for why, count in report.kept.items()]
    foreign = f"; {report.foreign} objects there are not of captures" if report.foreign else ""
    return f"{sum(report.kept.values())} stay{'' if not words else ' (' + ', '.join(words) + ')'}{foreign}"


def _mb(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
