"""What holds for every pod template, found by trying many."""

from __future__ import annotations

import copy
import json
from typing import Any

import yaml
from arm_lab import WRAPPED, annotation_of, container_of
from hypothesis import assume
from hypothesis import strategies as st
from many_examples import tried

from sameshot.arm import ArmOptions, NotArmable, arm_template, disarm_template
from sameshot.arm.files import arm_text, disarm_text

Json = dict[str, Any]

# Control characters are no YAML, and surrogates no UTF-8.
text = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=12)
word = st.one_of(
    text,
    st.sampled_from(
        [
            "python",
            "-S",
            "train.py",
            "--",
            "torchrun",
            "$(X)",
            "a: b",
            "- c",
            "# d",
            "'",
            '"',
            "yes",
            "two\nlines\n",
            " before",
            "after ",
        ]
    ),
)
key = st.from_regex(r"[a-z][a-z0-9-]{0,6}(\.[a-z]{2,3}/[a-z]{1,6})?", fullmatch=True)
NAMES = ["A", "B", "PYTHONPATH", "RANK", "SAMESHOT_EXIT_WAIT_S", "PET_NPROC_PER_NODE"]


def entries() -> st.SearchStrategy[list[Json]]:
    literal = st.builds(lambda name, value: {"name": name, "value": value}, st.sampled_from(NAMES), word)
    elsewhere = st.builds(
        lambda name: {"name": name, "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}, st.sampled_from(NAMES)
    )
    return st.lists(st.one_of(literal, elsewhere), max_size=4, unique_by=lambda each: each["name"])


def mounts() -> st.SearchStrategy[list[Json]]:
    path = st.sampled_from(["/data", "/sameshots", "/mnt/sameshot-hook", "/"])
    return st.lists(
        st.builds(lambda path, read: {"name": "data", "mountPath": path, "readOnly": read}, path, st.booleans()),
        max_size=2,
        unique_by=lambda each: each["mountPath"],
    )


def container(name: str) -> st.SearchStrategy[Json]:
    base = {"name": st.just(name), "image": st.just("x")}
    command = st.lists(word, min_size=1, max_size=5)
    path = st.builds(lambda value: [{"name": "A", "value": "1"}, {"name": "PYTHONPATH", "value": value}], word)
    return st.fixed_dictionaries({**base, "env": path}) | st.fixed_dictionaries(
        {**base, "command": command},
        optional={
            "args": st.lists(word, max_size=3),
            "env": entries(),
            "envFrom": st.just([{"configMapRef": {"name": "c"}}]),
            "volumeMounts": mounts(),
            "resources": st.sampled_from(
                [{}, {"limits": {"nvidia.com/gpu": 1}}, {"limits": {"ephemeral-storage": "1Mi"}}]
            ),
            "securityContext": st.just({"runAsUser": 5, "readOnlyRootFilesystem": True}),
        },
    )


volumes = st.lists(
    st.sampled_from(
        [
            {"name": "data", "emptyDir": {}},
            {"name": "sameshot", "emptyDir": {"sizeLimit": "5Gi"}},
            {"name": "more", "hostPath": {"path": "/x"}},
        ]
    ),
    max_size=3,
    unique_by=lambda each: each["name"],
)
templates = st.fixed_dictionaries(
    {
        "spec": st.fixed_dictionaries(
            {"containers": st.tuples(container("one"), container("two")).map(list)},
            optional={
                "volumes": volumes,
                "initContainers": st.tuples(container("side")).map(list),
                "hostNetwork": st.booleans(),
                "securityContext": st.just({"fsGroup": 7}),
            },
        )
    },
    optional={
        "metadata": st.fixed_dictionaries(
            {},
            optional={
                "labels": st.dictionaries(key, text, max_size=2),
                "annotations": st.dictionaries(key, text, max_size=2),
            },
        )
    },
)
decisions = st.builds(
    ArmOptions,
    container=st.sampled_from([None, "one", "two"]),
    local_world_size=st.sampled_from([None, 1, 8, "auto"]),
    arm_spawned=st.sampled_from([None, True]),
    pythonpath=st.sampled_from([None, None, "", "/p"]),
) | st.builds(ArmOptions, single=st.just(True), container=st.sampled_from([None, "two"]))


def armed(plain: Json, options: ArmOptions) -> Json:
    try:
        return arm_template(plain, options).template
    except NotArmable:
        assume(False)
        raise


@tried(templates, decisions, few=15, many=300)
def test_arming_twice_is_arming_once_and_disarming_undoes_it(plain: Json, options: ArmOptions) -> None:
    before = copy.deepcopy(plain)
    once = armed(plain, options)
    for again in (arm_template(once), arm_template(once, options)):
        assert not again.changed
        assert again.template == once
    done = disarm_template(once)
    assert done.template == plain == before
    assert not done.warnings
    assert json.loads(json.dumps(once)) == once


@tried(templates, decisions, few=15, many=300)
def test_nothing_changes_but_what_is_declared(plain: Json, options: ArmOptions) -> None:
    """Taken out again here by hand, by name: whatever is left must be what was there."""
    once = copy.deepcopy(armed(plain, options))
    note = annotation_of(once)
    name = note["container"]
    trainer, before = container_of(once, name), container_of(plain, name)

    ours = {"sameshot", "sameshot-hook"}
    own = {each["name"] for each in plain["spec"].get("volumes", [])}
    kept = [each for each in once["spec"].get("volumes", []) if each["name"] not in ours - own]
    assert kept == plain["spec"].get("volumes", [])
    paths = {each["mountPath"] for each in before.get("volumeMounts", [])}
    assert [
        each
        for each in trainer.get("volumeMounts", [])
        if each["mountPath"] not in {"/sameshot", "/sameshot-hook"} - paths
    ] == before.get("volumeMounts", [])
    if note.get("command"):
        assert trainer["command"] == WRAPPED + before["command"]
        path: Any = [each for each in before.get("env", []) if each["name"] == "PYTHONPATH"]
        assert [each for each in trainer["env"] if each["name"] == "PYTHONPATH"] == path
    else:
        assert trainer.get("command") == before.get("command")
        (path,) = [each["value"] for each in trainer["env"] if each["name"] == "PYTHONPATH"]
        assert path.split(":")[0] == "/sameshot-hook"
    names = {each["name"] for each in before.get("env", [])}
    rest = [each for each in trainer["env"] if each["name"] in names]
    assert [each["name"] for each in rest] == [each["name"] for each in before.get("env", [])]
    assert [each for each in rest if each["name"] != "PYTHONPATH"] == [
        each for each in before.get("env", []) if each["name"] != "PYTHONPATH"
    ]
    for each in (trainer, before):
        for field in ("command", "env", "volumeMounts"):
            each.pop(field, None)
    marks = dict(plain.get("metadata", {}).get("labels", {}))
    assert once["metadata"]["labels"] == marks | {"sameshot.dev/arm": "enabled"}
    once["metadata"]["annotations"].pop("sameshot.dev/armed")
    assert once["metadata"]["annotations"] == plain.get("metadata", {}).get("annotations", {})
    once["spec"].pop("volumes", None)
    plain["spec"].pop("volumes", None)
    assert once["spec"] == plain["spec"]


garbage = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), text),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                [
                    "metadata", "spec", "containers", "name", "command", "args", "env", "value", "volumes",
                    "volumeMounts", "emptyDir", "resources", "limits", "labels", "annotations", "os", "mountPath",
                ]
            ),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=25,
)  # fmt: skip


