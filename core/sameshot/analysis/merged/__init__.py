"""One trace of several ranks on one clock, to look at in Perfetto (`sameshot merge`).

    ts  = (the rank's CLOCK_REALTIME + its host's offset) - the start of the first window       µs, exact to the ns
    pid = the number of the rank and its process: unique over all ranks, in order of ranks
    id  = what connects flow arrows, numbered anew: ranks use the same numbers for different arrows

Everything else of an event stays as it was recorded. Format: the Trace Event Format in its object form, which
ui.perfetto.dev and chrome://tracing open.
"""

from __future__ import annotations

from sameshot.analysis.merged.merge import Merged, merge_capture

__all__ = ["Merged", "merge_capture"]
