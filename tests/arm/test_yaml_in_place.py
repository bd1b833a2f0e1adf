"""What arming does to the text of a file: what is said, is said by PyYAML, which is not what wrote it."""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from arm_lab import FIXTURES, is_armed

from sameshot.arm import NotArmable
from sameshot.arm.documents import GONE, read
from sameshot.arm.files import arm_text, disarm_text
from sameshot.arm.hookmap import hook_configmap
from sameshot.arm.kinds import arm_object
from sameshot.errors import UsageError

PATH = ("spec.roles.*.workers[*].pod",)
ARMABLE = sorted(
    path.stem for path in FIXTURES.glob("*.yaml") if path.stem not in ("trainjob", "mpijob", "rayjob", "workflow")
)


def text_of(name: str) -> str:
    return (FIXTURES / f"{name}.yaml").read_text()


def removed(before: str, after: str) -> list[str]:
    lines = difflib.ndiff(before.splitlines(), after.splitlines())
    return [line[2:] for line in lines if line.startswith("- ")]


@pytest.mark.parametrize("name", ARMABLE)
def test_a_file_says_what_the_object_was_armed_to(name: str) -> None:
    done = arm_text(text_of(name), template_paths=PATH, hook=False)
    plain = yaml.safe_load(text_of(name))
    known = () if name != "unknown" else PATH
    assert yaml.safe_load(done.text) == arm_object(plain, None, known).thing


@pytest.mark.parametrize("name", ARMABLE)
def test_a_file_is_armed_once_and_disarmed_to_the_same_bytes(name: str) -> None:
    plain = text_of(name)
    once = arm_text(plain, template_paths=PATH)
    assert arm_text(once.text, template_paths=PATH).text == once.text
    assert disarm_text(once.text, template_paths=PATH).text == plain


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("job", 0),
        ("jobset", 0),
        ("cronjob", 1),
        ("deployment", 1),
        ("pod", 2),
        ("pytorchjob", 1),
        ("volcanojob", 1),
        ("statefulset", 2),
        ("unknown", 1),
    ],
)
def test_only_lines_that_hold_a_changed_value_change(name: str, changed: int) -> None:
    """A list or mapping on one line grows in its line; everything else is lines that are added."""
    done = arm_text(text_of(name), template_paths=PATH, hook=False)
    assert len(removed(text_of(name), done.text)) == changed
    assert not [told for told in done.told if "in place" in told.text]


HEAD = """\
apiVersion: batch/v1
kind: Job
metadata: {name: j}
spec:
  template:
"""
ODD = {
    "comments everywhere": """\
# before
apiVersion: batch/v1   # version
kind: Job
# between
metadata:
  # in metadata
  name: j
spec:   # spec
  template:
    # in template
    spec:
      containers:
      # before the container
      - # behind the dash
        name: main   # name
        command:   # command
        # before the first word
        - torchrun   # word
        # after the first word
        - t.py
        # after the last word
      # after the container
    # after spec
# the end
""",
    "lists deeper and shallower": HEAD
    + """\
    spec:
      containers:
      -   name:   main
          command:
              -   torchrun
              -   t.py
          env:
          - {name: A, value: "1"}
      volumes:
              - name: data
                emptyDir: {}
""",
    "flow style": (
        "{apiVersion: batch/v1, kind: Job, metadata: {name: j}, spec: {template: {spec: {containers: ["
        '{name: main, command: ["torchrun", t.py], env: []}]}}}} # end\n'
    ),
    "flow over lines": HEAD
    + """\
    spec: {
      containers: [
        {name: main,   # the trainer
         command: [torchrun,
                   t.py],
        },
      ],
    }
""",
    "empty collections": HEAD
    + """\
    metadata: {}
    spec:
      volumes: []
      containers:
      - name: main
        command: [torchrun, t.py]
        env: []
        volumeMounts:
""",
    "a block scalar last": HEAD
    + """\
    spec:
      containers:
      - name: main
        command:
        - sh
        - -c
        - |-
          torchrun t.py   # not a comment


# a comment far away
""",
    "a kept block scalar last": HEAD
    + """\
    spec:
      containers:
      - name: main
        command:
        - sh
        - -c
        - |+
          torchrun t.py

""",
    "a folded scalar": HEAD
    + """\
    spec:
      containers:
      - command:
        - bash
        - -c
        - >
          torchrun
          t.py
        name: main
""",
    "many words on several lines": HEAD
    + """\
    spec:
      containers:
      - name: main
        command: [torchrun, "--a
          b", 'it''s', plain words]
        args:
        - plain
          over lines
""",
    "an anchor on the list": HEAD
    + """\
    spec:
      containers:
      - name: main
        command: [torchrun, t.py]
        resources: {limits: {nvidia.com/gpu: 1}}
        env: &env
        - {name: A, value: "1"}
      - name: other
        image: x
        env: *env
""",
    "an anchor on the labels": """\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: j
  labels: &labels
    app: x
spec:
  selector:
    matchLabels: *labels
  template:
    metadata:
      labels: *labels   # the same
    spec:
      containers:
      - name: main
        command: [torchrun, t.py]
""",
    "a merge": HEAD
    + """\
    spec:
      containers:
      - &base
        name: helper
        image: x
        env:
        - name: A
          value: "1"
      - <<: *base
        name: main
        command: [torchrun, t.py]
        resources: {limits: {nvidia.com/gpu: 1}}
""",
    "carriage returns": (
        HEAD
        + """\
    spec:
      containers:
      - name: main   # x
        command:
        - torchrun
        - t.py
"""
    ).replace("\n", "\r\n"),
    "no end of line at the end": HEAD + "    spec:\n      containers:\n      - name: main\n        command: [torchrun]",
    "other alphabets": HEAD
    + """\
    metadata:
      annotations:
        note: "größer 🚀"   # 何
    spec:
      containers:
      - name: main
        command: [torchrun, "größe=🚀"]
""",
    "keys that look like others": HEAD
    + """\
    metadata:
      annotations:
        "yes": "no"
        123: "1"
        2024-01-01: "2024-01-01"
        '=': a
    spec:
      containers:
      - name: main
        command: [torchrun]
""",
    "quoted keys and tags": HEAD
    + """\
    "spec":
      ? containers
      : - name: !!str main
          'command': [torchrun]
""",
}


