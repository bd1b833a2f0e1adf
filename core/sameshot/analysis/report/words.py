"""Names of parts and causes for people, and cells with a rounded number for the eye and the exact one beside it."""

from __future__ import annotations

import math

from sameshot.analysis.report.blocks import Cell, Column, Legend
from sameshot.analysis.results import Cause, Part, StepMethod
from sameshot.analysis.text import ms, percent, size

PARTS: dict[str, str] = {
    Part.OPERATORS: "operators",
    Part.COMMUNICATION: "communication",
    Part.DATA_WAIT: "waiting for data",
    Part.RUNTIME: "CUDA calls",
    Part.BACKWARD_THREAD: "waiting for the backward thread",
    Part.UNTRACED: "untraced",
}

DEVICE_PARTS: dict[str, str] = {
    "compute": "computing",
    "overlapped": "computing and communicating",
    "communication": "only communicating",
    "memory": "only copying",
    "idle": "idle",
}

CAUSES: dict[str, str] = {
    Cause.OPERATORS: "slower operators",
    Cause.UNTRACED: "untraced time",
    Cause.COMPUTE: "computing for longer",
    Cause.HOST: "its host was late",
    Cause.DATA_WAIT: "waiting for data",
    Cause.OTHER_GROUP: "waiting in another group",
    Cause.INHERITED: "late before the window",
    Cause.UNKNOWN: "unknown",
}

STEPS: dict[str, str] = {
    StepMethod.PROFILER_STEP: "ProfilerStep marks",
    StepMethod.OPTIMIZER: "optimizer steps",
    StepMethod.REPEATING: "the repeating sequence",
    StepMethod.UNKNOWN: "no",
}

PAUSES: dict[str, str] = {"gc": "garbage collection", "lock": "a lock"}

UNKNOWN = Cell("–")


def title_of(word: str, titles: dict[str, str]) -> str:
    """The title of a word, or the word itself where a newer one has none yet."""
    return titles.get(word, str(word).replace("_", " "))


def legend(words: list[str], titles: dict[str, str]) -> tuple[Legend, ...]:
    return tuple(Legend(str(word), title_of(word, titles)) for word in words)


def exactly(ns: int) -> str:
    return f"{ns:,} ns"


def capitalised(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


# ---- columns


def name(title: str, hint: str = "") -> Column:
    return Column(title, hint=hint, css="name")


def words(title: str, hint: str = "", css: str = "") -> Column:
    return Column(title, hint=hint, css=css)


def times(title: str, hint: str = "") -> Column:
    return Column(title, numeric=True, unit="ns", hint=hint)


def numbers(title: str, hint: str = "", unit: str = "") -> Column:
    return Column(title, numeric=True, unit=unit, hint=hint)


def bar(title: str) -> Column:
    return Column(title, quiet=True)


# ---- cells


def text(value: str | None, css: str = "", title: str = "") -> Cell:
    return UNKNOWN if value is None or value == "" else Cell(value, css=css, title=title)


def time(ns: int | None) -> Cell:
    return UNKNOWN if ns is None else Cell(ms(ns), value=ns)


def number(value: int | None) -> Cell:
    return UNKNOWN if value is None else Cell(f"{value:,}", value=value)


def index(value: int | None) -> Cell:
    """The place of an event: not a number to be grouped."""
    return UNKNOWN if value is None else Cell(str(value), value=value)


def share(value: float | None) -> Cell:
    return UNKNOWN if value is None else Cell(percent(value), value=round(value, 6))


def real(value: float | None, digits: int = 3) -> Cell:
    """A number without a unit of its own, with so many significant digits."""
    return UNKNOWN if value is None else Cell(significant(value, digits), value=value)


def amount(count: int | None) -> Cell:
    return UNKNOWN if count is None else Cell(size(count), value=count)


def significant(value: float, digits: int = 3) -> str:
    if not math.isfinite(value) or not value:
        return f"{value:g}"
    places = max(digits - 1 - math.floor(math.log10(abs(value))), 0)
    return f"{value:,.{places}f}"
