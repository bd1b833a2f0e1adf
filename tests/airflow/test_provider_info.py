"""Airflow sees the provider, and reading it costs next to nothing."""

from __future__ import annotations

import importlib
import importlib.util
import json
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace

import jsonschema
import pytest
from heavy import HEAVY

import sameshot_airflow
from sameshot import __version__
from sameshot_airflow.get_provider_info import EXTRA_FIELDS, get_provider_info

MODULES = sorted(module.name for module in pkgutil.walk_packages(sameshot_airflow.__path__, prefix="sameshot_airflow."))
FORM = {
    "results_uri", "report_base_url", "archive_base_url", "service_account", "context", "kubeconfig",
}  # fmt: skip


def listed_modules() -> set[str]:
    info = get_provider_info()
    kinds = ("operators", "sensors", "hooks", "triggers")
    return {module for kind in kinds for group in info[kind] for module in group["python-modules"]}


def named_things() -> Iterator[str]:
    info = get_provider_info()
    yield from info["extra-links"]
    for each in info["task-decorators"]:
        yield each["class-name"]
    for each in info["connection-types"]:
        yield each["hook-class-name"]
    for each in info["asset-uris"]:
        yield each["handler"]


def test_what_is_told_fits_the_schema_of_airflow() -> None:
    schema = json.loads(files("airflow").joinpath("provider_info.schema.json").read_text())
    jsonschema.validate(get_provider_info(), schema)


def test_connection_fields_fit_the_schema_of_providers() -> None:
    """The schema that Airflow applies at run time leaves them open; this one, for its own providers, does not."""
    schema = json.loads(files("airflow").joinpath("provider.yaml.schema.json").read_text())
    (connection,) = get_provider_info()["connection-types"]
    jsonschema.validate(connection, schema["properties"]["connection-types"]["items"])


def test_the_entry_point_leads_there() -> None:
    (found,) = [
        each for each in entry_points(group="apache_airflow_provider") if each.dist and each.dist.name == "sameshot"
    ]
    assert found.load() is get_provider_info
    assert get_provider_info()["package-name"] == "sameshot"
    assert get_provider_info()["versions"] == [__version__]


@pytest.mark.parametrize("path", [*named_things()])
def test_everything_that_is_named_is_there(path: str) -> None:
    module, _, name = path.rpartition(".")
    assert callable(getattr(importlib.import_module(module), name))


def test_every_operator_sensor_hook_and_trigger_is_listed() -> None:
    kinds = ("operators", "sensors", "hooks", "triggers")
    there = {
        name
        for name in MODULES
        if (parts := name.split("."))[1] in kinds
        and len(parts) > 2
        and not parts[2].startswith("_")
        and parts[2] != "base"
    }
    assert listed_modules() == there


def test_the_providers_manager_has_the_provider() -> None:
    from airflow.providers_manager import ProvidersManager

    assert ProvidersManager().providers["sameshot"].version == __version__
    assert {name for name in ProvidersManager().extra_links_class_names if name.startswith("sameshot_airflow.")} == set(
        get_provider_info()["extra-links"]
    )


def test_tasks_have_the_decorator_and_the_hook() -> None:
    from airflow.sdk import task
    from airflow.sdk.providers_manager_runtime import ProvidersManagerTaskRuntime

    from sameshot_airflow.decorators.capture import sameshot_capture_task
    from sameshot_airflow.hooks.sameshot import SameshotHook

    assert task.sameshot_capture is sameshot_capture_task
    hook = ProvidersManagerTaskRuntime().hooks["sameshot"]
    assert hook is not None
    assert hook.hook_class_name == f"{SameshotHook.__module__}.{SameshotHook.__name__}"
    assert hook.connection_id_attribute_name == "sameshot_conn_id"
    assert hook.connection_testable


def test_a_connection_gives_the_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.sdk import BaseHook

    monkeypatch.setenv("AIRFLOW_CONN_MINE", '{"conn_type": "sameshot", "host": "trainer-0", "port": 7000}')
    hook = BaseHook.get_hook("mine")
    assert type(hook).__name__ == "SameshotHook"
    assert hook.address() == "trainer-0:7000"


@pytest.mark.full
def test_the_form_of_a_connection_is_what_the_user_interface_asks_for() -> None:
    """Both ways to describe it come from one place; this is what the API answers, in a process of its own (it puts
    stand-ins for wtforms among the modules)."""
    code = """
from airflow.api_fastapi.core_api.services.ui.connections import HookMetaService
(found,) = [each for each in HookMetaService.hook_meta_data() if each.connection_type == "sameshot"]
print(found.model_dump_json())
"""
    form = json.loads(run([sys.executable, "-c", code]).splitlines()[-1])
    assert form["hook_name"] == "sameshot (PyTorch profiling)"
    standard = form["standard_fields"]
    assert standard["host"]["title"] == "Coordinator"
    assert "local" in standard["host"]["placeholder"]
    assert standard["login"]["title"] == "Caller"
    assert standard["password"]["hidden"]
    assert not standard["url_schema"]["hidden"]
    assert standard["url_schema"]["title"] == "Namespace"
    assert "kube" in standard["url_schema"]["placeholder"]
    assert not standard["port"]["hidden"]
    extra = form["extra_fields"]
    assert set(extra) == FORM
    for name, (label, text) in EXTRA_FIELDS.items():
        assert extra[name]["schema"] == {"title": label, "type": ["string", "null"]}
        assert extra[name]["description"] == text


