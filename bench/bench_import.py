"""What `import sameshot` costs, beside the interpreter's own start, and that it stays light.

Scheduler processes parse DAG files that import it all day: the aim is 50 ms at most, without torch, pandas, kubernetes
or grpc. Each figure is the median of fresh interpreters, taken in turn so that a noisy machine hits both alike.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

RUNS = 15
COMPARED = "json, asyncio"
HEAVY = ("torch", "pandas", "kubernetes", "grpc", "numpy", "obstore")
PROBE = """
import json, sys, time
began = time.perf_counter()
import {module}
took = time.perf_counter() - began
print(json.dumps([took * 1000, [name for name in {heavy!r} if name in sys.modules]]))
"""


def measure(module: str) -> tuple[float, list[str]]:
    done = subprocess.run(
        [sys.executable, "-c", PROBE.format(module=module, heavy=HEAVY)], check=True, capture_output=True
    )
    took, heavy = json.loads(done.stdout)
    return took, heavy


def main() -> None:
    ours, theirs = [], []
    for _ in range(RUNS):
        took, heavy = measure("sameshot")
        assert not heavy, heavy
        ours.append(took)
        theirs.append(measure(COMPARED)[0])
    mine, other = statistics.median(ours), statistics.median(theirs)
    print(f"import sameshot: {mine:.1f} ms (aim: 50 ms), {mine / other:.2f} x `import {COMPARED}` ({other:.1f} ms)")


if __name__ == "__main__":
    main()
