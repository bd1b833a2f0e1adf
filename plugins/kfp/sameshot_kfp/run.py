"""What runs in a component's container: `python3 -m sameshot_kfp.run STEP --executor-input … --artifact NAME PATH`.

KFP's executor input goes in, `sameshot step …` does the work in a process of its own, and its small result becomes
KFP's outputs: a file for each parameter, a file for each artifact, and their metadata in the executor output. The exit
code is the step's. After a failure there are no outputs, since KFP takes none; what is known then stands in the log.

The lightweight components call `lightweight`, with the same outputs.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from sameshot.errors import SameshotError
from sameshot_kfp import arguments, results
from sameshot_kfp.cancel import cancel_run
from sameshot_kfp.interface import STEPS, Step, Value
from sameshot_kfp.results import Given


class Artifact(Protocol):
    """As much of an output artifact as is used."""

    path: str
    metadata: dict[str, Any]


@dataclass
class Slot:
    """An output artifact as the container sees it: where to write it, and what to say of it."""

    name: str
    uri: str
    path: str
    metadata: dict[str, Any] = field(default_factory=dict)


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: the step's."""
    parser = argparse.ArgumentParser(prog="sameshot_kfp.run", description="A sameshot step as KFP runs it.")
    parser.add_argument("step", choices=sorted(STEPS))
    parser.add_argument(
        "--executor-input", required=True, help="KFP's placeholder {{$}}: inputs, and places of outputs"
    )
    parser.add_argument(
        "--artifact", nargs=2, action="append", default=[], metavar=("NAME", "PATH"), help="where to write an output"
    )
    given = parser.parse_args(argv)
    step, told = STEPS[given.step], json.loads(given.executor_input)
    values = {**step.defaults, **told.get("inputs", {}).get("parameterValues", {})}
    outputs = told.get("outputs", {})
    slots = {name: _slot(outputs["artifacts"][name]["artifacts"][0], path) for name, path in given.artifact}
    places = {name: each["outputFile"] for name, each in outputs.get("parameters", {}).items()}
    if code := perform(step, values, places, slots):
        return code
    written = {
        name: {"artifacts": [{"name": slot.name, "uri": slot.uri, "metadata": slot.metadata}]}
        for name, slot in slots.items()
    }
    _write(outputs["outputFile"], json.dumps({"artifacts": written}))
    return 0


def lightweight(name: str, given: Mapping[str, Any]) -> None:
    """A lightweight component's body: `given` are its arguments, inputs and outputs alike.

    Raises SystemExit with the step's exit code, unless that is 0.
    """
    step = STEPS[name]
    values = {each.name: given[each.name] for each in step.inputs}
    places = {each.name: given[each.name] for each in step.outputs}
    if code := perform(step, values, places, {each.name: given[each.name] for each in step.files}):
        raise SystemExit(code)


def perform(step: Step, values: Mapping[str, Any], places: Mapping[str, str], artifacts: Mapping[str, Artifact]) -> int:
    """Run the step and write its outputs: parameters to `places`, artifacts to their paths. The step's exit code."""
    try:
        code, given = cancel_run(values) if step.name == "cancel" else _step(step, values)
    except SameshotError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    if given is None:
        return code
    for name, place in places.items():
        _write(place, _text(given.outputs[name]))
    for name, artifact in artifacts.items():
        artifact.metadata.update(given.files[name].metadata)
        Path(artifact.path).parent.mkdir(parents=True, exist_ok=True)
        Path(artifact.path).write_bytes(given.files[name].data)
    return code


def _step(step: Step, values: Mapping[str, Any]) -> tuple[int, Given | None]:
    """Outputs only of a step that is content."""
    if why := _nothing_to_do(step, values):
        print(why, file=sys.stderr)
        return 0, results.nothing(step.name, why)
    with tempfile.TemporaryDirectory(prefix="sameshot-") as folder:
        result = Path(folder) / "result.json"
        code = _command([*arguments.of(step.name, values), "--result", str(result)])
        if code:
            return code, None
        return 0, results.READERS[step.name](json.loads(result.read_bytes()))


def _nothing_to_do(step: Step, values: Mapping[str, Any]) -> str:
    """Why, or empty."""
    if step.name != "capture" and not values["manifest_uri"]:
        return "Nothing was captured, as the capture's step was told to skip; so there is nothing to show."
    if step.name == "compare" and values["threshold"] < 0:
        return "No threshold was given, so nothing is compared."
    return ""


def _command(argv: Sequence[str]) -> int:
    """`sameshot step …` with this very interpreter. A signal to this process is the step's, who says what it leaves."""
    started: list[subprocess.Popen[bytes]] = []

    def forward(number: int, _: object) -> None:
        if not started:
            raise SystemExit(128 + number)
        started[0].send_signal(number)

    before = {number: signal.signal(number, forward) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        command = [sys.executable, "-m", "sameshot.cli.main", "step", *argv]
        started.append(subprocess.Popen(command, start_new_session=True))  # Ctrl-C comes once, and from here
        code = started[0].wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 128 - code if code < 0 else code


def _slot(artifact: Mapping[str, Any], path: str) -> Slot:
    return Slot(artifact["name"], artifact["uri"], path, dict(artifact.get("metadata") or {}))


def _text(value: Value) -> str:
    """As KFP reads a parameter's file: text as it is, else JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def _write(path: str, text: str) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text)


if __name__ == "__main__":
    sys.exit(main())
