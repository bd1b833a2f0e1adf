"""What was made of single ranks, kept between the tasks that map and the one that reduces, and for comparisons later.

    <capture's folder>/ranks/<manifest's digest, 12 hex>/manifest.json     the very manifest, once they were reduced
                                                        /<index>.json      a `RankFile`: one target's summary
                                                        /<index>.tables    its part of the tables
                                                        /<index>.error     why there is none, where that is known

`index` counts the archived targets in the manifest's order. Files of another manifest lie in another folder, so what is
stale is never read. Each file says which manifest and target it belongs to and the sha256 of what it holds: a damaged
or misplaced one is found out. (Whoever may write results could still forge one: it proves nothing of who wrote it.)
Each says with which fetch pattern it was made, too; with another one it is made anew, in the same place, so that
whoever compares finds the latest without knowing the pattern.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

import sameshot
from sameshot.analysis.hta import travel
from sameshot.analysis.hta.tables import TablePart
from sameshot.analysis.load import who
from sameshot.analysis.results import RANK_SCHEMA, RankSummary
from sameshot.analysis.text import count
from sameshot.errors import ManifestError, SameshotError, VerificationFailed
from sameshot.manifest import Manifest, Target, decode, encode
from sameshot.steps.places import ranks_folder, shards
from sameshot.steps.results import ranges, shortened
from sameshot.steps.store import Folder

SCHEMA = "sameshot.dev/step/rank/v1"
_BATCH = 64  # ranks whose bytes are in memory at once


class RankFile(msgspec.Struct, frozen=True, kw_only=True):
    """`summary` is a `RankSummary` as JSON; `summary_sha256` is of its bytes as they stand here."""

    schema: str = SCHEMA
    generator: str
    manifest_sha256: str
    target_id: str
    shard: str
    fetch_pattern: str | None
    summary_sha256: str
    tables_sha256: str
    summary: msgspec.Raw


class Lack(NamedTuple):
    """Why a rank that has a trace is not there: in words, with what to do.

    `reason`: its analysis was tried and failed for this, so that another try helps only once that is mended. Empty:
    nobody has said.
    """

    problem: str
    shards: str  # to run again
    reason: str = ""

    @property
    def advice(self) -> str:
        again = f"un analyze_rank with shard {self.shards} again."
        return f"Once that is mended, r{again}" if self.reason else f"R{again}"

    @property
    def detail(self) -> str:
        return f"Its trace is in the manifest, but it {self.problem}. {self.advice}"


class Stored(NamedTuple):
    """The ranks of one manifest, in its order, that are there and what they should be.

    `tables_sha256` are those of the files of tables; `indices` say which of the archived targets these are, and
    `lacking` why the others are none of them, by index.
    """

    summaries: list[RankSummary]
    tables_sha256: list[str]
    indices: list[int]
    lacking: dict[int, Lack]
    fetch_pattern: str | None


class _Read(NamedTuple):
    """The sound summaries, by index, why the others are none, and of which of these there is not even a file."""

    known: dict[int, tuple[RankFile, RankSummary]]
    refused: dict[int, _Refused]
    absent: list[int]


class _Refused(Exception):
    """Of one rank; it counts as lacking."""

    def __init__(self, problem: str, shard: str | None = None) -> None:
        super().__init__(problem)
        self.problem, self.shard = problem, shard


class RankFolder:
    """The folder of one manifest. Errors say which rank it is about, and which shard to run again."""

    def __init__(self, results: Folder, manifest: Manifest, targets: Sequence[Target]) -> None:
        self._folder = results.under(ranks_folder(manifest.sha256))
        self._manifest = manifest
        self._targets = targets

    @property
    def uri(self) -> str:
        return self._folder.uri()

    def save(
        self, ranks: Sequence[tuple[int, RankSummary, TablePart]], *, shard: str, fetch_pattern: str | None = None
    ) -> None:
        """Keep the results of some targets, by index, in place of what was there. The summaries come last: with its
        summary a rank is done."""
        for first in range(0, len(ranks), _BATCH):
            batch = ranks[first : first + _BATCH]
            tables = {index: travel.to_bytes(part) for index, _, part in batch}
            self._folder.put_many({f"{index}.tables": data for index, data in tables.items()})
            self._folder.put_many(
                {
                    f"{index}.json": self._encoded(summary, _sha256(tables[index]), shard, fetch_pattern)
                    for index, summary, _ in batch
                }
            )

    def _encoded(self, summary: RankSummary, tables_sha256: str, shard: str, fetch_pattern: str | None) -> bytes:
        data = msgspec.json.encode(summary)
        found = RankFile(
            generator=f"sameshot {sameshot.__version__}",
            manifest_sha256=self._manifest.sha256,
            target_id=summary.target_id,
            shard=shard,
            fetch_pattern=fetch_pattern,
            summary_sha256=_sha256(data),
            tables_sha256=tables_sha256,
            summary=msgspec.Raw(data),
        )
        return msgspec.json.encode(found)

    def save_manifest(self) -> None:
        """So that the summaries mean something also where the archive no longer has the capture."""
        self._folder.put("manifest.json", encode(self._manifest))

    def load(self) -> Stored:
        """What is there, made with the fetch pattern that most have; ranks made with another are lacking, too."""
        read = self._read()
        patterns = Counter(found.fetch_pattern for found, _ in read.known.values())
        return self._stored(read, patterns.most_common(1)[0][0] if patterns else None)

    def load_made_with(self, fetch_pattern: str | None) -> Stored:
        """What is there and was made with this fetch pattern. A rank that is missing, damaged, or of another capture is
        lacking: no number of it is used. So is one that was made with another pattern."""
        return self._stored(self._read(), fetch_pattern)

    def _read(self) -> _Read:
        raw = self._folder.get_all([f"{index}.json" for index in range(len(self._targets))])
        known: dict[int, tuple[RankFile, RankSummary]] = {}
        refused: dict[int, _Refused] = {}
        for index, data in enumerate(raw):
            try:
                if data is None:
                    raise _Refused("was not analysed")
                found = self._file(index, data)
                known[index] = found, self._summary(index, found)
            except _Refused as problem:
                refused[index] = problem
        return _Read(known, refused, [index for index, data in enumerate(raw) if data is None])

    def _stored(self, read: _Read, fetch_pattern: str | None) -> Stored:
        known = {index: each for index, each in read.known.items() if each[0].fetch_pattern == fetch_pattern}
        refused = dict(read.refused)
        for index in read.known.keys() - known.keys():
            found = read.known[index][0]
            problem = f"was analysed with {_pattern(found.fetch_pattern)}, not with {_pattern(fetch_pattern)}"
            refused[index] = _Refused(problem, found.shard)
        like = next((found.shard for found, _ in read.known.values()), None)
        lacking = {
            index: Lack(refused[index].problem, self._shards([index], refused[index].shard or like))
            for index in sorted(refused)
        }
        told = {index: self.failed(index, problem, like) for index, problem in self._told(read.absent).items()}
        return Stored(
            [summary for _, summary in known.values()],
            [found.tables_sha256 for found, _ in known.values()],
            list(known),
            lacking | told,
            fetch_pattern,
        )

    def failed(self, index: int, problem: str, like: str | None = None) -> Lack:
        """Of a rank whose analysis was tried, and failed for this; `like` is a shard as ranks are split into."""
        reason = shortened(problem)
        return Lack(f"could not be analysed ({reason})", self._shards([index], like), reason)

    def tables(self, stored: Stored) -> tuple[Stored, list[TablePart]]:
        """The tables' parts of what `load` returned; ranks whose tables are missing or damaged are lacking, too."""
        parts: dict[int, TablePart] = {}
        lacking = dict(stored.lacking)
        digests = dict(zip(stored.indices, stored.tables_sha256, strict=True))
        for first in range(0, len(stored.indices), _BATCH):
            indices = stored.indices[first : first + _BATCH]
            for index, data in zip(indices, self._folder.get_all([f"{i}.tables" for i in indices]), strict=True):
                try:
                    parts[index] = _part(data, digests[index])
                except _Refused as problem:
                    lacking[index] = Lack(problem.problem, self._shards([index], None))
        kept = [number for number, index in enumerate(stored.indices) if index in parts]
        return Stored(
            [stored.summaries[number] for number in kept],
            [stored.tables_sha256[number] for number in kept],
            [stored.indices[number] for number in kept],
            dict(sorted(lacking.items())),
            stored.fetch_pattern,
        ), list(parts.values())

    def none(self, lacking: Mapping[int, Lack]) -> VerificationFailed:
        """The error where not a single rank is there."""
        missing = list(lacking)
        lack = lacking[missing[0]]
        names = ranges(rank for index in missing if (rank := self._targets[index].identity.rank) is not None)
        return VerificationFailed(
            f"{who(self._targets[missing[0]])} of capture {self._manifest.capture.capture_id} {lack.problem}, and of "
            f"{count(len(missing), 'rank')} (ranks {names}) there is no sound summary in {self.uri}. "
            f"{lack._replace(shards=self._shards(missing, None)).advice}"
        )

    def note(self, index: int, problem: str) -> None:
        """Keep why a rank could not be analysed, for the report of the others; never in the way of the error itself."""
        with contextlib.suppress(SameshotError):
            self._folder.put(f"{index}.error", problem.encode())

    def _told(self, indices: list[int]) -> dict[int, str]:
        """What `note` kept of these ranks."""
        raw = self._folder.get_all([f"{index}.error" for index in indices])
        return {index: data.decode(errors="replace") for index, data in zip(indices, raw, strict=True) if data}

    def _file(self, index: int, data: bytes) -> RankFile:
        """Raises _Refused, as `_summary` does."""
        try:
            found = msgspec.json.decode(data, type=RankFile)
        except msgspec.MsgspecError as error:
            raise _Refused(f"has no sound file ({error})") from None
        if found.schema != SCHEMA:
            raise _Refused(f"has a file of schema {found.schema}, this version reads {SCHEMA}")
        stated = (found.manifest_sha256, found.target_id)
        if stated != (self._manifest.sha256, self._targets[index].target_id):
            raise _Refused(f"has the file of {found.target_id} of manifest {stated[0][:12]}", found.shard)
        return found

    def _summary(self, index: int, found: RankFile) -> RankSummary:
        data = bytes(found.summary)
        if _sha256(data) != found.summary_sha256:
            raise _Refused("has a summary that was changed after it was made", found.shard)
        try:
            summary = msgspec.json.decode(data, type=RankSummary)
        except msgspec.MsgspecError as error:
            raise _Refused(f"has no sound summary ({error})", found.shard) from None
        if summary.schema != RANK_SCHEMA:
            raise _Refused(f"has a summary of schema {summary.schema}, this version reads {RANK_SCHEMA}", found.shard)
        artifact = self._targets[index].artifact
        if artifact is None or (summary.target_id, summary.trace.raw_sha256) != (
            self._targets[index].target_id,
            artifact.raw_sha256,
        ):
            raise _Refused("has the summary of another trace", found.shard)
        return summary

    def _shards(self, indices: Sequence[int], like: str | None) -> str:
        """Which shards these are in, where ranks are split as for the shard `like`, else as `places.shards` does."""
        n = int(like.partition("/")[2]) if like is not None else len(shards(len(self._targets)))
        found = sorted({index % n for index in indices})
        return ", ".join(f"{i}/{n}" for i in found[:4]) + (f" and {len(found) - 4} more" if len(found) > 4 else "")


def _pattern(fetch_pattern: str | None) -> str:
    return (
        "the fetch pattern of torch's DataLoader" if fetch_pattern is None else f"the fetch pattern {fetch_pattern!r}"
    )


def _part(data: bytes | None, sha256: str) -> TablePart:
    if data is None:
        raise _Refused("has no tables")
    if _sha256(data) != sha256:
        raise _Refused("has other tables than its summary states")
    try:
        return travel.from_bytes(data)
    except ValueError as error:
        raise _Refused(f"has tables that can't be read ({error})") from None


def kept_manifest(results: Folder, manifest_sha256: str) -> Manifest | None:
    """The copy of this very manifest beside the summaries; None where there is none, or another."""
    data = results.get(f"{ranks_folder(manifest_sha256)}/manifest.json")
    if data is None:
        return None
    try:
        found = decode(data)
    except ManifestError:
        return None
    return found if found.sha256 == manifest_sha256 else None


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
