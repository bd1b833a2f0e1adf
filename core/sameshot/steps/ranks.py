"""What was made of single ranks, kept between the tasks that map and the one that reduces, and for comparisons later.

    <capture's folder>/ranks/<manifest's digest, 12 hex>/manifest.json     the very manifest, once all ranks are there
                                                        /<index>.json      a `RankFile`: one target's summary
                                                        /<index>.tables    its part of the tables

`index` counts the archived targets in the manifest's order. Files of another manifest lie in another folder, so what is
stale is never read. Each file says which manifest and target it belongs to and the sha256 of what it holds: a damaged
or misplaced one is found out. (Whoever may write results could still forge one: it proves nothing of who wrote it.)
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

import sameshot
from sameshot.analysis.hta import travel
from sameshot.analysis.hta.tables import TablePart
from sameshot.analysis.load import who
from sameshot.analysis.results import RANK_SCHEMA, RankSummary
from sameshot.errors import ManifestError, VerificationFailed
from sameshot.manifest import Manifest, Target, decode, encode
from sameshot.steps.places import ranks_folder, shards
from sameshot.steps.results import ranges
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


class Stored(NamedTuple):
    """All ranks of one manifest, in its order. `tables_sha256` are those of the files of tables."""

    summaries: list[RankSummary]
    tables_sha256: list[str]


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
        """Raises VerificationFailed where a rank is missing, damaged, of another capture, or was mapped otherwise."""
        raw = self._folder.get_all([f"{index}.json" for index in range(len(self._targets))])
        files = [None if data is None else self._file(index, data) for index, data in enumerate(raw)]
        self._refuse_missing(files)
        known = [found for found in files if found is not None]
        patterns = [found.fetch_pattern for found in known]
        for index, pattern in enumerate(patterns):
            if pattern != patterns[0]:
                raise self._again(
                    index,
                    known[index].shard,
                    f"was mapped with the fetch pattern {pattern!r}, others with {patterns[0]!r}",
                )
        summaries = [self._summary(index, found) for index, found in enumerate(known)]
        return Stored(summaries, [found.tables_sha256 for found in known])

    def tables(self, stored: Stored) -> Iterator[TablePart]:
        """The tables' parts of what `load` returned. Raises VerificationFailed."""
        for first in range(0, len(self._targets), _BATCH):
            indices = range(first, min(first + _BATCH, len(self._targets)))
            for index, data in zip(indices, self._folder.get_all([f"{i}.tables" for i in indices]), strict=True):
                if data is None:
                    raise self._again(index, None, "has no tables")
                if _sha256(data) != stored.tables_sha256[index]:
                    raise self._again(index, None, "has other tables than its summary states")
                try:
                    yield travel.from_bytes(data)
                except ValueError as error:
                    raise self._again(index, None, f"has tables that can't be read ({error})") from None

    def _file(self, index: int, data: bytes) -> RankFile:
        try:
            found = msgspec.json.decode(data, type=RankFile)
        except msgspec.MsgspecError as error:
            raise self._again(index, None, f"has no sound file ({error})") from None
        if found.schema != SCHEMA:
            raise self._again(index, None, f"has a file of schema {found.schema}, this version reads {SCHEMA}")
        stated = (found.manifest_sha256, found.target_id)
        if stated != (self._manifest.sha256, self._targets[index].target_id):
            raise self._again(index, found.shard, f"has the file of {found.target_id} of manifest {stated[0][:12]}")
        return found

    def _summary(self, index: int, found: RankFile) -> RankSummary:
        data = bytes(found.summary)
        if _sha256(data) != found.summary_sha256:
            raise self._again(index, found.shard, "has a summary that was changed after it was made")
        try:
            summary = msgspec.json.decode(data, type=RankSummary)
        except msgspec.MsgspecError as error:
            raise self._again(index, found.shard, f"has no sound summary ({error})") from None
        if summary.schema != RANK_SCHEMA:
            raise self._again(
                index, found.shard, f"has a summary of schema {summary.schema}, this version reads {RANK_SCHEMA}"
            )
        artifact = self._targets[index].artifact
        if artifact is None or (summary.target_id, summary.trace.raw_sha256) != (
            self._targets[index].target_id,
            artifact.raw_sha256,
        ):
            raise self._again(index, found.shard, "has the summary of another trace")
        return summary

    def _refuse_missing(self, files: Sequence[RankFile | None]) -> None:
        missing = [index for index, found in enumerate(files) if found is None]
        if not missing:
            return
        shard = next((found.shard for found in files if found is not None), None)
        told = self._shards(missing, shard)
        names = ranges(rank for index in missing if (rank := self._targets[index].identity.rank) is not None)
        others = f" Of {len(missing)} ranks there is none (ranks {names})." if len(missing) > 1 else ""
        raise VerificationFailed(
            f"There is no summary of {who(self._targets[missing[0]])} of capture {self._manifest.capture.capture_id} "
            f"in {self.uri}.{others} Run analyze_rank with shard {told} again; the other summaries are kept."
        )

    def _again(self, index: int, shard: str | None, problem: str) -> VerificationFailed:
        return VerificationFailed(
            f"{who(self._targets[index])} of capture {self._manifest.capture.capture_id} {problem} "
            f"({self._folder.uri(str(index))}.json). Run analyze_rank with shard {self._shards([index], shard)} again."
        )

    def _shards(self, indices: Sequence[int], like: str | None) -> str:
        """Which shards these are in, where ranks are split as for the shard `like`, else as `places.shards` does."""
        n = int(like.partition("/")[2]) if like is not None else len(shards(len(self._targets)))
        found = sorted({index % n for index in indices})
        return ", ".join(f"{i}/{n}" for i in found[:4]) + (f" and {len(found) - 4} more" if len(found) > 4 else "")


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
