"""The small results of steps: what travels between tasks of an engine, each far below 2 KB as JSON.

Large things (summaries, reports, traces) stay where they are; a result names them by URI. Lists that grow with the job
are text of bounded length (`0-2, 7`), and texts are cut at a stated length: the whole stands in the files.

`exit_code` is that of DESIGN's table (0: the step is content with what it got), `message` says the same in words.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable
from typing import TypeVar

import msgspec

from sameshot.model import JobRef, Outcome

TEXT_LIMIT = 240  # characters of any one text in a result
SIZE_LIMIT = 2000  # bytes of a whole result as JSON, even where an engine escapes all that is not ASCII


class CaptureResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a capture ended, and whether that is enough for whoever asked.

    `outcome` None: it has not ended, as far as can be told, or none was started (`capture_id` is empty then: the step
    was skipped, and `message` says why). `manifest_sha256` is set only when the manifest was read. `shards` is what
    `analyze_rank` is to be mapped over; empty when there is nothing to analyse.
    """

    schema: str = "sameshot.dev/step/capture/v1"
    capture_id: str = ""
    request_key: str = ""
    n: int = 0
    job: JobRef | None = None
    series: str = ""
    outcome: Outcome | None = None
    published: bool = False
    manifest_uri: str = ""
    manifest_sha256: str | None = None
    expected: int = 0
    archived: int = 0
    missing: str = ""  # ranks, or targets where no rank is known
    window_ms: int = 0  # asked for
    common_window_ms: int | None = None
    withdrawn: str = ""  # what a cancel really did
    timed_out: bool = False  # the step's time was over, so the capture was cancelled
    shards: tuple[str, ...] = ()
    exit_code: int = 0
    message: str = ""
    warning: str = ""

    @property
    def skipped(self) -> bool:
        return not self.capture_id and self.exit_code == 0


class RankResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One shard of a capture's ranks was summarised; `summaries_uri` is the folder with one file per target."""

    schema: str = "sameshot.dev/step/analyze-rank/v1"
    capture_id: str
    manifest_uri: str
    manifest_sha256: str
    shard: str
    ranks: str
    summaries_uri: str
    exit_code: int = 0
    message: str = ""


