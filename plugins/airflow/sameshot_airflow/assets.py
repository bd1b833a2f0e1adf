"""Captures as Airflow assets: a DAG can be scheduled on a new capture, and is told which manifest it is.

    schedule=[capture_asset("team-a", "nightly")]   captures of one series
    schedule=[captures()]                           any capture

An operator can't know its job's series when its DAG file is parsed, so it declares the alias `captures()` as its
outlet and names the asset of the series when it knows it (`announce`). Airflow keeps events of tasks that succeed. The
DAG that was triggered asks `new_captures` what there is to look at.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, quote

from airflow.sdk import Asset, AssetAlias

if TYPE_CHECKING:
    from sameshot.steps.results import CaptureResult

SCHEME = "sameshot"
ALIAS = "sameshot_captures"


def capture_asset(namespace: str, series: str) -> Asset:
    """The captures of one series of jobs: `sameshot://<namespace>/<series>`, both percent-encoded.

    Jobs of one machine are in the namespace `local`. Raises ValueError where one of the two is empty.
    """
    if not namespace or not series:
        raise ValueError(f"An asset of captures needs a namespace and a series, not {namespace!r} and {series!r}.")
    # Without a name of its own: an asset that someone writes down by its URI is then the same one.
    return Asset(uri=f"{SCHEME}://{quote(namespace, safe='')}/{quote(series, safe='')}")


def captures() -> AssetAlias:
    """Every capture of every series that this Airflow asked for."""
    return AssetAlias(ALIAS)


def announce(context: Mapping[str, Any], result: CaptureResult, outlets: Iterable[object] = ()) -> Asset | None:
    """Say in a running task that there is a new capture; `outlets` are the task's own, `captures()` among them.

    The event's `extra` is `event_extra`; assets that the user added to the task's outlets get the same. None: there is
    nothing to tell, because no manifest was published.
    """
    if result.job is None or result.outcome is None or not (result.published and result.manifest_uri):
        return None
    asset = capture_asset(result.job.namespace, result.series or result.job.name)
    extra = event_extra(result)
    events = context["outlet_events"]
    for outlet in outlets:
        if isinstance(outlet, AssetAlias):
            events[outlet].add(asset, extra=dict(extra))
        elif isinstance(outlet, Asset):
            events[outlet].extra.update(extra)
    return asset


def new_captures(triggering_asset_events: Mapping[Any, Sequence[Any]]) -> list[dict[str, Any]]:
    """In a task of a DAG that is scheduled on captures: what `event_extra` said of each, once, oldest first.

    Airflow lists an event under its asset and again under the alias, and a run can stand for several events.
    """
    found: dict[str, dict[str, Any]] = {}
    for event in sorted((each for events in triggering_asset_events.values() for each in events), key=_when):
        if event.extra and "manifest_uri" in event.extra:
            found.setdefault(event.extra["capture_id"], dict(event.extra))
    return list(found.values())


def _when(event: Any) -> Any:
    return event.timestamp


def event_extra(result: CaptureResult) -> dict[str, Any]:
    """What an event says of its capture (`job` is namespace/name/attempt): JSON, a few hundred bytes, no secrets."""
    job = result.job
    return {
        "capture_id": result.capture_id,
        "manifest_uri": result.manifest_uri,
        "manifest_sha256": result.manifest_sha256,
        "outcome": None if result.outcome is None else result.outcome.value,
        "job": None if job is None else job.path,
        "uid": None if job is None else job.uid,
        "series": result.series,
    }


def sanitize_uri(parts: SplitResult) -> SplitResult:
    """Airflow asks for every `sameshot://` asset in a DAG file: a misspelt one fails there, not silently for ever."""
    segments = parts.path.strip("/").split("/")
    if not parts.netloc or len(segments) != 1 or not segments[0] or parts.query:
        raise ValueError(
            "An asset of captures is sameshot://<namespace>/<series>, both percent-encoded; "
            "sameshot_airflow.assets.capture_asset(namespace, series) writes it."
        )
    return parts
