"""The components of one face, with what KFP needs to be told about each: `Components.containers()` in a cluster,
`Components.local()` under `kfp.local`.

    from sameshot_kfp import components

    @dsl.pipeline
    def nightly(address: str):
        picture = components.capture(address=address, key="nightly")
        ...

Calling one makes a task. `capture` and `cancel` are given the run's id and the task's name, are never cached, and the
capture is retried, which finds the capture of the same key; analysis is cached by the manifest's digest and retried.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kfp import dsl
from kfp.dsl.base_component import BaseComponent
from kfp.dsl.pipeline_task import PipelineTask

from sameshot.steps.image import IMAGE
from sameshot_kfp import faces
from sameshot_kfp.interface import STEPS

RETRIED_FOR = "86400s"
"""A day, which must hold all attempts of a task and what they wait for. KFP's `backoff_max_duration` is no limit of one
pause, in spite of its name: it becomes Argo's `backoff.maxDuration`, counted from the beginning of the first attempt;
after it nothing is retried and the attempt that runs is ended (kubeflow/pipelines#13452, #14245). SDKs before 2.17
write an hour at most, whatever they are given."""

Prepare = Callable[[PipelineTask], Any]
"""What is done to each task: node selectors, secrets, resources. See `sameshot_kfp.cluster`."""


def _as_it_is(task: PipelineTask) -> None:
    pass


@dataclass(frozen=True)
class Components:
    """All steps as components of one face. `bare` are the components as KFP knows them; `retries` of every step but
    the exit task."""

    bare: dict[str, BaseComponent]
    prepare: Prepare = _as_it_is
    retries: int = 2

    @classmethod
    def containers(cls, image: str = IMAGE, prepare: Prepare = _as_it_is, retries: int = 2) -> Components:
        """For a cluster. `image`: where the image of this very version was copied to."""
        return cls({name: faces.container(step, image) for name, step in STEPS.items()}, prepare, retries)

    @classmethod
    def local(cls, retries: int = 0) -> Components:
        """For `kfp.local.SubprocessRunner(use_venv=False)`."""
        return cls({name: faces.lightweight(step, "python") for name, step in STEPS.items()}, retries=retries)

    def capture(self, *, address: Any, key: Any, **options: Any) -> PipelineTask:
        """A capture. `key` tells captures of one run apart that are made by tasks of the same name: in a loop the item,
        and one of its own for each nested pipeline. `options`: the other inputs of the component."""
        task = self._task(
            "capture",
            {"address": address, "key": key, **options},
            run_id=dsl.PIPELINE_JOB_ID_PLACEHOLDER,
            task_name=dsl.PIPELINE_TASK_NAME_PLACEHOLDER,
        )
        task.set_caching_options(False)  # the same inputs mean another picture
        return self._retried(task)

    def analyze_rank(self, **inputs: Any) -> PipelineTask:
        return self._retried(self._task("analyze_rank", inputs).set_caching_options(True))

    def reduce(self, **inputs: Any) -> PipelineTask:
        return self._retried(self._task("reduce", inputs).set_caching_options(True))

    def compare(self, **inputs: Any) -> PipelineTask:
        """Not cached: with what is compared is decided by the history, which is no input."""
        return self._retried(self._task("compare", inputs).set_caching_options(False))

    def cancel(self, *, address: Any, **options: Any) -> PipelineTask:
        """For `dsl.ExitHandler`: cancels what this run (or this `key` of it) still captures, unless all went well."""
        task = self._task("cancel", {"address": address, **options}, run_id=dsl.PIPELINE_JOB_ID_PLACEHOLDER)
        return task.set_caching_options(False)

    def _task(self, name: str, inputs: dict[str, Any], **fixed: Any) -> PipelineTask:
        task: PipelineTask = self.bare[name](**inputs, **fixed)
        self.prepare(task)
        return task

    def _retried(self, task: PipelineTask) -> PipelineTask:
        """KFP retries whatever the exit code was."""
        if not self.retries:
            return task
        return task.set_retry(self.retries, backoff_duration="10s", backoff_factor=2, backoff_max_duration=RETRIED_FOR)
