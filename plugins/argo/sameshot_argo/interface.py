"""What each template takes and gives: one table, from which all templates and the functions of `tasks` are made.

An input's name is the step's option with `_`, an output's the field of the step's result: so docs/steps.md explains
both. Argo's parameters are texts; an empty one is an option that is not given.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Input:
    """`default` None: it must be given. `option` is how the step's command line has it, `{}` the value; empty: it is
    no option."""

    name: str
    about: str
    default: str | None = None
    option: str = ""


@dataclass(frozen=True)
class Output:
    """`default` is the value where the step left none: it was killed, or its pod never ran."""

    name: str
    default: str = ""


@dataclass(frozen=True)
class File:
    """A page or document that the step leaves beside its result."""

    name: str
    file: str


@dataclass(frozen=True)
class Step:
    name: str  # of the template
    command: str  # of `sameshot step`
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    files: tuple[File, ...] = ()


def _option(name: str, about: str, default: str | None = "", option: str = "") -> Input:
    return Input(name, about, default, option or f"--{name.replace('_', '-')}={{}}")


ENDED = (Output("exit_code"), Output("error"), Output("message"))
"""How the step ended: fields of every result."""

ADDRESS = _option("address", "The job's coordinator: kube:<namespace>/<job>, or host:port.", None)
KEY = Input("key", "Tells the captures of one workflow apart; in a loop the loop's item.")  # see pods.REQUEST_KEY
CALLER = _option("caller", "On whose behalf; empty: the container's user.")
MANIFEST = Input("manifest_uri", "The capture's manifest.")  # an argument, no option
RESULTS = _option("results", "Where results are kept, outside the archive: s3://bucket/prefix.", None)
SHARD = _option("shard", "i/n: every n-th rank from the i-th on.", None)
DIGEST = _option(
    "manifest_sha256", "The manifest's digest; another manifest is refused. Empty: any.", "", "--expected-sha256={}"
)
MIN_RANKS = _option("min_ranks", "So many ranks are enough; empty: all are needed.")
FETCH_PATTERN = _option(
    "fetch_pattern", "What fetches a batch, where it is not torch's DataLoader; the same for ranks and report."
)

WINDOW = (
    _option("job", "The job's name; another one at the address is refused. Empty: whichever."),
    _option("uid", "Only the job with this uid. Empty: whichever."),
    _option("attempt", "Only this attempt of it. Empty: whichever."),
    _option("duration", "Length of the window.", "2s"),
    _option("activities", "What to record.", "cpu,cuda"),
    _option("with_stack", "Record Python functions (large traces).", "false"),
    _option("record_shapes", "Record operator input shapes.", "false"),
    _option("warmup", "Profiler warm-up before the window, whole seconds.", "1s"),
    MIN_RANKS,
    _option("if_unavailable", "The job has ended, is not armed, or is another attempt: fail, skip or wait.", "fail"),
    _option("if_busy", "Another capture of the job is running: fail, skip or wait.", "wait"),
    _option("timeout_s", "Whole seconds for the step; then the capture is cancelled.", "900", "--timeout={}s"),
    CALLER,
)
"""What to capture, and what to make of all that can go otherwise."""

HISTORY = (
    _option("history", "Add the capture to the history of its series.", "true"),
    _option("image", "The image that was trained with, for the history."),
    _option("commit", "The commit that was trained with, for the history."),
)
JUDGED = (
    _option("accept_partial", "Compare with an earlier capture that lacks ranks, too; so with min_ranks.", "false"),
    _option("fail_on_regression", "Fail where a step takes longer by more than noise and the threshold.", "false"),
)

CAPTURE = Step(
    "capture-pod",
    "capture",
    (ADDRESS, KEY, *WINDOW),
    (
        *(Output(name) for name in ("capture_id", "request_key", "outcome", "manifest_uri", "manifest_sha256")),
        *(Output(name) for name in ("expected", "archived", "missing", "common_window_ms", "withdrawn", "warning")),
        Output("shards", "[]"),
        *ENDED,
    ),
)
CANCEL = Step(
    "cancel",
    "cancel",
    (ADDRESS, KEY, CALLER),
    (*(Output(name) for name in ("capture_id", "state", "withdrawn", "was_over", "archived")), *ENDED),
)
ANALYZE_RANK = Step(
    "analyze-rank",
    "analyze-rank",
    (MANIFEST, SHARD, RESULTS, DIGEST, FETCH_PATTERN),
    (*(Output(name) for name in ("capture_id", "shard", "ranks", "summaries_uri")), *ENDED),
)
REDUCE = Step(
    "reduce",
    "reduce",
    (MANIFEST, RESULTS, DIGEST, FETCH_PATTERN, MIN_RANKS, *HISTORY),
    (
        *(Output(name) for name in ("capture_id", "series", "outcome", "expected", "analysed", "missing")),
        *(Output(name) for name in ("report_uri", "summary_uri", "history_uri", "headline", "trend")),
        Output("findings", "[]"),
        *ENDED,
    ),
    (File("report", "report.html"), File("summary", "summary.json")),
)
COMPARE = Step(
    "compare",
    "compare",
    (
        MANIFEST,
        RESULTS,
        DIGEST,
        _option("before", "Manifest of the earlier capture; empty: the one before in the history."),
        _option("threshold", "How much slower is a regression, as a share: 0.1 is 10 %.", "0.1"),
        MIN_RANKS,
        *JUDGED,
    ),
    (
        *(Output(name) for name in ("verdict", "slowdown", "step_before_ns", "step_after_ns", "comparison_uri")),
        *(Output(name) for name in ("series", "before_capture_id")),
        Output("sentences", "[]"),
        *ENDED,
    ),
    (File("comparison", "comparison.html"), File("comparison-data", "comparison.json")),
)
STEPS = (CAPTURE, CANCEL, ANALYZE_RANK, REDUCE, COMPARE)

PROFILE_INPUTS = (
    ADDRESS,
    RESULTS,
    KEY,
    *WINDOW,
    FETCH_PATTERN,
    *HISTORY,
    Input("threshold", "Compare with the capture before, and how much slower is a regression; empty: don't.", ""),
    *JUDGED,
)
"""Of `profile`: everything that its steps need."""
