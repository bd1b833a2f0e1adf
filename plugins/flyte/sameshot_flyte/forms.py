"""What forms say beside the inputs of tasks and workflows, said once for both SDKs. Pure.

Both take it from the section `Args:` of a function's docstring; `described` writes that.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

MEANING: Mapping[str, str] = {
    "address": "The job's coordinator: kube:<namespace>/<job>, or host:port (local:<name>: a job of this machine).",
    "job": "The job's name; another one at the address is refused. Empty: whichever.",
    "uid": "Only the job with this uid. Empty: whichever.",
    "attempt": "Only this attempt of it. -1: whichever.",
    "duration": "Length of the window: 2s, 500ms.",
    "activities": "Comma-separated: cpu, cuda, xpu, mtia.",
    "with_stack": "Record Python functions (large traces).",
    "record_shapes": "Record operator input shapes.",
    "warmup": "Profiler warm-up before the window, whole seconds.",
    "min_ranks": "So many ranks are enough, in the capture and in the report. 0: all of the job.",
    "if_unavailable": "The job has ended, is not armed, or is another attempt: fail (the capture task's retries look "
    "again), skip or wait.",
    "if_busy": "Another capture of the job is running: fail (the capture task's retries look again), skip or wait.",
    "timeout": "Of the capture, waiting included; then it is cancelled.",
    "caller": "On whose behalf; empty: the connector's own user.",
    "manifest_uri": "The capture's manifest. Empty, with its digest: nothing was captured, and nothing is done.",
    "manifest_sha256": "Its digest, by which analyses are cached; another manifest at that address is refused.",
    "results": "Where results are kept: s3://bucket/prefix or a mounted path, outside the archive.",
    "shard": "i/n: every n-th rank with a trace, from the i-th on. 0/1 is all of them.",
    "analysed": "The shards that analyze_rank came back with. What is not there of them any more is analysed again.",
    "fetch_pattern": "Regular expression of the annotations that fetch a batch, the same for ranks and report. "
    "Empty: torch's DataLoader.",
    "history": "Add the capture to the history of its series.",
    "trained_image": "The image that was trained with, for the history.",
    "commit": "The commit that was trained with, for the history.",
    "workers": "Processes that read traces. 0: one, more for large traces.",
    "threshold": "So much slower than the capture before is a regression: 0.1 is 10 %. Negative: nothing is compared.",
    "before": "Manifest of the earlier capture. Empty: the one before in the series' history.",
    "accept_partial": "Compare with an earlier capture that lacks ranks, too; so with min_ranks.",
    "analysis": "What reduce gave, so that the comparison comes after it.",
    "concurrency": "Ranks that are analysed at the same time.",
}

Function = TypeVar("Function", bound=Callable[..., Any])


def described(function: Function) -> Function:
    """The same function, with what its parameters mean in its docstring."""
    told = [f"    {name}: {MEANING[name]}" for name in inspect.signature(function).parameters]
    function.__doc__ = "\n".join([inspect.getdoc(function) or "", "", "Args:", *told])
    return function
