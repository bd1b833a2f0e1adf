"""What each component takes and gives: one table, from which both faces are made and which the container reads, too.

Nothing of KFP is imported here: the image that runs the steps has no KFP in it. Inputs are plain values that every form
and every YAML file can write, so what says nothing is the empty text, 0 (`min_ranks`: all) or -1 (`attempt`: any,
`threshold`: no comparison).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["str", "int", "float", "bool", "list"]
Artifact = Literal["Artifact", "HTML", "Metrics"]
NO_COMPARISON = -1.0
"""What a pipeline's `threshold` is unless it is given: as with the other engines, who wants a comparison says so."""

Value = str | int | float | bool | list[str]


@dataclass(frozen=True)
class Input:
    """A parameter of a component. `default` None: it must be given."""

    name: str
    about: str
    default: Value | None = None
    kind: Kind | Literal["PipelineTaskFinalStatus"] = "str"


@dataclass(frozen=True)
class Output:
    """A small value that later tasks may use; it is always there after a success."""

    name: str
    about: str
    kind: Kind = "str"


@dataclass(frozen=True)
class File:
    """An output that KFP stores and shows."""

    name: str
    about: str
    kind: Artifact


@dataclass(frozen=True)
class Step:
    """One component."""

    name: str
    about: str
    inputs: tuple[Input, ...]
    files: tuple[File, ...]
    outputs: tuple[Output, ...]

    @property
    def defaults(self) -> dict[str, Value]:
        return {each.name: each.default for each in self.inputs if each.default is not None}


_MANIFEST = (
    Input("manifest_uri", "The capture's manifest. Empty: there is nothing to analyse, and nothing is done."),
    Input("manifest_sha256", "Its digest; another manifest at that address is refused."),
    Input("results", "Where results are kept: s3://bucket/prefix or a mounted path, outside the archive."),
)
_FETCH_PATTERN = Input(
    "fetch_pattern",
    "Regular expression of the annotations that fetch a batch, the same for ranks and report. Empty: DataLoader.",
    "",
)
_CALLER = Input("caller", "On whose behalf; empty: the OS user.", "")
_ADDRESS = Input(
    "address", "The job's coordinator: kube:<namespace>/<job>, or host:port (local:<name>: a job of this machine)."
)
_RUN_ID = Input("run_id", "This run's id: dsl.PIPELINE_JOB_ID_PLACEHOLDER.")

CAPTURE = Step(
    "capture",
    "Capture a window of every rank of a running training job, and wait until it is proven.",
    inputs=(
        _ADDRESS,
        _RUN_ID,
        Input("task_name", "This task's name: dsl.PIPELINE_TASK_NAME_PLACEHOLDER."),
        Input("key", "Tells captures of one run apart: in a loop the loop's item. A retry has the same."),
        Input("job", "The job's name; another one at the address is refused. Empty: whichever.", ""),
        Input("uid", "Only the job with this uid. Empty: whichever.", ""),
        Input("attempt", "Only this attempt of it. -1: whichever.", -1, "int"),
        Input("duration", "Length of the window: 2s, 500ms.", "2s"),
        Input("activities", "Comma-separated: cpu, cuda, xpu, mtia.", "cpu,cuda"),
        Input("with_stack", "Record Python functions (large traces).", False, "bool"),
        Input("record_shapes", "Record operator input shapes.", False, "bool"),
        Input("warmup", "Profiler warm-up before the window, whole seconds.", "1s"),
        Input("min_ranks", "So many verified traces are enough. 0: all ranks are needed.", 0, "int"),
        Input("if_unavailable", "The job has ended, is not armed, or is another attempt: fail, skip or wait.", "fail"),
        Input("if_busy", "Another capture of the job is running: fail, skip or wait.", "wait"),
        Input("timeout", "Of the whole step; then the capture is cancelled.", "15m"),
        _CALLER,
    ),
    files=(
        File("manifest", "A copy of the manifest; its metadata say where the original is, and what of.", "Artifact"),
        File("metrics", "Ranks expected and archived, and the window that all traces have in common.", "Metrics"),
    ),
    outputs=(
        Output("capture_id", "Empty: skipped, as was asked for."),
        Output("request_key", "What a retry finds this capture by."),
        Output("manifest_uri", "Where the manifest is in the archive."),
        Output("manifest_sha256", "Its digest."),
        Output("outcome", "SUCCEEDED or PARTIAL; empty when skipped."),
        Output("expected", "Ranks of the job.", "int"),
        Output("archived", "Ranks with a verified trace.", "int"),
        Output("missing", "The ranks without, as in 0-2, 7."),
        Output(
            "shards", "What to loop over: 0/4, 1/4, … Never empty; after a skip one that has nothing in it.", "list"
        ),
        Output("warning", "Good enough, and yet: missing ranks, or hardly any common window."),
        Output("message", "How it went, in a sentence."),
    ),
)