class TestTheFormOfOlderAirflows:
    """3.1 asks the hook, with classes of its own in the place of wtforms: those that it still has in 3.3."""

    def test_it_has_the_same_fields(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from airflow.api_fastapi.core_api.services.ui.connections import HookMetaService

        from sameshot_airflow.hooks.sameshot import SameshotHook

        validators = SimpleNamespace(Optional=HookMetaService.MockOptional)
        wtforms = SimpleNamespace(StringField=HookMetaService.MockStringField, validators=validators)
        monkeypatch.setitem(sys.modules, "wtforms", wtforms)  # type: ignore[arg-type]
        monkeypatch.setitem(sys.modules, "wtforms.validators", validators)  # type: ignore[arg-type]
        fields = {name: field.param.dump() for name, field in SameshotHook.get_connection_form_widgets().items()}
        assert {
            name: (field["schema"]["title"], field["description"]) for name, field in fields.items()
        } == EXTRA_FIELDS
        assert {tuple(field["schema"]["type"]) for field in fields.values()} == {("string", "null")}

    def test_it_behaves_the_same(self) -> None:
        from sameshot_airflow.hooks.sameshot import SameshotHook

        (connection,) = get_provider_info()["connection-types"]
        newer, older = connection["ui-field-behaviour"], SameshotHook.get_ui_field_behaviour()
        assert {name.replace("-", "_"): value for name, value in newer.items()} == older

    def test_it_is_empty_where_wtforms_is_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from sameshot_airflow.hooks.sameshot import SameshotHook

        monkeypatch.setitem(sys.modules, "wtforms", None)
        assert SameshotHook.get_connection_form_widgets() == {}


def test_no_module_uses_what_goes_away() -> None:
    """Imported in a process of its own, so that every import really happens under these filters."""
    code = f"""
import warnings
from airflow.exceptions import AirflowProviderDeprecationWarning, RemovedInAirflow4Warning
from airflow.utils.deprecation_tools import DeprecatedImportWarning
for category in (AirflowProviderDeprecationWarning, RemovedInAirflow4Warning, DeprecatedImportWarning):
    warnings.simplefilter("error", category)
warnings.filterwarnings("error", category=DeprecationWarning, module="sameshot_airflow")
import importlib
for name in {MODULES!r}:
    importlib.import_module(name)
print("done")
"""
    assert run([sys.executable, "-c", code]).splitlines()[-1] == "done"
    assert len(MODULES) > 10


def test_a_dag_file_that_uses_everything_imports_nothing_heavy() -> None:
    """A scheduler parses DAG files all day: grpc, numpy, pyarrow and torch are for those who capture and analyse.

    Airflow itself may bring one of them in; so it is what *our* modules add that counts.
    """
    code = f"""
import json, sys
import airflow.sdk, airflow.triggers.base
from airflow.sdk import DAG, BaseHook, BaseOperator, BaseOperatorLink, BaseSensorOperator, task, Asset, AssetAlias
import airflow.sdk.exceptions, airflow.exceptions
before = set(sys.modules)
import importlib
for name in {MODULES!r}:
    importlib.import_module(name)
added = set(sys.modules) - before
deep = sorted(name for name in sys.modules if name.startswith("sameshot."))
print(json.dumps({{"added": sorted(added), "deep": deep}}))
"""
    told = json.loads(run([sys.executable, "-c", code]).splitlines()[-1])
    assert not set(HEAVY) & set(told["added"])
    assert not [
        name for name in told["deep"] if name.startswith(("sameshot.client", "sameshot.analysis", "sameshot.api"))
    ]
    assert "sameshot.errors" in told["deep"]


@pytest.mark.parametrize("name", HEAVY)
def test_what_is_heavy_exists(name: str) -> None:
    """A misspelt name would never be found among the imported ones."""
    assert importlib.util.find_spec(name) is not None


@pytest.mark.full
class TestTheCommandLineOfAirflow:
    def test_it_lists_the_provider(self) -> None:
        (row,) = [row for row in airflow("providers", "list") if row["package_name"] == "sameshot"]
        assert row["version"] == __version__

    def test_it_tells_about_the_provider(self) -> None:
        told = run([AIRFLOW, "providers", "get", "sameshot", "--full", "--output", "json"])
        assert "sameshot_airflow.hooks.sameshot.SameshotHook" in told

    def test_it_lists_the_hook(self) -> None:
        (row,) = [row for row in airflow("providers", "hooks") if row["connection_type"] == "sameshot"]
        assert row["class"] == "sameshot_airflow.hooks.sameshot.SameshotHook"
        assert row["conn_id_attribute_name"] == "sameshot_conn_id"

    def test_it_lists_links_and_form_fields(self) -> None:
        links = {row["extra_link_class_name"] for row in airflow("providers", "links")}
        assert set(get_provider_info()["extra-links"]) <= links
        fields = {row["connection_parameter_name"] for row in airflow("providers", "widgets")}
        assert {f"extra__sameshot__{name}" for name in FORM} <= fields

    def test_its_info_names_the_provider(self) -> None:
        rows = [line.split() for line in run([AIRFLOW, "info"]).splitlines()]
        assert ["sameshot", "|", __version__] in rows  # in its table of providers


AIRFLOW = str(Path(sys.executable).with_name("airflow"))


def airflow(*arguments: str) -> list[dict[str, str]]:
    told = run([AIRFLOW, *arguments, "--output", "json"])
    rows: list[dict[str, str]] = json.loads(told[told.index("[") :])
    return rows


def run(argv: list[str]) -> str:
    """What it prints on stdout; a failure shows all of it."""
    done = subprocess.run(argv, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, f"{argv}\n{done.stdout}\n{done.stderr}"
    return done.stdout
