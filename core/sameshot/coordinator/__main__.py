"""`python -m sameshot.coordinator CONFIG.json`: serve one job attempt until SIGTERM."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import msgspec

from sameshot.coordinator import CoordinatorConfig, serve

if __name__ == "__main__":
    config = msgspec.json.decode(
        Path(sys.argv[1]).read_bytes(), type=CoordinatorConfig, dec_hook=lambda of, value: of(value)
    )
    asyncio.run(serve(config))
