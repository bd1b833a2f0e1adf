"""A published capture and the folder of its results: what every step that analyses opens first."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

from sameshot.errors import ManifestError, UsageError, VerificationFailed
from sameshot.manifest import Manifest
from sameshot.model import JobRef, path_problem
from sameshot.steps.places import capture_folder
from sameshot.steps.store import Folder, open_results
from sameshot.storage import Storage
from sameshot.trace.capture_check import locate, read_manifest


class Published(NamedTuple):
    """`storage` and `key` are where the manifest was read, `results` is the capture's folder below the results."""

    storage: Storage
    key: str
    manifest: Manifest
    results: Folder

    @property
    def uri(self) -> str:
        return self.storage.uri(self.key)

    @property
    def series(self) -> str:
        job = self.manifest.capture.job
        return job.series or job.name


def open_published(manifest: str, results_uri: str, expected_sha256: str | None = None) -> Published:
    """Read the manifest at this path or URI (or in this folder).

    Raises UnknownCapture, ManifestError, StorageError, UsageError for a place that is none, and VerificationFailed
    where it is a sound manifest and not the one with the expected digest.
    """
    storage, key = locate(manifest)
    found = read_manifest(storage, key)
    if expected_sha256 and found.sha256 != expected_sha256:
        raise VerificationFailed(
            f"The manifest at {storage.uri(key)} has the digest {found.sha256}, expected was {expected_sha256}: it is "
            f"that of another capture, or was replaced since. Nothing was analysed."
        )
    capture = found.capture
    return Published(storage, key, found, results_of(results_uri, capture.job.ref, capture.capture_id))


def results_of(results_uri: str, job: JobRef, capture_id: str) -> Folder:
    """A capture's folder of results. Names come from manifests, also imported ones: raises ManifestError for those that
    would lead elsewhere, and UsageError for a results_uri that is none."""
    folder = capture_folder(job, capture_id)
    if problem := path_problem(folder):
        raise ManifestError(
            f"Job {str(job)!r} and capture {capture_id!r} are no names of a folder ({problem}: {folder!r}), so results "
            "of this capture have no place. Import its traces with other names."
        )
    return Folder(open_results(results_uri), folder)


def hand_out(written: Path, out: Path) -> None:
    """Put the same files into a local folder, for engines that take files from there. Raises UsageError."""
    try:
        shutil.copytree(written, out, dirs_exist_ok=True)
    except (OSError, shutil.Error) as error:
        raise UsageError(f"The results are written, but not to {out}: {error}.") from None
