"""Every group put together: which streams are compared, under which offsets, and what is matched in the end."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence as Listing

import numpy as np

from sameshot.analysis.intervals import Ints
from sameshot.analysis.matching.align import Pairing, by_clocks, pair, unmatched
from sameshot.analysis.matching.fit import Sequence, sequence
from sameshot.analysis.matching.groups import Member, gather_groups
from sameshot.analysis.matching.hosts import Offsets, host_of
from sameshot.analysis.matching.matched import ABSENT, Matched
from sameshot.analysis.matching.near import APART, Near
from sameshot.analysis.results import Alignment, RankSummary

_REFERENCES = 4  # how many ranks are tried as the one that all others are compared with
# Of unnamed streams on different hosts: comparisons under known clocks, and searches for an offset.
_MOST_TRIES = 10_000
_MOST_SEARCHES = 600
_MOST_TOLD = 64
_SLACK = 50_000  # ns by which clocks and records may err where streams are said to overlap
_CLEARLY = 0.67  # of how far the ends scatter around those of the group that fits next best


def match_streams(ranks: Listing[RankSummary]) -> tuple[list[Matched], list[Alignment]]:
    """Align every group that at least two ranks recorded. Ranks that can't be aligned are left out, with a reason."""
    matcher = _Matcher(ranks)
    groups = [group for group in gather_groups(ranks) if len(group.members) > 1]
    # Numbered groups first, then those that span most hosts: what they teach about the clocks helps the others.
    groups.sort(key=lambda g: (not g.named, not g.numbered, -len({matcher.hosts[m.rank] for m in g.members}), g.key))
    work = [part for group in groups for part in matcher.begin(group.source, group.key, group.members, group.named)]
    for part in work:
        matcher.finish(part)
    work.sort(key=lambda part: (part.source, part.key))
    matched = [found for part in work if (found := matcher.cut(part)) is not None]
    counts = {found.key: found.count for found in matched}
    return matched, [row for part in work for row in matcher.alignments(part, counts.get(part.key, 0))]


class _Part:
    """One group under work: its sequences, the reference, and how the others correspond to it."""

    def __init__(self, source: str, key: str, stream: str, sequences: dict[int, Sequence]) -> None:
        self.source = source
        self.key = key
        self.stream = stream
        self.sequences = sequences
        self.named = True
        self.reference = -1
        self.pairings: dict[int, Pairing] = {}
        self.assumed: set[int] = set()

    @property
    def aligned(self) -> int:
        return sum(pairing.found for pairing in self.pairings.values())


