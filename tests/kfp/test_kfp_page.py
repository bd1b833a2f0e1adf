"""docs/kfp.md says what the components take and give, and its pipelines are pipelines."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from kfp_containers import DEPLOY

from sameshot.steps.image import IMAGE
from sameshot_kfp.components import RETRIED_FOR
from sameshot_kfp.interface import STEPS
from sameshot_kfp.pipelines import Profiled

PAGE = (Path(__file__).parents[2] / "docs" / "kfp.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("at", range(len(EXAMPLES)))
def test_every_example_compiles(at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {}
    if at == 1:  # goes on where the first one ended
        exec(compile(EXAMPLES[0], "docs/kfp.md", "exec", dont_inherit=True), scope)
    program = EXAMPLES[at].replace("profile_pipeline(Components.local())(", "dict(")  # would capture a job
    exec(compile(program, "docs/kfp.md", "exec", dont_inherit=True), scope)
    assert "sameshot_kfp" in program or at == 1


def test_the_table_of_components_names_all_their_outputs() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", PAGE[PAGE.index("## Components") :], re.MULTILINE))
    for name, step in STEPS.items():
        said = re.findall(r"`(\w+)`", rows[name])
        assert said == [each.name for each in (*step.outputs, *step.files)], name


def test_the_page_names_the_files_and_outputs_there_are() -> None:
    for path in DEPLOY.glob("*.yaml"):
        assert f"`{path.name}`" in PAGE
    for name in Profiled._fields:
        assert f"`{name}`" in PAGE
    assert f"`{IMAGE}`" in PAGE


def test_its_image_is_run_by_a_user_who_is_not_root_and_is_named_so_that_the_cache_can_tell() -> None:
    (file,) = re.findall(r"podman build -f (\S+) -t \S+:\d", PAGE)
    image = (Path(__file__).parents[2] / file).read_text()
    (user,) = re.findall(r"^USER (\d+)$", image, re.MULTILINE)
    assert int(user) > 0
    assert "by digest, or by a tag that is never moved" in PAGE
    for name in re.findall(r"\S*sameshot/steps\S*", PAGE):
        assert re.search(r":\d+\.\d+\.\d+", name), name


def test_it_says_how_long_all_attempts_have_together() -> None:
    assert int(RETRIED_FOR.removesuffix("s")) == 24 * 3600
    assert "The shipped YAML says 24 h." in PAGE


def test_links_within_the_documentation_lead_somewhere() -> None:
    docs = Path(__file__).parents[2] / "docs"
    for target, anchor in re.findall(r"\]\((?!https:)([^)#]*)#?([^)]*)\)", PAGE):
        path = (docs / target) if target else docs / "kfp.md"
        assert path.exists(), target
        if anchor:
            heads = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
            slugs = {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}
            assert anchor in slugs, (target, anchor)