@pytest.mark.parametrize("name", ODD)
def test_however_it_is_written_the_text_says_what_was_wanted_and_goes_back(name: str) -> None:
    plain = ODD[name]
    done = arm_text(plain, hook=False)
    assert is_armed(yaml.safe_load(done.text)["spec"]["template"])
    again = arm_text(done.text, hook=False)
    assert again.text == done.text
    back = disarm_text(done.text).text
    wanted = yaml.safe_load(plain)
    if name == "empty collections":  # null and an empty list are the same to an API server
        wanted["spec"]["template"]["spec"]["containers"][0]["volumeMounts"] = []
    assert yaml.safe_load(back) == wanted


@pytest.mark.parametrize("name", sorted(set(ODD) - {"flow over lines", "quoted keys and tags", "a merge"}))
def test_comments_anchors_and_line_ends_stay(name: str) -> None:
    plain = ODD[name]
    done = arm_text(plain, hook=False)
    assert not [told for told in done.told if "in place" in told.text]
    assert done.text.count("#") == plain.count("#")
    assert done.text.count("\r\n") == (done.text.count("\n") if "\r\n" in plain else 0)
    back = disarm_text(done.text).text
    if "anchor" not in name and name not in ("empty collections", "flow style"):  # an alias was written out; [] grew
        assert back == plain


def test_a_selector_that_shares_its_labels_by_an_anchor_keeps_them() -> None:
    said = yaml.safe_load(arm_text(ODD["an anchor on the labels"], hook=False).text)
    assert said["spec"]["selector"]["matchLabels"] == said["metadata"]["labels"] == {"app": "x"}
    assert said["spec"]["template"]["metadata"]["labels"] == {"app": "x", "sameshot.dev/arm": "enabled"}


def test_a_container_that_shares_its_environment_by_an_anchor_keeps_it() -> None:
    said = yaml.safe_load(arm_text(ODD["an anchor on the list"], hook=False).text)
    main, other = said["spec"]["template"]["spec"]["containers"]
    assert other == {"name": "other", "image": "x", "env": [{"name": "A", "value": "1"}]}
    assert len(main["env"]) > 1


def test_the_hook_comes_first_once_for_each_namespace_and_goes_again() -> None:
    service = "apiVersion: v1\nkind: Service\nmetadata: {name: s, namespace: elsewhere}\n"
    plain = "---\n".join([text_of("job"), service, text_of("jobset"), text_of("pytorchjob"), text_of("cronjob")])
    everyone = ["bert-", "llm", "mnist", "nightly"]
    done = arm_text(plain, only=everyone)
    things = list(yaml.safe_load_all(done.text))
    assert [(each["kind"], each["metadata"].get("namespace")) for each in things[:3]] == [
        ("ConfigMap", "team-a"),
        ("ConfigMap", "team-b"),
        ("ConfigMap", None),
    ]
    assert [each["kind"] for each in things[3:]] == ["Job", "Service", "JobSet", "PyTorchJob", "CronJob"]
    assert done.hooks == ("team-a", "team-b", None)
    assert arm_text(done.text).text == done.text
    assert disarm_text(done.text).text == plain
    mine = list(yaml.safe_load_all(arm_text(plain, only=everyone, namespace="mine").text))
    assert [each["metadata"].get("namespace") for each in mine[:3]] == ["team-a", "team-b", "mine"]


