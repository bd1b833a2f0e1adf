"""To which process group each call belongs."""

from __future__ import annotations

import re

import numpy as np

from sameshot.analysis.communication.issuers import NOWHERE
from sameshot.analysis.frame import Frame, Rows
from sameshot.analysis.intervals import Ints
from sameshot.analysis.results import Group
from sameshot.trace.columns.chunk import MISSING

_NUMBER = re.compile(r"-?[0-9]{1,99}")


def groups_of(frame: Frame, source: str, rows: Rows, message: Ints) -> tuple[list[Group], Ints]:
    """Groups as recorded, by name and ranks; what names none is kept apart by GPU stream."""
    messages = frame.messages
    groups: dict[str, int] = {}
    found: list[Group] = []
    code = np.full(len(rows), NOWHERE, dtype=np.int64)
    seen: dict[tuple[str | None, str | None], int] = {}
    for index, row in enumerate(message.tolist()):
        if row == NOWHERE or messages.group_name[row] is None:
            continue
        name, ranks = messages.group_name[row], messages.group_ranks[row]
        known = seen.get((name, ranks))
        if known is None:
            known = seen[name, ranks] = len(found)
            size = int(messages.group_size[row])
            key = f"group {name}" if ranks is None else f"group {name} {ranks}"
            groups[key] = known
            known_size = _listed(ranks) if size in (MISSING, 0) else size
            found.append(Group(key, name, ranks, messages.group_description[row], known_size))
        code[index] = known
    nameless = np.unique(rows.lane[code == NOWHERE]).tolist()
    alone = []
    for lane in nameless:
        here = rows.lane == lane
        named = np.unique(code[here & (code != NOWHERE)])
        if source == "gloo" or not len(named):
            alone.append(lane)
        elif len(named) == 1:
            code[here] = named[0]
        else:
            alone.append(lane)
    if source == "gloo":
        if alone:
            code[code == NOWHERE] = len(found)
            found.append(Group("gloo", None, None, None, None))
        return found, code
    # Numbers of streams differ between ranks, their order does not.
    for place, lane in enumerate(sorted(alone, key=lambda one: _lane_order(frame.lanes[one]))):
        code[(rows.lane == lane) & (code == NOWHERE)] = len(found)
        found.append(Group(f"communication stream {place}", None, None, None, None))
    return found, code


def most_ranks(ranks: str | None) -> int | None:
    """How many ranks a recorded list stands for at most; None where it does not say. torch sorts the ranks of a new
    group (distributed_c10d.new_group), so one cut short ("[0, 1, ..., 63]") holds no more than lie between its ends."""
    if ranks is None or "..." not in ranks:
        return _listed(ranks)
    numbers = [int(number) for number in re.findall(r"\d+", ranks)]
    if len(numbers) < 2 or ranks.rstrip().rstrip("]").rstrip().endswith("...") or numbers != sorted(set(numbers)):
        return None
    return numbers[-1] - numbers[0] + 1


def _listed(ranks: str | None) -> int | None:
    """How many ranks a complete list holds. Of the default group torch records an empty one: that says nothing."""
    if ranks is None or "..." in ranks or not ranks.rstrip().endswith("]"):
        return None
    return len(re.findall(r"\d+", ranks)) or None


def _lane_order(lane: tuple[object, object]) -> tuple[tuple[int, int, str], ...]:
    return tuple((0, int(str(v)), "") if _NUMBER.fullmatch(str(v)) else (1, 0, str(v)) for v in lane)
