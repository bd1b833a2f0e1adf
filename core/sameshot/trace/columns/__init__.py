"""A trace's events as typed columns: built while the trace is verified, stored as Parquet, read by analysis.

`schema` says which columns there are, `chunk` how they look in memory, `build` makes them from decoded events, `write`
and `read` keep them in Parquet.
"""

from __future__ import annotations

from sameshot.trace.columns.chunk import MISSING, Chunk, ChunkSink, Dictionary

__all__ = ["MISSING", "Chunk", "ChunkSink", "Dictionary"]
