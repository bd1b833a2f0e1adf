"""`sameshot history`: how long a step takes from capture to capture, and where that changed."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sameshot.cli import telling
from sameshot.cli.options import Output, OutputOption, print_json
from sameshot.cli.tables import console, plain, say, table
from sameshot.errors import UsageError
from sameshot.lean import import_numpy

if TYPE_CHECKING:
    from sameshot.steps.history import HistoryRow
    from sameshot.steps.history.trend import Trend

_MOST_NAMED = 20


def register(app: typer.Typer) -> None:
    app.command(
        epilog="Examples: sameshot history s3://results | sameshot history results --series bert --limit 50 | "
        "sameshot history results --series bert --html bert.html | sameshot history results -o json"
    )(history)


def history(
    results_uri: Annotated[
        str, typer.Argument(help="Where analyses put their results: a path, file:///path or s3://bucket/prefix.")
    ],
    series: Annotated[
        str | None, typer.Option(help="Show this series; without it all series are listed.", show_default=False)
    ] = None,
    namespace: Annotated[str | None, typer.Option(help="Only of this namespace.", show_default=False)] = None,
    limit: Annotated[int, typer.Option(min=1, help="Show so many captures, the latest.")] = 20,
    html: Annotated[
        Path | None,
        typer.Option(help="Also write a page to this file: each series drawn, its trend, its last captures."),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the time per step of a series from capture to capture, and the capture where it changed.

    What lies among the rows and is none is named on standard error, and counts for nothing.
    """
    import_numpy()
    from sameshot.steps.history import read
    from sameshot.steps.history.trend import trend

    found = read(results_uri, namespace, series)
    for warning in found.warnings:
        telling.say(f"note: {warning}", fg="yellow")
    ordered = sorted(found.rows, key=lambda row: (row.namespace, row.series, *row.key))
    groups = [(name, list(rows)) for name, rows in groupby(ordered, key=lambda row: (row.namespace, row.series))]
    if series is not None:
        _one_of(groups, results_uri, series, namespace)
    trends = [trend(rows) for _, rows in groups]
    if html is not None:
        _write(html, groups, results_uri, found.warnings)
    if output is Output.JSON:
        listed = [
            {"namespace": name[0], "series": name[1], "captures": len(rows), "trend": said}
            | ({"last": rows[-1]} if series is None else {"rows": rows[-limit:], "warnings": found.warnings})
            for (name, rows), said in zip(groups, trends, strict=True)
        ]
        print_json(listed if series is None else listed[0])
    elif series is not None:
        _show_rows(groups[0][1], limit, trends[0])
    elif groups:
        _show_series(groups, trends)
    else:
        where = results_uri if namespace is None else f"namespace {namespace} at {results_uri}"
        say(f"There is no history yet in {where}: each analysis with a results_uri adds a row.")
    if html is not None and output is Output.TABLE:
        say(f"page: {html}")


_Groups = list[tuple[tuple[str, str], "list[HistoryRow]"]]


def _one_of(groups: _Groups, results_uri: str, series: str, namespace: str | None) -> None:
    """Raises UsageError unless there is exactly one."""
    if len(groups) == 1:
        return
    if groups:
        names = ", ".join(name for (name, _), _ in groups)
        raise UsageError(f"There is a series {series!r} in several namespaces: {names}. Choose one with --namespace.")
    from sameshot.steps.history import series_of

    known = [each for each in series_of(results_uri) if namespace in (None, each.namespace)]
    within = "" if namespace is None else f" of namespace {namespace}"
    if not known:
        raise UsageError(f"There is no series {series!r}: there is no history{within} at {results_uri}.")
    names = ", ".join(f"{each.series!r} ({each.namespace})" for each in known[:_MOST_NAMED])
    more = f" and {len(known) - _MOST_NAMED} more" if len(known) > _MOST_NAMED else ""
    raise UsageError(f"There is no series {series!r}{within} at {results_uri}. Known are {names}{more}.")


def _show_series(groups: _Groups, trends: list[Trend]) -> None:
    from sameshot.analysis.text import ms
    from sameshot.steps.history.trend import when

    listing = table("namespace", "series", "captures", "last", "step", "trend")
    for ((namespace, series), rows), said in zip(groups, trends, strict=True):
        last = rows[-1]
        step = last.headline.step_time_ns
        listing.add_row(
            plain(namespace), plain(series), str(len(rows)), when(last), "–" if step is None else ms(step), said.brief
        )
    console().print(listing)


def _show_rows(rows: list[HistoryRow], limit: int, said: Trend) -> None:
    from sameshot.analysis.text import count, ms
    from sameshot.steps.history.trend import when

    def time(ns: int | None) -> str:
        return "–" if ns is None else ms(ns)

    listing = table(
        "captured", "capture", "outcome", "ranks", "step", "spread", "waiting", "late", "commit", whole=("capture",)
    )
    broken = said.found
    for row in rows[-limit:]:
        numbers = row.headline
        here = broken is not None and row.capture_id == broken.first.capture_id
        listing.add_row(
            when(row),
            plain(row.capture_id),
            row.outcome.value,
            f"{row.analysed_ranks}/{row.expected_ranks}",
            time(numbers.step_time_ns),
            time(numbers.step_spread_ns),
            time(numbers.waiting_ns),
            plain(numbers.late or "–"),
            plain((row.commit or "–")[:12]),
            style=None if not here else "red" if broken is not None and broken.shift > 0 else "green",
        )
    console().print(listing)
    if len(rows) > limit:
        say(f"{count(len(rows) - limit, 'earlier capture')}; --limit shows more")
    say(said.sentence)
    if broken is not None:
        for what, row in (("last before", broken.previous), ("first after", broken.first)):
            say(f"{what}: {row.report_uri or row.manifest_uri}")


def _write(path: Path, groups: _Groups, results_uri: str, warnings: tuple[str, ...]) -> None:
    from sameshot.analysis.files import replace
    from sameshot.steps.history.section import history_page

    titled = [(rows, f"{namespace}/{series}") for (namespace, series), rows in groups]
    text = history_page(titled, where=results_uri, warnings=warnings)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace(path, text.encode())
