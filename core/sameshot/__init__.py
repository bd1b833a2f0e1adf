"""On-demand profiling for distributed PyTorch training: one trustworthy set of traces from every rank, now.

Importing this package is light on purpose (no torch, pandas, kubernetes or grpc): schedulers parse DAG files that
import it all day. `sameshot.connect` and the other names below are loaded at first use.
"""

from __future__ import annotations

__version__ = "0.1.0"
