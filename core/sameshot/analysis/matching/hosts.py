"""Hosts, and what is known of the distance between their clocks while collectives are being matched."""

from __future__ import annotations

from sameshot.analysis.results import RankSummary


def host_of(rank: RankSummary) -> str:
    """What has one clock: the host, else the node. A rank of which neither is known stands alone."""
    return rank.identity.host or rank.identity.node or f"unknown host of {rank.label} ({rank.target_id})"


class Offsets:
    """Rough offsets between hosts (ns), each learnt from one matched pair of ranks and chained to others.

    They are good enough to find the same collective on two hosts (tens of µs per link). `clocks.measure` makes the
    final estimate from all matched collectives.
    """

    def __init__(self) -> None:
        self._ahead: dict[str, tuple[str, int]] = {}  # host → (root, how far its clock is ahead of the root's)
        self._members: dict[str, list[str]] = {}
        self.largest = 0
        """The largest offset that was measured directly, of any sign."""

    def between(self, here: str, there: str) -> int | None:
        """How far the clock of `there` is ahead of that of `here`; None: not known."""
        if here == there:
            return 0
        one, other = self._ahead.get(here), self._ahead.get(there)
        if one is None or other is None or one[0] != other[0]:
            return None
        return other[1] - one[1]

    def learn(self, here: str, there: str, ahead: int) -> None:
        """`there` was found to be so far ahead of `here`. What is known already stays."""
        self.largest = max(self.largest, abs(ahead))
        for host in (here, there):
            if host not in self._ahead:
                self._ahead[host] = (host, 0)
                self._members[host] = [host]
        (root, base), (old, theirs) = self._ahead[here], self._ahead[there]
        if root == old:
            return
        shift = base + ahead - theirs
        if len(self._members[old]) > len(self._members[root]):
            root, old, shift = old, root, -shift
        for host in self._members.pop(old):
            self._ahead[host] = (root, self._ahead[host][1] + shift)
            self._members[root].append(host)
