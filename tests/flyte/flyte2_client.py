"""Flyte 2's side of a connector, run in its environment: what `flyte2_service.Flyte` asks for, a line of JSON each."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import flyte
import grpc
from flyte._internal.runtime.convert import convert_from_native_to_inputs
from flyteidl2.connector import connector_pb2, service_pb2, service_pb2_grpc
from google.protobuf.json_format import MessageToDict, ParseDict

from sameshot_flyte.flyte2 import SameshotCapture

Json = dict[str, Any]


def spec(**settings: Any) -> Json:
    """What is registered of a capture task, as `flyte deploy` would send it."""
    flyte.init(endpoint="dns:///127.0.0.1:9", insecure=True, project="p", domain="d", org="o", root_dir=Path.cwd())
    task = SameshotCapture(**settings)
    env = flyte.TaskEnvironment.from_task("env", task)
    deployed: Any = flyte.deploy(env, dry_run=True, version="v1", copy_style="none")  # a connector needs no code
    (entity,) = [each for plan in deployed for env in plan.envs.values() for each in env.deployed_entities]
    return MessageToDict(entity.deployed_task)


def inputs(**given: Any) -> Json:
    """As `flyte.run` sends them, defaults and all."""
    interface = SameshotCapture(name="any").native_interface
    return MessageToDict(asyncio.run(convert_from_native_to_inputs(interface, **given)).proto_inputs)


def call(port: int, service: str, method: str, request: Json) -> Json:
    asked = service_pb2.DESCRIPTOR.services_by_name[service].methods_by_name[method].input_type.name
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = getattr(service_pb2_grpc, f"{service}Stub")(channel)
        message = ParseDict(request, getattr(connector_pb2, asked)())
        try:
            return {"answer": MessageToDict(getattr(stub, method)(message, timeout=10, wait_for_ready=True))}
        except grpc.RpcError as error:
            return {"code": error.code().name, "details": error.details()}


for line in sys.stdin:
    wish, given = json.loads(line)
    print(json.dumps({"spec": spec, "inputs": inputs, "call": call}[wish](**given)), flush=True)