@pytest.mark.parametrize(
    "before", ["", "---\n", "# licence\n---\n", "# licence\n", "---\n# empty\n---\n", "\n\n", "\ufeff"]
)
def test_however_a_file_begins_the_hook_goes_in_front_and_out(before: str) -> None:
    plain = before + text_of("job")
    done = arm_text(plain)
    things = [each for each in yaml.safe_load_all(done.text) if each is not None]
    assert [each["kind"] for each in things] == ["ConfigMap", "Job"]
    assert arm_text(done.text).text == done.text
    assert disarm_text(done.text).text == plain.removeprefix("\ufeff")


def test_an_older_hook_in_the_file_is_replaced() -> None:
    done = arm_text(text_of("job"))
    stale = done.text.replace("def install()", "def install_old()")
    assert stale != done.text
    assert arm_text(stale).text == done.text


def test_documents_that_are_no_workloads_are_not_touched_at_all() -> None:
    other = "kind:   Service\napiVersion: v1\nmetadata: { name: s }   # odd    spacing\n"
    text = arm_text(f"{other}---\n{text_of('job')}---\n{other}").text
    assert text.count(other) == 2


def test_a_list_of_objects_is_armed_inside() -> None:
    items = [yaml.safe_load(text_of("job")), {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}}]
    plain = yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": items}, sort_keys=False)
    done = arm_text(plain)
    hook, found = yaml.safe_load_all(done.text)
    assert hook == hook_configmap("team-a")
    assert found["items"] == [arm_object(items[0]).thing, items[1]]
    assert disarm_text(done.text).text == plain


@pytest.mark.parametrize("indent", [None, 2, 4])
def test_json_stays_json(indent: int | None) -> None:
    job = yaml.safe_load(text_of("job"))
    plain = json.dumps(job, indent=indent) + "\n"
    done = arm_text(plain)
    stream = read(done.text)
    assert stream.things == [hook_configmap("team-a"), arm_object(job).thing]
    assert arm_text(done.text).text == done.text
    assert disarm_text(done.text).text == plain
    assert ("\n  " in done.text) == (indent is not None)


def test_every_refusal_of_a_file_is_told_at_once_with_its_document() -> None:
    plain = "---\n".join([text_of("mpijob"), text_of("job"), text_of("rayjob")])
    with pytest.raises(
        NotArmable, match=r"(?s)^Nothing was changed\. document 1, MPIJob horovod: .*document 3, RayJob tune: "
    ):
        arm_text(plain)


@pytest.mark.parametrize("text", ["", "---\n", "# nothing\n", "apiVersion: v1\nkind: Service\nmetadata: {name: s}\n"])
def test_a_file_without_any_workload_is_refused(text: str) -> None:
    with pytest.raises(NotArmable, match="no workload"):
        arm_text(text)


@pytest.mark.parametrize("text", ["a: [", "{", "a: *nothing\n", "kind: Job\n\tx: y\n", "a: !!python/object:x {}\n"])
def test_what_is_no_yaml_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not YAML"):
        arm_text(text)


@pytest.mark.parametrize("text", ["just words\n", "- a\n- b\n", "a: 1\n", "3\n"])
def test_what_is_no_object_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(UsageError, match="document 2 is no Kubernetes object"):
        arm_text(f"{text_of('job')}---\n{text}")


def test_what_cannot_be_changed_in_place_is_written_anew_and_told() -> None:
    done = arm_text(ODD["quoted keys and tags"], hook=False)
    told = [each for each in done.told if "in place" in each.text]
    assert [each.where for each in told] == ["document 1"]


def test_a_document_can_be_taken_out_of_the_middle(tmp_path: Path) -> None:
    stream = read("a: 1\n---\nb: 2   # two\n---\nc: 3\n")
    new: list[Any] = [stream.things[0], GONE, {"c": 4}]
    assert stream.with_changes(new, ()).text == "a: 1\n---\nc: 4\n"


