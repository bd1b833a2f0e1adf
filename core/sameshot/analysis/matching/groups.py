"""Which streams of different ranks belong to one process group.

A group is what the trace records: its name and its ranks. Kineto cuts long lists of ranks short ("[0, 1, ..., 63]",
torch/csrc/distributed/c10d/ParamCommsUtils.hpp), and not every version at the same length, so lists of the same name
that may be cuts of one list are taken for one group, unless there are two that a cut list could stand for.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from sameshot.analysis.results import RankSummary, Stream

_NAMED = re.compile(r"group (?P<name>\S+)(?: (?P<ranks>\[.*\]))?$", re.DOTALL)


class Member(msgspec.Struct, frozen=True):
    """One rank's stream; `rank` is the index of its summary."""

    rank: int
    stream: Stream


class GroupStreams(msgspec.Struct, frozen=True):
    """All streams of one group. `named`: the trace says that they belong together."""

    source: str
    key: str
    named: bool
    members: tuple[Member, ...]

    @property
    def numbered(self) -> bool:
        return all(member.stream.seq for member in self.members)


def gather_groups(ranks: Sequence[RankSummary]) -> list[GroupStreams]:
    """Streams of all ranks by group, in order of source and key."""
    members: defaultdict[tuple[str, str], list[Member]] = defaultdict(list)
    for index, rank in enumerate(ranks):
        for stream in rank.streams:
            members[stream.source, stream.key].append(Member(index, stream))
    same = _same_group(members)
    joined: defaultdict[tuple[str, str], list[Member]] = defaultdict(list)
    for (source, key), found in members.items():
        joined[source, same.get((source, key), key)] += found
    return [
        GroupStreams(source, key, _NAMED.match(key) is not None, tuple(sorted(found, key=lambda m: m.rank)))
        for (source, key), found in sorted(joined.items())
    ]


def _same_group(keys: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """(source, key with a list cut short) → the key that all ranks of the group get: the longest of its lists."""
    by_name: defaultdict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    for source, key in keys:
        if (found := _NAMED.match(key)) and found["ranks"]:
            by_name[source, found["name"]].append((key, found["ranks"]))
    same: dict[tuple[str, str], str] = {}
    for (source, _), lists in by_name.items():
        if len(lists) < 2:
            continue
        for key, ranks in lists:
            if "..." not in ranks:
                continue
            candidates = [(len(other), name) for name, other in lists if other != ranks and may_be_one(ranks, other)]
            whole = [(size, name) for size, name in candidates if "..." not in name]
            if len(whole) > 1:
                continue  # two complete lists fit: nobody knows which of them this one is
            longest = max(whole or [*candidates, (len(ranks), key)])
            if longest[0] >= len(ranks) or whole:
                same[source, key] = longest[1]
    return same


def may_be_one(one: str, other: str) -> bool:
    """Can two recorded lists of ranks be the same list, of which at least one was cut short?"""
    head, _, tail = one.partition("...")
    others_head, _, others_tail = other.partition("...")
    cut, others_cut = "..." in one, "..." in other
    if not cut and not others_cut:
        return one == other
    first, theirs_first = _numbers(head), _numbers(others_head)
    last, theirs_last = _numbers(tail if cut else head), _numbers(others_tail if others_cut else others_head)
    shared, ends = min(len(first), len(theirs_first)), min(len(last), len(theirs_last))
    if not cut and len(first) < len(theirs_first) + len(theirs_last):
        return False  # a complete list is longer than what a cut of it shows
    if not others_cut and len(theirs_first) < len(first) + len(last):
        return False
    return first[:shared] == theirs_first[:shared] and (not ends or last[-ends:] == theirs_last[-ends:])


def _numbers(text: str) -> list[str]:
    return re.findall(r"\d+", text)