ANALYZE_RANK = Step(
    "analyze_rank",
    "Summarise the ranks of one shard of a capture.",
    inputs=(
        *_MANIFEST,
        Input("shard", "i/n: every n-th rank with a trace, from the i-th on."),
        _FETCH_PATTERN,
    ),
    files=(),
    outputs=(
        Output("done", "The shard, once it is summarised."),
        Output("ranks", "The ranks in it."),
        Output("summaries_uri", "The folder with a file per rank."),
    ),
)

REDUCE = Step(
    "reduce",
    "Make the job-wide report from what analyze_rank found on all ranks.",
    inputs=(
        *_MANIFEST,
        Input(
            "shards",
            "What was analysed: dsl.Collected of analyze_rank's `done`; so this comes after it. What is not there of "
            "them any more is analysed again.",
            [],
            "list",
        ),
        _FETCH_PATTERN,
        Input("min_ranks", "So many analysed ranks are enough. 0: all of the job.", 0, "int"),
        Input("history", "Add the capture to the history of its series.", True, "bool"),
        Input("trained_image", "The image that was trained with, for the history.", ""),
        Input("commit", "The commit that was trained with, for the history.", ""),
    ),
    files=(
        File("report", "The report, as the run page shows it.", "HTML"),
        File("metrics", "The first numbers to look at; what is unknown is left out.", "Metrics"),
    ),
    outputs=(
        Output("report_uri", "The report among the results."),
        Output("summary_uri", "The same as numbers: summary.json."),
        Output("history_uri", "The row in the history of the series; empty: none is kept."),
        Output("outcome", "The capture's."),
        Output("expected", "Ranks of the job.", "int"),
        Output("analysed", "Ranks in the report.", "int"),
        Output("missing", "The ranks without a trace."),
        Output("trend", "What the history says of this series."),
        Output("findings", "The first sentences of the report.", "list"),
    ),
)

COMPARE = Step(
    "compare",
    "Compare a capture with the one before it in its series.",
    inputs=(
        *_MANIFEST,
        Input("before", "Manifest of the earlier capture. Empty: the one before in the history.", ""),
        Input(
            "threshold", "How much slower is a regression: 0.1 is 10 %. Negative: nothing is compared.", 0.1, "float"
        ),
        Input("min_ranks", "If not 0, fewer ranks are content: also those of an earlier capture.", 0, "int"),
        Input("fail_on_regression", "Fail the task (exit code 4) for a regression.", False, "bool"),
    ),
    files=(
        File("report", "The comparison, as the run page shows it.", "HTML"),
        File("metrics", "Time per step before and after, and the change as a share.", "Metrics"),
    ),
    outputs=(
        Output("verdict", "regressed, slower, same, faster, unknown or first; empty: nothing was compared."),
        Output("before_capture_id", "The capture it was compared with."),
        Output("before_manifest_uri", "Its manifest."),
        Output("comparison_uri", "The comparison among the results."),
        Output("sentences", "What changed most.", "list"),
    ),
)

CANCEL = Step(
    "cancel",
    "The exit task of dsl.ExitHandler: cancels what this run still has going on, unless all went well.",
    inputs=(
        _ADDRESS,
        _RUN_ID,
        Input("key", "Only captures with this `key`. Empty: all captures of the run.", ""),
        _CALLER,
        Input("status", "KFP gives it.", kind="PipelineTaskFinalStatus"),
    ),
    files=(),
    outputs=(
        Output("cancelled", "Ids of the captures that were cancelled.", "list"),
        Output("message", "What was done, in words."),
    ),
)

STEPS: Mapping[str, Step] = {each.name: each for each in (CAPTURE, ANALYZE_RANK, REDUCE, COMPARE, CANCEL)}