def test_workloads_without_an_accelerator_are_left_where_others_ask_for_one() -> None:
    """A dashboard beside the job is not armed, and need not be armable."""
    plain = "---\n".join([text_of("cronjob"), text_of("job")])
    done = arm_text(plain)
    things = {each["kind"]: each for each in yaml.safe_load_all(done.text)}
    assert things["CronJob"] == yaml.safe_load(text_of("cronjob"))
    assert is_armed(things["Job"]["spec"]["template"])
    assert [each.where for each in done.told if "no accelerator" in each.text] == ["document 1, CronJob nightly"]
    assert list(done.hooks) == ["team-a"]
    assert arm_text(done.text).text == done.text


@pytest.mark.parametrize("only", ["nightly", "CronJob/nightly", "cronjob/nightly"])
def test_a_person_may_say_which_ones(only: str) -> None:
    plain = "---\n".join([text_of("cronjob"), text_of("job"), text_of("mpijob")])
    done = arm_text(plain, only=[only], hook=False)
    cron, job, _ = yaml.safe_load_all(done.text)
    assert is_armed(cron["spec"]["jobTemplate"]["spec"]["template"])
    assert job == yaml.safe_load(text_of("job"))
    assert disarm_text(done.text, only=["bert-"]).text == done.text
    assert disarm_text(done.text, only=[only]).text == plain


def test_the_hook_stays_where_only_some_are_disarmed() -> None:
    done = arm_text("---\n".join([text_of("job"), text_of("jobset")]))
    some = list(yaml.safe_load_all(disarm_text(done.text, only=["llm"]).text))
    assert [each["kind"] for each in some] == ["ConfigMap", "ConfigMap", "Job", "JobSet"]
    assert some[3] == yaml.safe_load(text_of("jobset"))


def test_what_is_armed_counts_with_or_without_an_accelerator() -> None:
    plain = "---\n".join([text_of("cronjob"), text_of("job")])
    done = arm_text(plain, only=["nightly", "bert-"])
    again = arm_text(done.text)
    assert again.text == done.text
    assert again.templates == 2
    assert not [each for each in again.told if "no accelerator" in each.text]


def test_a_name_that_is_not_there_is_refused() -> None:
    for act in (arm_text, disarm_text):
        with pytest.raises(NotArmable, match="nothing named Job/other"):
            act(text_of("job"), only=["Job/other"])


def test_a_template_whose_label_forbids_it_is_left() -> None:
    forbidden = text_of("job").replace("app: bert", "sameshot.dev/arm: disabled")
    done = arm_text(f"{forbidden}---\n{text_of('jobset')}")
    assert forbidden in done.text
    assert "disabled" in done.told[0].text
    with pytest.raises(NotArmable, match=r"no workload.*disabled"):
        arm_text(forbidden)


@pytest.mark.parametrize("word", ["12:30:45", "1:30", "-1:59", "190:20:30.15", "2026-11-30", "="])
def test_what_only_older_yaml_takes_for_a_number_or_a_date_is_text(word: str) -> None:
    """As Kubernetes' reader has it; 12:30:45 was 45045 in YAML 1.1."""
    plain = (
        "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  containers:\n"
        f"  - name: main\n    image: x\n    command: [python, t.py]\n    args: [--limit, {word}]\n"
    )
    done = arm_text(plain, hook=False)
    assert f"args: [--limit, {word}]\n" in done.text
    assert disarm_text(done.text).text == plain


@pytest.mark.parametrize(
    ("word", "value"),
    [("12", 12), ("0x1f", 31), ("-1.5", -1.5), ("1_000", 1000), (".inf", float("inf")), ("yes", True)],
)
def test_numbers_and_booleans_are_still_what_they_were(word: str, value: Any) -> None:
    found = read(f"kind: Pod\nx: {word}\n").things[0]["x"]
    assert (type(found), found) == (type(value), value)


@pytest.mark.parametrize(
    "name", ["1e3", "0o17", "1_000", "12", "0x1f", "y", "n", "yes", "null", "1.5", "3:25", "a", "on"]
)
def test_a_name_that_looks_like_something_else_stays_a_name(name: str) -> None:
    """Kubernetes' reader knows numbers and booleans that PyYAML doesn't."""
    job = {"name": name, "image": "x", "command": ["torchrun"]}
    for flow in (False, True):
        plain = yaml.safe_dump(
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [job]}}
        )
        text = arm_text(
            plain if not flow else json.dumps(yaml.safe_load(plain)).replace('"kind"', "kind"), hook=False
        ).text
        assert yaml.safe_load(text)["spec"]["containers"][0]["env"][-2] == {"name": "SAMESHOT_CONTAINER", "value": name}
        if name not in ("a", "on", "yes", "null"):
            assert f"value: {name}\n" not in text
