"""Which captures may go. Pure: from what there is and what the time is to a decision, never the other way round.

A capture is kept for any one reason; it goes only when there is none.
"""

from __future__ import annotations

import datetime
import enum
from collections import defaultdict
from collections.abc import Iterable

import msgspec

from sameshot.errors import UsageError
from sameshot.gc.layout import Folder, Place

DAY_S = 86_400.0
YOUNG_S = DAY_S
"""A capture that ended since then is never removed: somebody may be about to analyse it."""
LEFTOVER_S = 7 * DAY_S
"""Files without a manifest may be of a capture that runs, or that is still to be published; none takes so long."""


class Rule(msgspec.Struct, frozen=True):
    """`older_than_s`: none younger goes. `keep`: the newest so many with traces of each series stay, however old."""

    older_than_s: float | None = None
    keep: int | None = None

    def __post_init__(self) -> None:
        if self.older_than_s is None and self.keep is None:
            raise UsageError("Say what may go: --older-than (an age), --keep (how many of a series stay), or both.")
        if self.older_than_s is not None and self.older_than_s < YOUNG_S:
            raise UsageError("Captures of the last day are always kept; give --older-than 1d or more.")
        if self.keep is not None and self.keep < 0:
            raise UsageError("--keep counts captures; give 0 or more.")


class Receipt(msgspec.Struct, frozen=True):
    """What a manifest says, as far as this needs it."""

    series: str
    converged_s: float
    traces: int


class Why(enum.StrEnum):
    """Why a capture's folder stays, or that it goes."""

    EXPIRED = "expired"  # goes
    LEFTOVER = "leftover"  # goes: no manifest, and nothing has come for a week
    YOUNG = "young"  # not as old as asked for, or of the last day
    NEWEST = "newest"  # among those of its series that are kept
    UNPUBLISHED = "unpublished"  # no manifest yet
    UNREADABLE = "unreadable"  # its manifest is damaged, another capture's, or can't be read: a person must look

    @property
    def goes(self) -> bool:
        return self in (Why.EXPIRED, Why.LEFTOVER)


def choose(
    folders: Iterable[Folder], receipts: dict[Place, Receipt], rule: Rule, now_s: float
) -> list[tuple[Folder, Why]]:
    """A verdict for each folder, in their order. A published one without a receipt could not be read."""
    folders = list(folders)
    newest = _newest(receipts, rule.keep or 0)
    return [(each, _judged(each, receipts.get(each.place), each.place in newest, rule, now_s)) for each in folders]


def _judged(folder: Folder, receipt: Receipt | None, newest: bool, rule: Rule, now_s: float) -> Why:
    if not folder.published:
        return Why.LEFTOVER if now_s - folder.newest_s > LEFTOVER_S else Why.UNPUBLISHED
    if receipt is None:
        return Why.UNREADABLE
    # By its own word and by the store's: one that was copied here yesterday was wanted yesterday.
    if now_s - max(receipt.converged_s, folder.newest_s) <= YOUNG_S:
        return Why.YOUNG
    if rule.older_than_s is not None and now_s - receipt.converged_s <= rule.older_than_s:
        return Why.YOUNG
    return Why.NEWEST if newest else Why.EXPIRED


def _newest(receipts: dict[Place, Receipt], keep: int) -> set[Place]:
    """Of each series, and only captures with traces: ten that failed must not push out the last good one."""
    series: dict[tuple[str, str], list[tuple[float, Place]]] = defaultdict(list)
    for place, receipt in receipts.items():
        if receipt.traces:
            series[place.namespace, receipt.series].append((receipt.converged_s, place))
    return {place for found in series.values() for _, place in sorted(found, reverse=True)[:keep]}


def seconds_of(stamp: str) -> float:
    """RFC 3339 → seconds since 1970. Raises ValueError."""
    moment = datetime.datetime.fromisoformat(stamp)
    if moment.tzinfo is None:
        raise ValueError(stamp)
    return moment.timestamp()