class Headline(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers that one looks at first; None is unknown or not applicable, never zero.

    Times in ns per step, shares 0 to 1 of the analysed time. Also the numeric columns of the history.
    """

    step_time_ns: int | None = None  # median over all steps of all ranks
    step_spread_ns: int | None = None  # 90th minus 10th percentile
    steps: int = 0
    gpu_busy_share: float | None = None
    communication_exposed_share: float | None = None  # of device time: communication with nothing beside it
    data_wait_share: float | None = None
    host_bound_share: float | None = None
    waiting_ns: int | None = None  # for late ranks at matched collectives, per step and rank
    late: str = ""  # the ranks that hold others up, `2` or `0, 5`; empty: nobody was named
    lateness: str = "unknown"  # a `Verdict` of the analysis


class AnalysisResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A capture was analysed; `findings` are the first few sentences of the report."""

    schema: str = "sameshot.dev/step/reduce/v1"
    capture_id: str
    job: JobRef
    series: str = ""
    manifest_uri: str
    manifest_sha256: str
    outcome: Outcome
    expected: int
    analysed: int
    missing: str = ""
    report_uri: str = ""
    summary_uri: str = ""
    history_uri: str = ""  # the row that was appended; empty: no history is kept
    headline: Headline = Headline()
    trend: str = ""  # what the history says of this series, in a sentence
    findings: tuple[str, ...] = ()
    exit_code: int = 0
    message: str = ""


class CompareVerdict(enum.StrEnum):
    """Of a comparison with a threshold on the time per step."""

    REGRESSED = "regressed"  # slower by more than noise and more than the threshold
    SLOWER = "slower"  # by more than noise, within the threshold
    SAME = "same"  # no more than noise
    FASTER = "faster"
    UNKNOWN = "unknown"  # no steps, too few samples to say what is noise, or no earlier capture is comparable
    FIRST = "first"  # there is no earlier capture of the series


class CompareResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A capture against an earlier one of its series."""

    schema: str = "sameshot.dev/step/compare/v1"
    series: str = ""
    before_capture_id: str = ""
    before_manifest_uri: str = ""
    after_capture_id: str
    after_manifest_uri: str
    verdict: CompareVerdict
    threshold: float  # share of the earlier step time
    slowdown: float | None = None  # the change as a share of the earlier step time
    step_before_ns: int | None = None
    step_after_ns: int | None = None
    comparison_uri: str = ""
    sentences: tuple[str, ...] = ()
    exit_code: int = 0
    message: str = ""


class CancelResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a cancel found and did: `state` is the capture's, `withdrawn` says which kind of cancel it was.

    `was_over`: the capture had converged before, so nothing was cancelled.
    """

    schema: str = "sameshot.dev/step/cancel/v1"
    capture_id: str
    state: str
    withdrawn: str = ""
    was_over: bool = False
    archived: int = 0
    exit_code: int = 0
    message: str = ""


Result = TypeVar("Result", CaptureResult, RankResult, AnalysisResult, CompareResult, CancelResult)


def to_json(result: object) -> bytes:
    return msgspec.json.encode(result)


def to_builtins(result: object) -> dict[str, object]:
    """Plain dicts, lists and numbers: what engines serialise."""
    plain = msgspec.json.decode(to_json(result))  # `msgspec.to_builtins` would leave tuples, which not all engines take
    assert isinstance(plain, dict)
    return plain


def from_builtins(data: object, kind: type[Result]) -> Result:
    """The inverse of `to_builtins`; fields of newer versions are ignored."""
    return msgspec.convert(data, kind)


def shortened(text: str, limit: int = TEXT_LIMIT) -> str:
    """At most `limit` characters; that something was cut shows."""
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"


def fitted(result: Result) -> Result:
    """The same, small enough to travel: sentences are left out from the last on, then texts for people are cut shorter.

    Addresses and ids are never touched: with a namespace of 32 letters, a job and series of 63 and results at an
    address of 64 there is room; with longer ones a result may become larger than the limit.
    """
    lists = [name for name in ("findings", "sentences") if getattr(result, name, ())]
    texts = [name for name in ("warning", "trend", "missing", "ranks", "message") if getattr(result, name, "")]
    while _size(result) > SIZE_LIMIT and any(len(getattr(result, name)) > 1 for name in lists):
        shorter = {name: getattr(result, name)[:-1] for name in lists if len(getattr(result, name)) > 1}
        result = msgspec.structs.replace(result, **shorter)
    for limit in (160, 80, 40, 20):
        if _size(result) <= SIZE_LIMIT:
            return result
        cut: dict[str, object] = {name: shortened(getattr(result, name), limit) for name in texts}
        cut |= {name: tuple(shortened(each, limit) for each in getattr(result, name)) for name in lists}
        if isinstance(result, AnalysisResult):
            cut["headline"] = msgspec.structs.replace(result.headline, late=shortened(result.headline.late, limit))
        result = msgspec.structs.replace(result, **cut)
    if _size(result) <= SIZE_LIMIT:
        return result
    without: dict[str, object] = {**dict.fromkeys(lists, ()), **({"trend": ""} if "trend" in texts else {})}
    return msgspec.structs.replace(result, **without)


def _size(result: object) -> int:
    return len(json.dumps(msgspec.to_builtins(result)))


def ranges(numbers: Iterable[int], limit: int = TEXT_LIMIT) -> str:
    """`0-2, 7`: sorted numbers as text of bounded length."""
    pieces: list[list[int]] = []
    for number in sorted(set(numbers)):
        if pieces and number == pieces[-1][1] + 1:
            pieces[-1][1] = number
        else:
            pieces.append([number, number])
    return shortened(", ".join(str(low) if low == high else f"{low}-{high}" for low, high in pieces), limit)
