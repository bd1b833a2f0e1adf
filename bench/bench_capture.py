"""How long a capture of the demonstration's job takes: request → manifest, and last trace's final name → manifest.

A real two-node job, four ranks, windows of one second. The final name is seen by a separate observer that looks at the
directories all the time, not by the agent; the manifest's time is its file's own. Aim: 1.5 s from the last name on.
Also stated: the share of the window that is common to all ranks.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from pathlib import Path

from sameshot.local.demo.job import DemoJob, JobShape
from sameshot.local.run import LocalRun, LocalSetup
from sameshot.model import Activity, CaptureSpec

CAPTURES = 5
LOOK_EVERY_S = 0.005


class Observer(threading.Thread):
    """Notes when each trace of a capture was first seen under its final name, in the worker's folder or the spool."""

    def __init__(self, run: Path, capture_id: str) -> None:
        super().__init__(daemon=True)
        self.seen: dict[str, float] = {}
        self._patterns = [f"n*/captures/{capture_id}/*/*/trace_*.json", f"spool-n*/captures/{capture_id}/*/raw.json"]
        self._run = run
        self._done = threading.Event()

    def run(self) -> None:
        while not self._done.wait(LOOK_EVERY_S):
            for pattern in self._patterns:
                for path in self._run.glob(pattern):
                    node, place = path.relative_to(self._run).parts[0][-1], path.parent.name[-1]
                    self.seen.setdefault(f"{node}/{place}", time.time())

    def stop(self) -> float:
        self._done.set()
        self.join()
        return max(self.seen.values())


def main() -> None:
    requests, names, shares = [], [], []
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch)
        setup = LocalSetup(name="bench", archive=str(out / "archive"), nodes=("node-0", "node-1"))
        with LocalRun(setup) as local, DemoJob(local, JobShape(), out) as job:
            job.wait_for_step(40)
            for _ in range(CAPTURES):
                asked = time.time()
                with local.client() as client:
                    view = client.start_capture(CaptureSpec(duration_ms=1000, activities=(Activity.CPU,)))
                    observer = Observer(local.folder.path, view.capture_id)
                    observer.start()
                    view = client.wait(view.capture_id, timeout_s=60)
                assert view.state.value == "SUCCEEDED", view
                published = Path(view.manifest_uri.removeprefix("file://")).stat().st_mtime
                names.append(published - observer.stop())
                requests.append(published - asked)
                assert view.common_window_ns is not None
                shares.append(view.common_window_ns / 1e9)
    print(
        f"last final name → manifest: median {statistics.median(names):.2f} s, worst {max(names):.2f} s (aim: 1.5 s); "
        f"request → manifest: median {statistics.median(requests):.2f} s, worst {max(requests):.2f} s, of which "
        "poll 1 + warm-up 1 + margin 2 + window 1 s are given"
    )
    print(f"window common to four ranks: median {statistics.median(shares):.0%}, worst {min(shares):.0%} of 1 s")


if __name__ == "__main__":
    main()
