"""The receipt of a capture: every frozen target with its verified artifact or the reason why there is none.

    manifest = build(capture, targets)      sorted, counted, digested; contradictions are refused
    data = encode(manifest)                 published with a conditional put at `manifest_key(job, capture_id)`
    manifest = decode(data)                 everything that the manifest alone can prove was checked

`values` holds what a manifest says, `rules` what must hold in every one of them, `wire` the JSON (docs/manifest.md),
`build` makes one.
"""

from __future__ import annotations

from sameshot.manifest.build import build, manifest_key
from sameshot.manifest.values import SCHEMA, Capture, Job, Manifest, Provenance, Target, Totals, timestamp
from sameshot.manifest.wire import decode, digest, encode

__all__ = [
    "SCHEMA",
    "Capture",
    "Job",
    "Manifest",
    "Provenance",
    "Target",
    "Totals",
    "build",
    "decode",
    "digest",
    "encode",
    "manifest_key",
    "timestamp",
]
