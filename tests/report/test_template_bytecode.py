"""Templates are compiled once: the bytecode counts for the very template only, and nothing depends on it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from jinja2 import Environment, FileSystemLoader

from sameshot.analysis.report.bytecode import CompiledTemplates


class Counting(Environment):
    """Counts how often a template is really compiled."""

    compiled = 0

    def _generate(self, *arguments, **options):  # type: ignore[no-untyped-def]
        type(self).compiled += 1
        return super()._generate(*arguments, **options)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "bytecode"))
    templates = tmp_path / "templates"
    templates.mkdir()
    (templates / "a.html.j2").write_text("one {{ x }}")
    Counting.compiled = 0
    return templates


def render(folder: Path, compiled_by: tuple[str, ...] = ()) -> str:
    environment = Counting(loader=FileSystemLoader(folder), bytecode_cache=CompiledTemplates(compiled_by))
    return environment.get_template("a.html.j2").render(x=1)


def kept(folder: Path) -> list[Path]:
    return [path for path in (folder.parent / "bytecode").rglob("*") if path.is_file()]


def test_a_template_is_compiled_for_the_first_page_only(folder: Path) -> None:
    assert [render(folder), render(folder), render(folder)] == ["one 1"] * 3
    assert Counting.compiled == 1
    assert len(kept(folder)) == 1
    assert not list(folder.rglob("*.pyc"))


def test_a_changed_template_is_compiled_again(folder: Path) -> None:
    render(folder)
    (folder / "a.html.j2").write_text("two {{ x }}")
    assert [render(folder), render(folder)] == ["two 1"] * 2
    assert Counting.compiled == 2


def test_what_compiles_differently_does_not_share_bytecode(folder: Path, tmp_path: Path) -> None:
    options = tmp_path / "options.py"
    options.write_text("1")
    render(folder, (str(options),))
    options.write_text("22")
    render(folder, (str(options),))
    assert Counting.compiled == 2


def test_damaged_bytecode_is_replaced(folder: Path) -> None:
    render(folder)
    [path] = kept(folder)
    whole = path.read_bytes()
    for damaged in (b"", b"nonsense", whole[: len(whole) // 2]):
        path.write_bytes(damaged)
        assert render(folder) == "one 1"
        assert path.read_bytes() == whole
    assert len(kept(folder)) == 1


def test_without_permission_to_keep_bytecode_the_page_is_the_same(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "pycache_prefix", "/proc/nowhere")
    assert render(folder) == "one 1"
    monkeypatch.setattr(sys, "pycache_prefix", str(folder.parent / "bytecode"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert render(folder) == "one 1"
    assert not kept(folder)
    assert Counting.compiled == 2
