"""How numbers and lists are written for people."""

from __future__ import annotations

from collections.abc import Sequence

_MOST_NAMES = 12


def ms(ns: float) -> str:
    """Nanoseconds in the unit that a person would choose, three digits at most."""
    size = abs(ns)
    if size < 0.5:
        return "0"
    if ns < 0:
        return f"−{ms(size)}"
    for unit, factor in (("s", 1_000_000_000), ("ms", 1_000_000), ("µs", 1_000)):
        if size >= factor * 0.9995:
            value = ns / factor
            digits = 0 if abs(value) >= 99.5 else 1 if abs(value) >= 9.95 else 2
            if unit == "s" or digits:
                return f"{value:.{digits}f}".rstrip("0").rstrip(".") + f" {unit}"
            return f"{value:.0f} {unit}"
    return f"{ns:.0f} ns"


def percent(share: float) -> str:
    """A share of one as percent; small ones keep a digit, and nothing above zero is shown as zero."""
    if share < 0:
        return f"−{percent(-share)}"
    value = 100 * share
    if not value:
        return "0 %"
    if value < 0.1:
        return "< 0.1 %"
    return f"{value:.1f} %" if value < 9.95 else f"{value:.0f} %"


def count(number: int, noun: str) -> str:
    """ "1 rank", "2 ranks"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def size(count: int) -> str:
    """Bytes, in units of 1024."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError


def uncapitalised(sentence: str) -> str:
    """As the rest of a longer sentence."""
    return sentence[:1].lower() + sentence[1:]


def some_of(names: Sequence[str]) -> str:
    """A few names, or the first of many and how many more there are."""
    if len(names) <= _MOST_NAMES:
        return ", ".join(names)
    return f"{', '.join(names[: _MOST_NAMES - 1])} and {len(names) - _MOST_NAMES + 1} more"
