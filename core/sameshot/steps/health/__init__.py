"""Is everything in place for captures on a cluster, and what is wrong: `sameshot status`.

    seen = look(api, namespace="ml")         # what can be read, and what may not be
    findings = judge(seen)                   # pure: a table of rules over what was seen

A finding says in one sentence what is wrong, and in one how to mend it.
"""

from __future__ import annotations

from sameshot.steps.health.jobs import JobRow, rows
from sameshot.steps.health.read import look, look_at_jobs
from sameshot.steps.health.rules import judge
from sameshot.steps.health.seen import Finding, Seen, Severity

__all__ = ["Finding", "JobRow", "Seen", "Severity", "judge", "look", "look_at_jobs", "rows"]
