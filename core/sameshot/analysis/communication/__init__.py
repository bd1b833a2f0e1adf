"""Communication of one rank: process groups, time by kind and size, and the sequences that are matched across ranks.

Device communication is a kernel (NCCL, RCCL, …). What it carries stands on the kernel itself in newer traces; in others
only on the host event that issued it (`record_param_comms`, `nccl:*`), which is found by the external id that both
state, else as the innermost one around the launch call. A graph's replay has neither: its kernels belong to the group
of their GPU stream where all others of that stream belong to one (torch gives each group a stream of its own).

gloo's collectives are spans on worker threads that state neither group nor size.

`calls` finds what was called (`issuers`: by whom, `groups`: in which group), `sizes` sums it up, `streams` keeps it in
order for the other ranks, `traffic` is all of it.
"""

from __future__ import annotations

from sameshot.analysis.communication.traffic import Traffic, measure

__all__ = ["Traffic", "measure"]
