"""`sameshot manifest verify` as an assertion."""

from __future__ import annotations

from sameshot.storage import Storage
from sameshot.trace.capture_check import CheckReport, inspect_capture


def check_capture(storage: Storage, key: str) -> CheckReport:
    """The report on a capture in which every file is what its manifest states; AssertionError: something is not."""
    report = inspect_capture(storage, key)
    found = "; ".join(f"{target.target_id} {', '.join(target.problems)}" for target in report.failed)
    if found:
        raise AssertionError(f"{report.uri}: {found}")
    return report
