"""HTA beside our own engine: run on the same verified files, and its six tables from our numbers.

`engine` runs HTA (in `worker`, a process of its own) and gives a `result`. `tables` makes the tables that HTA's users
know from a `Frame`: `exact`, or by HTA's own rules (`compat`), which is how the two are compared; `shape` has the
columns.
"""

from __future__ import annotations

from sameshot.analysis.hta.result import ANALYSES, HtaFailure, HtaResult, HtaTable

__all__ = ["ANALYSES", "HtaFailure", "HtaResult", "HtaTable"]
