"""The terminal, or the pipe, as `rich` draws on it. Imported by whoever draws, since `rich` takes time to load."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from sameshot.cli.shown import shown


class Screen(Console):
    """Each plain text on it, printed or in a cell, is what it is: no markup, no emoji names, no control characters."""

    def __init__(self, **given: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **given)

    def render_str(self, text: str, **given: Any) -> Text:
        return super().render_str(shown(text), **given)
