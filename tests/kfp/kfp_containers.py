"""A component as a KFP backend runs it, without one: the command of the compiled IR as a local process.

    ran = Container(IR, "capture").run(folder, {"address": …})
    assert ran.parameters["outcome"] == "SUCCEEDED"

What the driver and the launcher do to a container component is done here: defaults are added to the executor input, the
placeholders in `command` and `args` are replaced, and after the end outputs are read: parameters from their files by
their type, and artifacts' metadata from the executor output, which must be KFP's own message.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import yaml
from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2

DEPLOY = Path(__file__).resolve().parents[2] / "deploy" / "kfp"
IR = DEPLOY / "profile-job.yaml"
COMPILED = [each for each in sorted(DEPLOY.rglob("*.yaml")) if each.name != "role.yaml"]
PIPELINES = [each for each in COMPILED if each.parent == DEPLOY]
ROOT = "minio://mlpipeline/v2/artifacts/sameshot/run-1"

_READ: dict[str, Any] = {
    "STRING": str,
    "NUMBER_INTEGER": int,
    "NUMBER_DOUBLE": float,
    "BOOLEAN": json.loads,
    "LIST": json.loads,
}


@dataclasses.dataclass(frozen=True)
class Ran:
    """`parameters` and `artifacts` (file and metadata) only after a success, as KFP takes them only then."""

    code: int
    log: str
    parameters: dict[str, Any]
    files: dict[str, bytes]
    metadata: dict[str, dict[str, Any]]


class Container:
    def __init__(self, ir: Path, name: str) -> None:
        spec = next(iter(yaml.safe_load_all(ir.read_text())))
        self.component = spec["components"][f"comp-{name}"]
        executor = spec["deploymentSpec"]["executors"][self.component["executorLabel"]]
        self.container = executor["container"]

    def start(self, folder: Path, inputs: Mapping[str, Any], **environment: str) -> subprocess.Popen[str]:
        """In a process group of its own; `ended` reads what it left."""
        told = self._executor_input(folder, inputs)
        places = {"{{$}}": json.dumps(told)}
        for name, each in told["outputs"]["artifacts"].items():
            places[f"{{{{$.outputs.artifacts['{name}'].path}}}}"] = str(self._path(folder, each["artifacts"][0]["uri"]))
        argv = [places.get(each, each) for each in (*self.container["command"], *self.container["args"])]
        assert not any(each.startswith("{{") for each in argv), argv
        (folder / "kfp").mkdir(parents=True, exist_ok=True)
        with (folder / "log").open("w") as log:
            return subprocess.Popen(
                argv,
                # The image has one Python, which has sameshot.
                env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                text=True,
            )

    def run(self, folder: Path, inputs: Mapping[str, Any], **environment: str) -> Ran:
        return self.ended(folder, self.start(folder, inputs, **environment))

    def ended(self, folder: Path, process: subprocess.Popen[str]) -> Ran:
        try:
            code = process.wait(100)
        except subprocess.TimeoutExpired:
            for each in (*psutil.Process(process.pid).children(recursive=True), process):
                each.kill()
            raise
        log = (folder / "log").read_text()
        if code:
            return Ran(code, log, {}, {}, {})
        told = self._executor_input(folder, {})
        kinds = self.component["outputDefinitions"].get("parameters", {})
        parameters = {
            name: _READ[kinds[name]["parameterType"]](Path(each["outputFile"]).read_text())
            for name, each in told["outputs"]["parameters"].items()
        }
        output = pipeline_spec_pb2.ExecutorOutput()
        if (path := Path(told["outputs"]["outputFile"])).exists():
            json_format.Parse(path.read_text(), output)  # strict: a field that is none of KFP's is an error
        files, metadata = {}, {}
        for name, each in told["outputs"]["artifacts"].items():
            merged = output.artifacts[name].artifacts[0]
            # The launcher uploads to this address, which must lie in the run's own store.
            assert merged.uri == each["artifacts"][0]["uri"]
            metadata[name] = json_format.MessageToDict(merged.metadata)
            if (path := self._path(folder, merged.uri)).exists():
                files[name] = path.read_bytes()
        return Ran(code, log, parameters, files, metadata)

    def _executor_input(self, folder: Path, inputs: Mapping[str, Any]) -> dict[str, Any]:
        known = self.component["inputDefinitions"]["parameters"]
        defaults = {name: each["defaultValue"] for name, each in known.items() if "defaultValue" in each}
        assert set(inputs) <= set(known)
        outputs = self.component.get("outputDefinitions", {})
        return {
            "inputs": {"parameterValues": {**defaults, **inputs}},
            "outputs": {
                "parameters": {
                    name: {"outputFile": str(folder / "kfp" / "outputs" / name)}
                    for name in outputs.get("parameters", {})
                },
                "artifacts": {
                    name: {
                        "artifacts": [
                            {"name": name, "type": each["artifactType"], "uri": f"{ROOT}/{name}", "metadata": {}}
                        ]
                    }
                    for name, each in outputs.get("artifacts", {}).items()
                },
                "outputFile": str(folder / "kfp" / "output_metadata.json"),
            },
        }

    def _path(self, folder: Path, uri: str) -> Path:
        """The launcher's place for it, /minio/…, below `folder`."""
        return folder / "minio" / uri.removeprefix("minio://")