class _Matcher:
    def __init__(self, ranks: Listing[RankSummary]) -> None:
        self.ranks = ranks
        self.hosts = [host_of(rank) for rank in ranks]
        self.offsets = Offsets()

    def begin(self, source: str, key: str, members: Listing[Member], named: bool) -> list[_Part]:
        """Match what needs no assumption about clocks. Streams without a name may turn out to be several groups."""
        numbers: dict[str, int] = {}
        sequences = {
            member.rank: sequence(member.stream, self.ranks[member.rank].window_start_ns, numbers)
            for member in members
            if len(member.stream.dur)
        }
        # Named groups, and gloo with its one queue, are one group by definition: who does not fit stays out.
        together = named or source != "nccl"
        parts: list[_Part] = []
        for chosen in [list(sequences)] if together else self._told_apart(sequences):
            if len(chosen) > 1:
                label = key if not parts else f"{key} (group {len(parts) + 1})"
                part = _Part(source, label, key, {index: sequences[index] for index in chosen})
                part.named = together
                self._align(part)
                parts.append(part)
        return parts

    def _told_apart(self, sequences: dict[int, Sequence]) -> list[list[int]]:
        """Unnamed streams of one order: which ranks' are the same group's. Ranks of one host are compared first, under
        its clock; then one of each such cluster with those of other hosts, as long as that is affordable."""
        by_host: defaultdict[str, list[int]] = defaultdict(list)
        for index in sequences:
            by_host[self.hosts[index]].append(index)
        clusters = [cluster for mine in by_host.values() for cluster in self._clusters(sequences, mine)]
        joined: list[list[list[int]]] = []
        tries, searches = _MOST_TRIES, _MOST_SEARCHES
        while clusters:
            clusters.sort(key=lambda each: -len(sequences[each[0]]))
            lead, *rest = clusters
            first = [lead]
            clusters = []
            for other in rest:
                here, there = self.hosts[lead[0]], self.hosts[other[0]]
                known = self.offsets.between(here, there) is not None
                if here == there or not (tries if known else searches):
                    clusters.append(other)
                    continue
                tries, searches = tries - known, searches - (not known)
                if self._same_group(sequences, lead[0], other[0], search=not known):
                    first.append(other)
                else:
                    clusters.append(other)
            joined.append(first)
        told = self._surely(sequences, joined)
        alone = [index for one in told if len(one) == 1 for index in one]
        found = sorted((one for one in told if len(one) > 1), key=len, reverse=True)
        if not found:
            return [alone]
        if len(sequences) <= _MOST_TOLD:  # who fits nowhere is told why it does not fit the largest
            found[0] = [*found[0], *alone]
        return found

    def _surely(self, sequences: dict[int, Sequence], joined: Listing[list[list[int]]]) -> list[list[int]]:
        """The same groups after each rank was compared with all of those that span hosts: it belongs to the one that it
        fits clearly best. Where two fit about as well, nobody knows to which, and it is left out. Of ranks that their
        host's own clock tells apart, only one can be of a group."""
        leads = {number: one[0][0] for number, one in enumerate(joined) if len(one) > 1}
        if not leads:
            return [one[0] for one in joined]
        near = Near({number: (sequences[lead], self.hosts[lead]) for number, lead in leads.items()}, self.offsets)
        told: list[list[int]] = [[one[0][0]] if number in leads else [] for number, one in enumerate(joined)]
        chosen: defaultdict[tuple[int, str], list[tuple[float, int, int]]] = defaultdict(list)
        for number, one in enumerate(joined):
            for which, cluster in enumerate(one):
                for index in cluster:
                    if index == leads.get(number):
                        continue
                    host = self.hosts[index]
                    fits = near.fits(sequences[index], host)
                    if not fits:
                        told[number].append(index)
                    elif len(fits) == 1 or fits[0][0] <= _CLEARLY * fits[1][0]:
                        # Where a rank was moved from its cluster, it stands alone.
                        own = number * len(sequences) + which if fits[0][1] == number else -1 - index
                        chosen[fits[0][1], host].append((fits[0][0], own, index))
        for (number, _), found in chosen.items():
            found.sort()
            others = [misfits for misfits, own, _ in found if own != found[0][1]]
            if not others or found[0][0] <= _CLEARLY * others[0]:
                told[number] += [index for _, own, index in found if own == found[0][1]]
        return [one for one in told if one]

    def _clusters(self, sequences: dict[int, Sequence], left: list[int]) -> list[list[int]]:
        """Ranks of one host by group; the first of each cluster has most records."""
        found = []
        left = sorted(left, key=lambda i: -len(sequences[i]))
        while left:
            first, *rest = left
            mine = [index for index in rest if self._same_group(sequences, first, index, search=False)]
            found.append([first, *mine])
            left = [index for index in rest if index not in mine]
        return found

    def _same_group(self, sequences: dict[int, Sequence], reference: int, index: int, *, search: bool) -> bool:
        here, there = self.hosts[reference], self.hosts[index]
        one, other = sequences[reference], sequences[index]
        known = self.offsets.between(here, there)
        found = pair(one, other, same_host=here == there, known_offset=known, search=search)
        if not found.found or not _together(one, other, found):
            return False
        if here != there and found.offset is not None and found.method in ("sequence", "intervals"):
            self.offsets.learn(here, there, found.offset)
        return True

    def _align(self, part: _Part) -> None:
        tries = sorted(part.sequences, key=lambda i: -len(part.sequences[i].end))[:_REFERENCES]
        for reference in tries:
            pairings = {index: self._pair(part, reference, index) for index in part.sequences if index != reference}
            if part.reference < 0 or sum(p.found for p in pairings.values()) > part.aligned:
                part.reference, part.pairings = reference, pairings
            if part.aligned == len(pairings):
                break

    def _pair(self, part: _Part, reference: int, index: int) -> Pairing:
        here, there = self.hosts[reference], self.hosts[index]
        one, other = part.sequences[reference], part.sequences[index]
        known = self.offsets.between(here, there)
        found = pair(one, other, same_host=here == there, known_offset=known)
        if found.found and not part.named and part.source == "nccl" and not _together(one, other, found):
            return unmatched("its collectives do not overlap with the reference's: another group")
        if found.found and here != there and found.offset is not None and found.method in ("sequence", "intervals"):
            self.offsets.learn(here, there, found.offset)
        return found

    def finish(self, part: _Part) -> None:
        """What is still open: by clocks that were measured meanwhile, else by the assumption that clocks agree."""
        for index, pairing in part.pairings.items():
            if pairing.found:
                continue
            here, there = self.hosts[part.reference], self.hosts[index]
            if here == there:
                continue
            if self.offsets.between(here, there) is not None:
                part.pairings[index] = self._pair(part, part.reference, index)
                continue
            one, other = part.sequences[part.reference], part.sequences[index]
            found = by_clocks(one, other)
            if not found.found or (part.source == "nccl" and not part.named and not _together(one, other, found)):
                continue
            if self.offsets.largest > 0.25 * max(one.gap, other.gap):
                part.pairings[index] = unmatched(
                    "the rhythm fits several shifts, and the clocks of this job's hosts are known to disagree"
                )
                continue
            part.pairings[index] = found
            part.assumed.add(index)

    def cut(self, part: _Part) -> Matched | None:
        """Rank × collective from all that was matched."""
        one = part.sequences[part.reference]
        places = {part.reference: np.arange(len(one))}
        places |= {index: pairing.place for index, pairing in part.pairings.items() if pairing.found}
        if len(places) < 2:
            return None
        rows = sorted(places)
        place = np.stack([places[index] for index in rows])
        columns = np.flatnonzero((place >= 0).sum(axis=0) > 1)
        if not len(columns):
            return None
        place = place[:, columns]
        start = np.zeros(place.shape, dtype=np.int64)
        dur = np.full(place.shape, ABSENT, dtype=np.int64)
        for row, index in enumerate(rows):
            at = np.flatnonzero(place[row] >= 0)
            found = part.sequences[index]
            chosen = place[row, at]
            start[row, at] = found.start[chosen] - self.ranks[index].window_start_ns
            dur[row, at] = found.end[chosen] - found.start[chosen]
        reference = part.sequences[part.reference]
        own = reference.stream.signatures
        signatures = tuple(own[reference.stream.signature[k]] for k in columns.tolist())
        return Matched(
            key=part.key,
            source=part.source,
            ranks=tuple(rows),
            reference=rows.index(part.reference),
            signatures=signatures,
            start=start,
            dur=dur,
            unmatched=_unmatched_counts(part, rows, place),
            assumes_clocks=bool(part.assumed),
            stream=part.stream,
            streams=tuple(part.sequences[index].stream.key for index in rows),
            assumed=tuple(rows.index(index) for index in sorted(part.assumed)),
        )

    def alignments(self, part: _Part, count: int) -> list[Alignment]:
        return [
            Alignment(
                stream=part.key,
                label=self.ranks[index].label,
                reference=self.ranks[part.reference].label,
                method=pairing.method,
                lag=pairing.lag,
                residual=pairing.residual,
                clock_offset=pairing.offset,
                matched=min(int((pairing.place >= 0).sum()), count),
                note=pairing.note,
            )
            for index, pairing in sorted(part.pairings.items())
        ]


def _together(one: Sequence, other: Sequence, found: Pairing) -> bool:
    """Can these be the same collectives? None ends anywhere before everybody has come to it."""
    at = np.flatnonzero(found.place >= 0)
    there = found.place[at]
    offset = found.offset or 0
    start, end = other.start[there] - offset, other.end[there] - offset
    apart = (start > one.end[at] + _SLACK) | (one.start[at] > end + _SLACK)
    return bool(apart.mean() <= 0.1 and (found.residual or 0) <= APART)


def _unmatched_counts(part: _Part, rows: list[int], place: Ints) -> Counter[str]:
    """Signature → how many one rank recorded that are not among those of all ranks; the largest over ranks."""
    complete = (place >= 0).all(axis=0)
    largest: Counter[str] = Counter()
    where = {index: row for row, index in enumerate(rows)}
    for index, one in part.sequences.items():
        left = np.bincount(one.own, minlength=len(one.stream.signatures))
        if index in where:
            left -= np.bincount(one.own[place[where[index], complete]], minlength=len(left))
        for code in np.flatnonzero(left).tolist():
            text = one.stream.signatures[code]
            largest[text] = max(largest[text], int(left[code]))
    return largest
