"""From the small result of a step to what KFP keeps of it: parameters, files, their metadata. Pure but for reading."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sameshot_kfp.interface import Value


@dataclass(frozen=True)
class Kept:
    """A file and the metadata that KFP shows beside it."""

    metadata: Mapping[str, Any] = field(default_factory=dict)
    data: bytes = b""


@dataclass(frozen=True)
class Given:
    """All outputs of a component."""

    outputs: Mapping[str, Value]
    files: Mapping[str, Kept] = field(default_factory=dict)


def capture(told: Mapping[str, Any]) -> Given:
    """Of a capture that is good enough, or was skipped as asked for."""
    job = told.get("job") or {}
    uri = told["manifest_uri"] if told["manifest_sha256"] else ""
    about = {
        "capture_id": told["capture_id"],
        "manifest_uri": uri,
        "manifest_sha256": told["manifest_sha256"] or "",
        "outcome": told["outcome"] or "",
        "job": "/".join(str(job[name]) for name in ("namespace", "name") if job.get(name)),
        "attempt": job.get("attempt"),
        "series": told["series"],
        "expected": told["expected"],
        "archived": told["archived"],
        "missing": told["missing"],
        "request_key": told["request_key"],
    }
    return Given(
        outputs={
            "capture_id": told["capture_id"],
            "request_key": told["request_key"],
            "manifest_uri": uri,
            "manifest_sha256": told["manifest_sha256"] or "",
            "outcome": told["outcome"] or "",
            "expected": told["expected"],
            "archived": told["archived"],
            "missing": told["missing"],
            # What becomes of the task after a loop over nothing is not the same in all backends: a skip loops once.
            "shards": list(told["shards"]) or ["0/1"],
            "warning": told["warning"],
            "message": told["message"],
        },
        files={
            "manifest": Kept(_known(about), _read(uri, archive=True) if uri else b"{}\n"),
            "metrics": _metrics(_numbers(told, "expected", "archived", "common_window_ms")),
        },
    )


def analyze_rank(told: Mapping[str, Any]) -> Given:
    return Given({"done": told["shard"], "ranks": told["ranks"], "summaries_uri": told["summaries_uri"]})


def reduce(told: Mapping[str, Any]) -> Given:
    headline = told["headline"]
    texts = ("report_uri", "summary_uri", "history_uri", "outcome", "missing", "trend")
    return Given(
        outputs={
            **{name: told[name] or "" for name in texts},
            "expected": told["expected"],
            "analysed": told["analysed"],
            "findings": list(told["findings"]),
        },
        files={
            "report": Kept({"report_uri": told["report_uri"]}, _read(told["report_uri"])),
            "metrics": _metrics({**_numbers(told, "expected", "analysed"), **_numbers(headline, *headline)}),
        },
    )


def compare(told: Mapping[str, Any]) -> Given:
    uri = told["comparison_uri"]
    texts = ("verdict", "before_capture_id", "before_manifest_uri", "comparison_uri")
    page = _read(uri) if uri else _page(told["message"] or "There is no earlier capture of this series.")
    return Given(
        outputs={**{name: told[name] or "" for name in texts}, "sentences": list(told["sentences"])},
        files={
            "report": Kept(_known({"comparison_uri": uri, "verdict": told["verdict"]}), page),
            "metrics": _metrics(_numbers(told, "slowdown", "threshold", "step_before_ns", "step_after_ns")),
        },
    )


READERS = {"capture": capture, "analyze_rank": analyze_rank, "reduce": reduce, "compare": compare}

_NONE_YET: dict[str, Value] = {"str": "", "int": 0, "list": []}


def nothing(step: str, why: str) -> Given:
    """Of a step that had nothing to do; its page says why."""
    from sameshot_kfp.interface import STEPS

    page = _page(why)
    return Given(
        outputs={each.name: _NONE_YET[each.kind] for each in STEPS[step].outputs},
        files={each.name: Kept(data=page) if each.kind == "HTML" else _metrics({}) for each in STEPS[step].files},
    )


def _known(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if value not in (None, "")}


def _numbers(facts: Mapping[str, Any], *names: str) -> dict[str, float]:
    """What is unknown has no number."""
    found = {name: facts.get(name) for name in names}
    return {name: value for name, value in found.items() if isinstance(value, int | float) and value is not True}


def _metrics(numbers: Mapping[str, float]) -> Kept:
    """KFP shows the metadata; the file says the same, since a task whose output has no file may be cached by no one."""
    return Kept(numbers, json.dumps(numbers).encode())


def _page(text: str) -> bytes:
    return f"<!doctype html><meta charset=utf-8><title>sameshot</title><p>{html.escape(text)}</p>\n".encode()


def _read(uri: str, *, archive: bool = False) -> bytes:
    """One file, with the credential of the place where it is."""
    from sameshot.steps.store import open_results

    folder, _, name = uri.rpartition("/")
    return (open_results(folder or ".", {}) if archive else open_results(folder or ".")).get_sync(name)
