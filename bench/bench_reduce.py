"""What comparing many ranks costs: CPU and memory of `reduce_ranks` over simulated summaries with a planted straggler.

    python bench/bench_reduce.py [--ranks 64,512,4096]

The job has tensor parallel groups of eight and data parallel ones across all hosts, whose clocks are up to 3 s off; one
rank computes 8 ms longer in every step. Its summaries are simulated and written to a temporary folder, which is removed
again. Each measurement is a process of its own that reads them, as `reduce` does after `map` ran elsewhere: CPU is
user + system, memory the process's peak (VmHWM). The answer has to be right, too. Prints only; writes nothing else.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
STEPS = 20
LIMIT_S, LIMIT_MIB = 10.0, 1024


def simulate(ranks: int, folder: Path) -> int:
    """Write one summary per rank and the manifest; returns the planted rank."""
    sys.path[:0] = [str(REPO / "tests" / "support")]
    import msgspec
    from make_job import GpuJob, Slow
    from planted import detailed, manifest_for

    from sameshot.manifest import encode

    planted = ranks // 3
    job = GpuJob(
        hosts=ranks // 8,
        gpus=8,
        tp=8,
        steps=STEPS,
        layers=2,
        buckets=2,
        clock_s=3.0,
        slow=(Slow(planted, "compute", 8.0),),
    )
    run = job.run()
    summaries = detailed(run)
    (folder / "manifest.json").write_bytes(encode(manifest_for(run, summaries)))
    with (folder / "ranks.jsonl").open("wb") as out:
        for summary in summaries:
            out.write(msgspec.json.encode(summary) + b"\n")
    return planted


def measure(folder: Path) -> None:
    """In a process of its own: read, reduce, print what it took."""
    import msgspec

    from sameshot.analysis import RankSummary, reduce_ranks
    from sameshot.manifest import decode

    manifest = decode((folder / "manifest.json").read_bytes())
    decoder = msgspec.json.Decoder(RankSummary)
    began = time.process_time()
    ranks = [decoder.decode(line) for line in (folder / "ranks.jsonl").open("rb")]
    read = time.process_time()
    summary = reduce_ranks(manifest, ranks)
    done = time.process_time()
    written = len(msgspec.json.encode(summary))
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    print(
        json.dumps(
            {
                "read": read - began,
                "reduce": done - read,
                "peak_mib": int(peak.split()[1]) / 1024,
                "summary_mb": written / 1e6,
                "named": [rank.rank for rank in summary.late.ranks],
                "cause": [rank.cause.value for rank in summary.late.ranks],
                "aligned": sum(clock.offset is not None for clock in summary.clocks.hosts) if summary.clocks else 0,
            }
        )
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--ranks", default="64,512,4096", help="sizes of the job, multiples of 8 (default: %(default)s)"
    )
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.folder:
        measure(Path(options.folder))
        return 0
    good = True
    print(f"{'ranks':>6} {'files':>9} {'read':>8} {'reduce':>8} {'peak':>10} {'summary':>9}  named")
    for ranks in map(int, options.ranks.split(",")):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            planted = simulate(ranks, folder)
            size = (folder / "ranks.jsonl").stat().st_size / 1e6
            child = subprocess.run(
                [sys.executable, __file__, "--folder", name], check=True, capture_output=True, text=True
            )
        found = json.loads(child.stdout)
        right = found["named"] == [planted] and found["cause"] == ["compute"] and found["aligned"] == ranks // 8
        within = found["read"] + found["reduce"] < LIMIT_S and found["peak_mib"] < LIMIT_MIB
        good &= right and within
        print(
            f"{ranks:>6} {size:>6.1f} MB {found['read']:>6.2f} s {found['reduce']:>6.2f} s"
            f" {found['peak_mib']:>6.0f} MiB {found['summary_mb']:>6.1f} MB  rank {found['named']},"
            f" {found['aligned']} clocks{'' if right else '  WRONG ANSWER'}{'' if within else '  OVER THE LIMIT'}"
        )
    print(f"limits: {LIMIT_S:.0f} s of CPU and {LIMIT_MIB} MiB")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
