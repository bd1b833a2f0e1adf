"""What `flyte2_lab.User` has run in Flyte 2's environment: a wish as JSON on standard input, the answer in the file
that is named: others write on standard output, too."""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
from pathlib import Path
from typing import Any


def run(
    name: str, raw: str, module: str, task: str, inputs: dict[str, Any], context: dict[str, Any] | None = None
) -> dict[str, Any]:
    import flyte
    import flyte.errors

    flyte.init(local_persistence=True, root_dir=Path.cwd())
    asked = getattr(importlib.import_module(module), task)
    running = flyte.with_runcontext(mode="local", name=name, raw_data_path=raw, **(context or {}))
    try:
        made = running.run(asked, **inputs)
    except flyte.errors.BaseRuntimeError as error:
        return {"outputs": {}, "error": {"code": error.code, "message": str(error)}}
    named = dict(zip(asked.native_interface.outputs, made.outputs(), strict=True))
    return {"outputs": {name: _plain(value) for name, value in named.items()}, "error": None}


def deploy(module: str) -> dict[str, Any]:
    """What would be sent to a back end that is not there."""
    import flyte
    from google.protobuf.json_format import MessageToDict

    flyte.init(endpoint="dns:///127.0.0.1:9", insecure=True, project="p", domain="d", org="o", root_dir=Path.cwd())
    deployed: Any = flyte.deploy(importlib.import_module(module).env, dry_run=True, version="v1")
    entities = [each for plan in deployed for env in plan.envs.values() for each in env.deployed_entities]
    return {"specs": {each.get_name(): MessageToDict(each.deployed_task) for each in entities}}


def inputs(module: str, tasks: list[str]) -> dict[str, Any]:
    """Of tasks: type, default ("…": it must be given) and meaning of each input, as forms have them."""
    import inspect

    found: dict[str, Any] = {}
    for task in tasks:
        interface = getattr(importlib.import_module(module), task).native_interface
        found[task] = {
            name: [
                kind.__name__ if isinstance(kind, type) and not hasattr(kind, "__args__") else str(kind),
                "…" if default is inspect.Parameter.empty else default,
                interface.docstring.input_descriptions.get(name, ""),
            ]
            for name, (kind, default) in interface.inputs.items()
        }
    return {"inputs": found}


def triggers(module: str) -> dict[str, Any]:
    """Task → what `flyte deploy` would make of its triggers, which a dry run leaves out."""
    import asyncio

    import flyte
    from flyte._internal.runtime.convert import convert_upload_default_inputs
    from flyte._internal.runtime.trigger_serde import to_task_trigger
    from flyte._internal.runtime.types_serde import transform_native_to_typed_interface
    from google.protobuf.json_format import MessageToDict

    flyte.init(root_dir=Path.cwd())

    async def made(task: Any) -> list[Any]:
        inputs = transform_native_to_typed_interface(task.native_interface).inputs
        defaults = await convert_upload_default_inputs(task.native_interface)
        return [MessageToDict(await to_task_trigger(each, task.name, inputs, list(defaults))) for each in task.triggers]

    env = importlib.import_module(module).env
    return {"triggers": {name: found for name, task in env.tasks.items() if (found := asyncio.run(made(task)))}}


def write_inputs(module: str, task: str, inputs: dict[str, Any], path: str) -> dict[str, Any]:
    """As a back end writes them for a container."""
    import asyncio

    import flyte
    from flyte._internal.runtime import convert

    flyte.init(root_dir=Path.cwd())
    interface = getattr(importlib.import_module(module), task).native_interface
    made = asyncio.run(convert.convert_from_native_to_inputs(interface, **inputs))
    Path(path).write_bytes(made.proto_inputs.SerializeToString())
    return {}


def read_ended(folder: str) -> dict[str, Any]:
    """What a container left for the back end: the names of its outputs, or its error."""
    from flyteidl2.core import execution_pb2
    from flyteidl2.task import common_pb2
    from google.protobuf.json_format import MessageToDict

    outputs, error = Path(folder, "outputs.pb"), Path(folder, "error.pb")
    if error.exists():
        return {"error": MessageToDict(execution_pb2.ErrorDocument.FromString(error.read_bytes())), "outputs": []}
    made = common_pb2.Outputs.FromString(outputs.read_bytes())
    return {"error": None, "outputs": [each.name for each in made.literals]}


def _plain(value: Any) -> Any:
    import pyarrow.parquet as pq
    from flyte.io import DataFrame, File

    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, DataFrame):
        return pq.read_table(value.uri).to_pylist()
    return value.path if isinstance(value, File) else value


if __name__ == "__main__":
    sys.path.insert(0, ".")
    asked = json.load(sys.stdin)
    answer = globals()[asked.pop("wish")](**asked)
    Path(sys.argv[1]).write_text(json.dumps(answer))
