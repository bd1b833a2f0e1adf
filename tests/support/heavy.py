"""Libraries for those who capture and analyse.

A scheduler, which imports plugins and parses DAG files all day, pays for none of them.
"""

from __future__ import annotations

import sys
from collections.abc import Collection

HEAVY = ("google.protobuf", "grpc", "isal", "numpy", "obstore", "pandas", "pyarrow", "torch")


def heavy_since(before: Collection[str]) -> list[str]:
    """Those that are imported and are not among the modules `before`: an engine may bring some by itself."""
    return [name for name in HEAVY if name in sys.modules and name not in before]
