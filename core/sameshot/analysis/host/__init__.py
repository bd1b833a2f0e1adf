"""What the host side of a rank did: its main thread split into parts, its operators, and Python where nothing ran.

Steps (`steps`; `repeats` where nothing marks them), `data_wait` and `pauses` stand in modules of their own.
"""

from __future__ import annotations

from sameshot.analysis.host.parts import main_thread, part_spans, timeline, times
from sameshot.analysis.host.top import python_in, top_kernels, top_operators

__all__ = ["main_thread", "part_spans", "python_in", "timeline", "times", "top_kernels", "top_operators"]
