"""From blocks to one HTML file that needs nothing else.

The only script is ours, embedded, and the page's own policy names it by its hash: nothing that a trace carries can run,
and nothing can be fetched. Everything can be read without it; it only sorts, filters, reveals and points.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from sameshot.analysis.report.blocks import Page
from sameshot.analysis.report.bytecode import CompiledTemplates

# Control characters, the marks that turn the direction of text around or take no room, and halves of surrogate pairs
# (which UTF-8 can't hold): what a person sees must be what is there.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)


def visible(text: str) -> str:
    """The text with every character that can't be seen, or that changes how others are seen, spelled out."""
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def page(content: Page) -> str:
    """The whole page as text."""
    environment = _environment()
    script = _source("script.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template("page.html.j2").render(
        page=content, style=Markup(_source("style.css")), script=Markup(script), digest=digest
    )


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("sameshot.analysis.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        bytecode_cache=CompiledTemplates(compiled_by=(__file__,)),
    )
    environment.filters.update(pc=_pc)
    environment.globals.update(kind=lambda block: type(block).__name__.lower())
    return environment


def _finalize(value: Any) -> Any:
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _pc(share: float) -> str:
    """A share as a CSS percentage."""
    return f"{100 * share:.2f}".rstrip("0").rstrip(".")


@functools.cache
def _source(name: str) -> str:
    loader = _environment().loader
    assert loader is not None
    return loader.get_source(_environment(), name)[0].strip() + "\n"


__all__ = ["Page", "page", "visible"]
