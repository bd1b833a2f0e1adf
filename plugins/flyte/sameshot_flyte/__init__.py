"""sameshot for Flyte: a capture task on an async connector, `analyze_rank` to map, reports as Decks.

    from sameshot_flyte import SameshotCapture, profile_job

The names come from the face of the SDK that is installed: `sameshot_flyte.flyte1` on flytekit 1.16, `sameshot_flyte.
flyte2` on flyte 2 (the two exclude each other). All that decides anything is in the modules beside this one, for both.
"""

from __future__ import annotations
