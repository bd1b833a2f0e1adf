"""Pieces of sentences."""

from __future__ import annotations

from collections.abc import Sequence

_MOST_NAMES = 12


def uncapitalised(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


def some_of(names: Sequence[str]) -> str:
    """A few names, or the first of many and how many more there are."""
    if len(names) <= _MOST_NAMES:
        return ", ".join(names)
    return f"{', '.join(names[: _MOST_NAMES - 1])} and {len(names) - _MOST_NAMES + 1} more"
