"""Pod templates in few words, and what stands in an armed one, read without any code of arming."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

FIXTURES = Path(__file__).resolve().parent.parent / "arm" / "fixtures"
Json = dict[str, Any]

# What DESIGN and the hook's own page say, written down once more: a renamed variable or path must fail here.
SCRIPT = 'PYTHONPATH=/sameshot-hook${PYTHONPATH:+:$PYTHONPATH} exec "$@"'
WRAPPED = ["/bin/sh", "-c", SCRIPT, "--"]


def container(name: str = "main", command: list[str] | None = None, **fields: Any) -> Json:
    made: Json = {"name": name, "image": "registry.example/train:1"}
    if command is None:
        made["command"] = ["torchrun", "--nproc-per-node=2", "train.py"]
    elif command:
        made["command"] = command
    return made | fields


def template(*containers: Json, **spec: Any) -> Json:
    return {"spec": {"restartPolicy": "Never", **spec, "containers": list(containers) or [container()]}}


def gpus(number: int | str = 1, name: str = "nvidia.com/gpu") -> Json:
    return {"limits": {name: number}}


def env_of(armed: Json, name: str = "main") -> dict[str, Any]:
    """The variables of a container: literal values, or the path of the downward API behind an `@`."""
    found = {}
    for entry in container_of(armed, name).get("env", []):
        assert entry["name"] not in found, f"{entry['name']} twice"
        source = entry.get("valueFrom")
        found[entry["name"]] = entry.get("value") if source is None else "@" + source["fieldRef"]["fieldPath"]
    return found


def container_of(armed: Json, name: str = "main") -> Json:
    (found,) = [each for each in armed["spec"]["containers"] if each["name"] == name]
    return found


def annotation_of(armed: Json) -> Json:
    found: Json = json.loads(armed["metadata"]["annotations"]["sameshot.dev/armed"])
    return found


def is_armed(armed: Json) -> bool:
    return "sameshot.dev/armed" in armed.get("metadata", {}).get("annotations", {})


def fixture(name: str) -> Json:
    """A fixture's object, without the sharing that its anchors mean."""
    found: Json = json.loads(json.dumps(yaml.safe_load((FIXTURES / f"{name}.yaml").read_text())))
    return found
