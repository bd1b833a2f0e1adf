from __future__ import annotations

import json
import re
from pathlib import Path

import yaml

from sameshot.arm.hookmap import MAX_BYTES, hook_configmap, hook_digest, hook_files, is_hook_configmap
from sameshot.arm.volumes import VOLUMES
from sameshot.arm.yamlparts import block
from sameshot.hook import PAYLOAD


def test_it_holds_the_hooks_files_byte_for_byte() -> None:
    data = hook_configmap("team-a")["data"]
    on_disk = {path.name: path.read_bytes() for path in Path(PAYLOAD).iterdir() if path.is_file()}
    assert {name: text.encode() for name, text in data.items()} == on_disk
    assert "sitecustomize.py" in data


def test_it_is_what_an_api_server_takes() -> None:
    made = hook_configmap("team-a")
    assert made["apiVersion"] == "v1"
    assert made["kind"] == "ConfigMap"
    assert made["metadata"]["name"] == VOLUMES[1]["configMap"]["name"]
    assert made["metadata"]["namespace"] == "team-a"
    assert sum(len(key) + len(text.encode()) for key, text in made["data"].items()) < MAX_BYTES / 10
    assert len(json.dumps(made)) < 200_000  # kubectl apply keeps a second copy in an annotation of at most 256 KiB
    assert all(re.fullmatch(r"[-._a-zA-Z0-9]{1,253}", key) for key in made["data"])
    assert "immutable" not in made


def test_without_a_namespace_it_goes_where_the_context_points() -> None:
    assert "namespace" not in hook_configmap()["metadata"]


def test_its_yaml_reads_back_the_same_and_shows_the_files_as_text() -> None:
    text = block(hook_configmap("x"))
    assert yaml.safe_load(text) == hook_configmap("x")
    assert text.count(": |\n") == len(hook_files())


def test_it_is_told_from_other_configmaps_whatever_its_version() -> None:
    old = hook_configmap("a")
    old["data"] = {"sitecustomize.py": ""}
    assert is_hook_configmap(old)
    assert not is_hook_configmap({"kind": "ConfigMap", "metadata": {"name": "other"}})
    assert not is_hook_configmap({"kind": "Secret", "metadata": {"name": "sameshot-hook"}})
    assert not is_hook_configmap(None)
    assert re.fullmatch(r"[0-9a-f]{16}", hook_digest())