@tried(
    st.dictionaries(st.sampled_from(["metadata", "spec"]), garbage), st.lists(garbage, max_size=2), few=30, many=1000
)
def test_whatever_stands_in_a_template_it_is_armed_or_refused(odd: Json, fields: list[Any]) -> None:
    spec = odd.get("spec")
    if isinstance(spec, dict) and fields:
        spec["containers"] = [{"name": f"c{i}"} | (f if isinstance(f, dict) else {}) for i, f in enumerate(fields)]
    try:
        once = arm_template(odd, ArmOptions(pythonpath="")).template
    except NotArmable:
        return
    assert arm_template(once).template == once
    disarm_template(once)


@tried(
    templates,
    decisions,
    st.sampled_from([None, False, True]),
    st.sampled_from([40, 10**6]),
    st.booleans(),
    few=8,
    many=120,
)
def test_a_file_in_any_style_says_what_was_armed_and_goes_back(
    plain: Json, options: ArmOptions, flow: bool | None, width: int, unicode: bool
) -> None:
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": {"template": plain}}
    written = yaml.safe_dump(job, default_flow_style=flow, width=width, allow_unicode=unicode, sort_keys=False)
    armed(plain, options)
    done = arm_text(written, options, hook=False)
    found = yaml.safe_load(done.text)
    env = {each["name"]: each.get("value") for each in container_of(found["spec"]["template"], "one").get("env", [])}
    env |= {each["name"]: each.get("value") for each in container_of(found["spec"]["template"], "two").get("env", [])}
    assert env["SAMESHOT_ARMED"] == "1"
    assert arm_text(done.text, hook=False).text == done.text
    assert yaml.safe_load(disarm_text(done.text).text) == job
    assert not [told for told in done.told if "in place" in told.text]
