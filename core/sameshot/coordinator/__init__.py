"""One per job attempt: freeze, fan-out, poll, converge, publish.

    links (one per agent) → attend ─┐
    plan → targets, withdrawal ─────┼─ capture (one run of a record) ── book (all of them, keys) ── service ── server
    slot, publish, manifests ───────┘

Everything lives in memory on purpose; the published manifest is the durable fact.
"""

from __future__ import annotations

from sameshot.coordinator.config import CoordinatorConfig, Timings
from sameshot.coordinator.server import CoordinatorServer, serve

__all__ = ["CoordinatorConfig", "CoordinatorServer", "Timings", "serve"]
