"""docs/arming.md says what is so: its tables are held to the code and to docs/launchers.md."""

from __future__ import annotations

import re
from pathlib import Path

import typer
import yaml
from arm_lab import SCRIPT, container, is_armed, template

from sameshot.arm import arm_template, labels, options_in
from sameshot.arm.hookmap import hook_files
from sameshot.arm.kinds import SUPPORTED, UNSUPPORTED
from sameshot.cli.main import application

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"
PAGE = (DOCS / "arming.md").read_text()


def table(page: str, first: str) -> list[list[str]]:
    """The rows of the table whose first heading this is."""
    _, _, rest = page.partition(f"\n| {first} |")
    assert rest, f"there is no table {first!r}"
    rows = rest.split("\n\n", 1)[0].split("\n")[2:]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]


def test_its_launchers_are_those_of_the_launcher_page_with_the_same_support() -> None:
    support = {row[0]: row[2].replace("**", "") for row in table((DOCS / "launchers.md").read_text(), "launcher")}
    ours = {row[0]: row[1] for row in table(PAGE, "launcher")}
    assert list(ours) == list(support)
    for launcher, claim in ours.items():
        stated = support[launcher]
        claims = {"tested": "tested" in stated.split(".")[0], "same rule": stated.endswith("same rule")}
        assert claims.get(claim, stated.startswith(claim)), f"{launcher}: {claim!r} here, {stated!r} there"


def test_its_kinds_are_those_that_are_armed_at_the_paths_that_are_used() -> None:
    rows = {(row[1].replace("core", ""), row[0].split(" (")[0]): row[2].strip("`") for row in table(PAGE, "kind")}
    assert rows == {key: kind.paths[0] or "the pod itself" for key, kind in SUPPORTED.items()}


def test_every_kind_that_is_not_supported_is_named() -> None:
    named = " ".join(row[0] for row in table(PAGE, "not armed by `sameshot arm`"))
    for group, kind in UNSUPPORTED:
        assert kind in named or (group == "argoproj.io" and "the other kinds of Argo Workflows" in named), kind


def test_every_option_and_annotation_is_on_the_page() -> None:
    group = typer.main.get_command(application(["arm"]))
    command = group.commands.get("arm", group) if hasattr(group, "commands") else group
    names = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    missing = {name for name in names if name.startswith("--") and name not in PAGE}
    assert missing <= {"--help", "--file", "--hook", "--namespace"} | {"--install-completion", "--show-completion"}
    keys = [value for value in vars(labels).values() if isinstance(value, str) and value.startswith("sameshot.dev/")]
    assert len(keys) == 9
    assert [key for key in keys if key not in PAGE] == []


def test_the_words_and_sizes_on_it_are_the_real_ones() -> None:
    assert f"`/bin/sh -c '{SCRIPT}' --`" in PAGE
    size = sum(len(text.encode()) for text in hook_files().values())
    (kilobytes,) = re.findall(r"standard-library Python, (\d+) kB", PAGE)
    assert 0.85 < int(kilobytes) * 1000 / size < 1.15


def test_its_example_for_the_webhook_is_read_as_it_says() -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    pod = template(container(command=["torchrun", "t.py"])) | yaml.safe_load(example)
    assert options_in(pod).local_world_size == 8
    assert is_armed(arm_template(pod, options_in(pod)).template)
