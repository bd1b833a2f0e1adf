"""Numbers of several ranks as one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from sameshot.analysis.results import (
    DeviceTimes,
    NamedTime,
    Part,
    PartTimes,
)

_TOP = 20


def median_parts(steps: Sequence[PartTimes]) -> PartTimes | None:
    if not steps:
        return None
    return PartTimes(**{part.value: int(np.median([step.get(part) for step in steps])) for part in Part})


def sum_parts(all_parts: Iterable[PartTimes]) -> PartTimes:
    sums: Counter[str] = Counter()
    for parts in all_parts:
        sums.update({part.value: parts.get(part) for part in Part})
    return PartTimes(**sums)


def sum_devices(devices: Sequence[DeviceTimes]) -> DeviceTimes | None:
    if not devices:
        return None
    return DeviceTimes(**{field: sum(getattr(d, field) for d in devices) for field in DeviceTimes.__struct_fields__})


def merge_named(lists: Iterable[Sequence[NamedTime]]) -> tuple[NamedTime, ...]:
    """Sum equal names over ranks. Each rank gives its own top list, so rarer names may miss a rank's small share."""
    sums: dict[str, tuple[int, int, int]] = {}
    for named in lists:
        for item in named:
            times, total, mine = sums.get(item.name, (0, 0, 0))
            sums[item.name] = (times + item.count, total + item.total, mine + item.self_time)
    ranked = sorted(sums.items(), key=lambda pair: (-pair[1][2], pair[0]))
    return tuple(NamedTime(name, *times) for name, times in ranked[:_TOP])
