"""`reduce`: the summaries of all ranks and the manifest in, one job-wide `Summary` out. Pure.

`reduce` calls everything; `findings` says what a person should know first, `cautions` what to be careful about.
"""

from __future__ import annotations

from sameshot.analysis.job.findings import headline
from sameshot.analysis.job.reduce import reduce_ranks

__all__ = ["headline", "reduce_ranks"]
