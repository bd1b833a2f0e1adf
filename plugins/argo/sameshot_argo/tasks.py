"""Functions for a workflow of your own in hera: each gives a task that refers to an installed template.

    stopped = exit_hook(address="kube:ml/bert", key="profile")  # or several: key=["profile", "stacks"]
    with Workflow(generate_name="train-", entrypoint="main", hooks=stopped, service_account_name="sameshot-workflow"):
        with DAG(name="main"):
            warm = ...
            profiled = profile(address="kube:ml/bert", results="s3://results/profiling")
            warm >> profiled

A workflow that is stopped may not run the hooks of what is below a DAG (see `composed`); its own it always runs.

Or, step by step, `capture`, then `analyze_rank` over its shards, then `reduce`. Values are Python's or Argo's tags;
what is not given has the template's default. Each takes what hera's `Task` takes besides (`depends`, `when`, …).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hera.workflows import Parameter, Task
from hera.workflows.models import Arguments, LifecycleHook, TemplateRef
from hera.workflows.models import Parameter as Argument

from sameshot.errors import UsageError
from sameshot.steps.options import milliseconds
from sameshot_argo.composed import CAPTURE_NAME, KEYS, ON_EXIT_NAME, PROFILE_NAME, output_of
from sameshot_argo.interface import (
    ADDRESS,
    ANALYZE_RANK,
    CALLER,
    CANCEL,
    CAPTURE,
    COMPARE,
    DIGEST,
    KEY,
    MANIFEST,
    PROFILE_INPUTS,
    REDUCE,
    Input,
)
from sameshot_argo.settings import NAME


@dataclass(frozen=True)
class Source:
    """Where the templates are: installed under a name, in the namespace or for the cluster, or (`name` None) in the
    workflow itself, which then has `templates()`."""

    name: str | None = NAME
    cluster: bool = False


INSTALLED = Source()
IN_CLUSTER = Source(cluster=True)
OWN = Source(None)


def capture(
    name: str = "capture", *, address: str, key: str | None = None, source: Source = INSTALLED, **more: Any
) -> Task:
    """Capture a running job. To have a stopped workflow cancel it, see `exit_hook`.

    `key` tells captures of one workflow apart; the default is the task's name. `more`: the template's inputs
    (`duration`, `min_ranks`, … and `timeout`, as text or timedelta) and Task's.
    """
    return _task(name, CAPTURE_NAME, CAPTURE.inputs, source, {"address": address, "key": key}, more)


def exit_hook(
    *, address: str, key: str | Sequence[str], source: Source = INSTALLED, caller: str = ""
) -> dict[str, LifecycleHook]:
    """`hooks` of a workflow: at its end, unless it succeeded, the captures of this key or these keys are cancelled that
    still run; also when it is stopped. Raises UsageError where no key is given.

    A handler of your own with `cancel` tasks must be `Steps`: an exit handler that is a DAG may not run after a stop.
    """
    keys = [key] if isinstance(key, str) else list(key)
    if not all(keys) or not keys:
        raise UsageError("An exit hook needs the keys of the captures that it may cancel.")
    values = {ADDRESS.name: address, KEYS: json.dumps(keys), CALLER.name: caller}
    return {
        "exit": LifecycleHook(
            **_where(ON_EXIT_NAME, source),
            arguments=Arguments(parameters=[Argument(name=name, value=each) for name, each in values.items()]),
        )
    }


def cancel(name: str = "cancel", *, address: str, key: str, source: Source = INSTALLED, **more: Any) -> Task:
    """Cancel the capture of this key of this workflow, wherever it stands."""
    return _task(name, CANCEL.name, CANCEL.inputs, source, {"address": address, "key": key}, more)


def analyze_rank(
    name: str = "analyze", *, of: Task | str, results: str, source: Source = INSTALLED, **more: Any
) -> Task:
    """Summarise the ranks of a capture, a pod for each shard; `of` is its task, or a manifest's address.

    Of a manifest's address the `shard` must be given (`0/1` is all of it); of a task it is each of the capture's.
    """
    given: dict[str, Any] = {"results": results}
    if isinstance(of, Task):
        given["shard"] = "{{item}}"
        more.setdefault("with_param", output_of(of.name, "shards", "tasks"))
    return _after(of, _task(name, ANALYZE_RANK.name, ANALYZE_RANK.inputs, source, given | _manifest(of), more))


def reduce(name: str = "reduce", *, of: Task | str, results: str, source: Source = INSTALLED, **more: Any) -> Task:
    """Make the report from what `analyze_rank` found on all shards; it must be done before."""
    _unless_skipped(of, more)
    return _after(of, _task(name, REDUCE.name, REDUCE.inputs, source, {"results": results} | _manifest(of), more))


def compare(name: str = "compare", *, of: Task | str, results: str, source: Source = INSTALLED, **more: Any) -> Task:
    """Compare a capture with the one before it in its series; `reduce` must have put it into the history."""
    _unless_skipped(of, more)
    return _after(of, _task(name, COMPARE.name, COMPARE.inputs, source, {"results": results} | _manifest(of), more))


def profile(
    name: str = "profile",
    *,
    address: str,
    results: str,
    key: str | None = None,
    source: Source = INSTALLED,
    **more: Any,
) -> Task:
    """All of it: capture, analyse in parallel, report, and with a `threshold` compare with the capture before."""
    given = {"address": address, "results": results, "key": key}
    return _task(name, PROFILE_NAME, PROFILE_INPUTS, source, given, more)


def _task(
    name: str, template: str, inputs: tuple[Input, ...], source: Source, given: dict[str, Any], more: dict[str, Any]
) -> Task:
    names = {each.name for each in inputs}
    values = given | {each: more.pop(each) for each in list(more) if each in names}
    if KEY in inputs and values.get("key") is None:
        values["key"] = name
        if any(more.get(loop) is not None for loop in ("with_items", "with_param", "with_sequence")):
            raise UsageError(
                f"Task {name} runs once per item: give it a key with the item in it, such as '{{{{item}}}}'."
            )
    if "timeout" in more and "timeout_s" in names:
        values["timeout_s"] = _seconds(more.pop("timeout"))
    arguments = [Parameter(name=each.name, value=_text(values[each.name])) for each in inputs if each.name in values]
    return Task(name=name, arguments=arguments, **_where(template, source), **more)


def _where(template: str, source: Source) -> dict[str, Any]:
    if source.name is None:
        return {"template": template}
    return {"template_ref": TemplateRef(name=source.name, template=template, cluster_scope=source.cluster or None)}


def _manifest(of: Task | str) -> dict[str, Any]:
    if isinstance(of, Task):
        return {name: output_of(of.name, name, "tasks") for name in (MANIFEST.name, DIGEST.name)}
    return {MANIFEST.name: of}


def _unless_skipped(of: Task | str, more: dict[str, Any]) -> None:
    """A capture that was skipped as asked for has no manifest; its shards are none already."""
    if isinstance(of, Task):
        more.setdefault("when", f"'{output_of(of.name, 'capture_id', 'tasks')}' != ''")


def _after(of: Task | str, task: Task) -> Task:
    if isinstance(of, Task) and of.name not in (task.depends or ""):
        of >> task
    return task


def _text(value: object) -> str:
    """As a template takes it; None says nothing."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _seconds(timeout: object) -> int:
    """Whole seconds, since Argo's deadline of the pod is made of them."""
    return -(-milliseconds(timeout, "timeout") // 1000)
