"""docs/airflow.md says what the operators and the connection really take, and its DAGs are DAGs."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import BaseOperator

from sameshot_airflow.get_provider_info import EXTRA_FIELDS, get_provider_info
from sameshot_airflow.operators.analyze import (
    SameshotAnalyzeOperator,
    SameshotAnalyzeRankOperator,
    SameshotReduceOperator,
)
from sameshot_airflow.operators.base import FinishedCaptureOperator
from sameshot_airflow.operators.capture import SameshotCaptureOperator
from sameshot_airflow.operators.compare import SameshotCompareOperator

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "airflow.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def table(after: str) -> list[list[str]]:
    """The rows of the first table after this text, without its head."""
    lines = PAGE[PAGE.index(after) :].splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("|"))
    body: list[list[str]] = []
    for line in lines[first + 2 :]:
        if not line.startswith("|"):
            break
        body.append([cell.strip() for cell in line.strip("|").split(" | ")])
    return body


def options(operator: type[BaseOperator]) -> dict[str, Any]:
    """The options that our classes add to BaseOperator's, with their defaults."""
    found: dict[str, Any] = {}
    for each in operator.__mro__:
        if each.__module__.startswith("sameshot_airflow.") and "__init__" in vars(each):
            signature = inspect.signature(inspect.unwrap(vars(each)["__init__"]))
            for name, parameter in signature.parameters.items():
                if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                    found.setdefault(name, parameter.default)
    return found


def test_a_captures_options_are_listed_with_their_defaults() -> None:
    listed: dict[str, Any] = {}
    for names, default, _ in table("**`SameshotCaptureOperator`**"):
        for name in re.findall(r"`(\w+)`", names):
            listed[name] = ast.literal_eval(default.strip("`"))
            assert (name in SameshotCaptureOperator.template_fields) == ("°" not in names), name
    assert listed == options(SameshotCaptureOperator)


@pytest.mark.parametrize(
    "operator",
    [SameshotAnalyzeRankOperator, SameshotReduceOperator, SameshotAnalyzeOperator, SameshotCompareOperator],
)
def test_the_other_operators_options_are_listed(operator: type[FinishedCaptureOperator]) -> None:
    (row,) = [row for row in table("And their own:") if row[0].startswith(f"`{operator.__name__}`")]
    listed = {}
    for name, mark, default in re.findall(r"`(\w+)`( °)?(?: \((`[^)]*)\))?", row[1]):
        listed[name] = default
        assert (name in operator.template_fields) == (not mark), name
    own = {name: value for name, value in options(operator).items() if name not in options(FinishedCaptureOperator)}
    assert set(listed) == set(own)
    for name, default in listed.items():
        if default:
            first = re.findall(r"`([^`]*)`", default)[0]
            assert str(own[name]) == first.strip('"'), name
    links = {f"*{link.name}*" for link in operator.operator_extra_links}
    assert links == set(re.findall(r"\*\w+\*", row[2]))


def test_what_all_of_them_take_is_listed() -> None:
    said = PAGE[PAGE.index("**On a finished capture**") : PAGE.index("And their own:")]
    assert set(options(FinishedCaptureOperator)) <= set(re.findall(r"`(\w+)`", said))


def test_every_field_of_the_connection_is_explained() -> None:
    said = " ".join(row[0] for row in table("## The connection"))
    assert set(re.findall(r"`extra\.(\w+)`", said)) == set(EXTRA_FIELDS)
    (connection,) = get_provider_info()["connection-types"]
    for label in connection["ui-field-behaviour"]["relabeling"].values():
        assert label in said


def test_the_metadata_of_an_asset_event_is_listed() -> None:
    from sameshot.steps.results import CaptureResult
    from sameshot_airflow.assets import event_extra

    said = PAGE[PAGE.index("with the manifest as metadata:") : PAGE.index("Another DAG can wait")]
    assert set(re.findall(r"`(\w+)`", said)) == set(event_extra(CaptureResult()))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda text: re.findall(r'DAG\("(\w+)"', text)[0])
def test_each_example_is_a_dag_file(example: str, tmp_path: Path) -> None:
    from airflow.dag_processing.dagbag import DagBag

    file = tmp_path / "example.py"
    file.write_text(example)
    bag = DagBag(str(file), bundle_path=tmp_path, bundle_name="examples")
    assert not bag.import_errors
    assert list(bag.dags) == re.findall(r'DAG\("(\w+)"', example)


def test_every_link_within_the_repository_leads_somewhere() -> None:
    targets = [target for target in re.findall(r"\]\(([^)#]+)", PAGE) if not target.startswith("http")]
    assert "history.md" in targets
    for target in targets:
        assert (DOCS / target).exists(), target
    titles = [line[3:].lower() for line in PAGE.splitlines() if line.startswith("## ")]
    anchors = {re.sub(r"[^\w -]", "", title).replace(" ", "-") for title in titles}
    assert set(re.findall(r"\]\(#([\w-]+)\)", PAGE)) <= anchors
