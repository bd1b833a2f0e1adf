"""Where a task runs, as propeller tells a connector: what a capture's request key is made of. Pure.

propeller tells the id of the execution, the node and its attempt. Node ids are unique only within one workflow: two
sub-workflows of an execution both have an `n0` (flytepropeller 1.16.8, pkg/controller/nodes/task/transformer.go,
`GetTaskExecutionIdentifier`, gives the plain id). What tells them apart is the output prefix, which is made of the ids
of all nodes above, each with its attempt (pkg/apis/flyteworkflow/v1alpha1, workflow_status.go and node_status.go):

    <metadata prefix>/<project>-<domain>-<execution>/<node>/data/<attempt>[/<node within>/<attempt>]…

A key takes the ids and never an attempt, not even that of a sub-workflow: whoever retries wants the same picture.

The index of a mapped task comes in the environment that is to be the task's (controller/nodes/array/
execution_context.go). Whether a connector's task can be mapped at all is another question: flytekit's `map_task` takes
functions only, and propeller keeps no state of a connector for the tasks that it maps (array/handler.go).
"""

from __future__ import annotations

from collections.abc import Mapping

from flytekit.models.core.identifier import WorkflowExecutionIdentifier
from flytekit.models.task import TaskExecutionMetadata

from sameshot_flyte.asked import NOT_MAPPED, Place

_INDEX_IS_IN = "BATCH_JOB_ARRAY_INDEX_VAR_NAME"


def place_of(metadata: TaskExecutionMetadata | None, output_prefix: str, task: str) -> Place:
    """`metadata` None, or empty: a local execution, where nobody tells."""
    if metadata is None or not metadata.task_execution_id.node_execution_id.execution_id.name:
        return Place.local(task, output_prefix)
    node = metadata.task_execution_id.node_execution_id
    return Place(
        project=node.execution_id.project,
        domain=node.execution_id.domain,
        execution=node.execution_id.name,
        node=_path(node.node_id, node.execution_id, output_prefix),
        map_index=_index(metadata.environment_variables or {}),
    )


def _path(node_id: str, execution: WorkflowExecutionIdentifier, output_prefix: str) -> str:
    """`n0`, or `n2.n0` for the n0 of the workflow at n2. The plain id where the prefix is not laid out as expected."""
    _, found, below = output_prefix.partition(f"/{execution.project}-{execution.domain}-{execution.name}/")
    parts = below.strip("/").split("/")
    if not found or len(parts) < 3 or parts[1] != "data":
        return node_id
    ids, attempts = [parts[0], *parts[3::2]], parts[2::2]
    mapped = f"n{ids[-1]}"
    if len(ids) != len(attempts) or not all(map(str.isdecimal, attempts)) or node_id not in (ids[-1], mapped):
        return node_id
    return ".".join(ids)


def _index(environment: Mapping[str, str]) -> int:
    index = environment.get(environment.get(_INDEX_IS_IN, ""), "")
    return int(index) if index.isdecimal() else NOT_MAPPED
