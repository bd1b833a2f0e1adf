"""Analysis beside HTA 0.5.0 and traceinsight 0.6.1: CPU and memory of the same questions about the same ranks.

    python bench/bench_analysis.py [--sizes 10x8,100x4,500x2] [--forms plain,gz] [--times 1] [--rivals hta,traceinsight]

A size is MB of JSON per rank × ranks. The traces are a real one (two ranks of an A100 job, fractions of µs, NCCL) that
is prolonged: each repetition comes later in time and has correlations, ids and step numbers of its own, so that it
stays one trace. --no-marks renames its ProfilerStep marks: a wall-clock window has none, and HTA's cost grows with
marks × events.

HTA and traceinsight (both install `hta`) run in environments of their own, made on first use below --cache. They load
all ranks (their default, a process per rank) and compute temporal, idle and kernel breakdown, overlap, launch
statistics and queue lengths. sameshot computes these and all the rest, and writes report, summary and tables:

    raw      `sameshot analyze` of a capture that holds only raw traces (its own columns are written on the way)
    columns  the same where the capture holds columns

The contestants take turns. CPU is user + system of the whole process tree; memory the largest sum of its processes'
proportional shares (PSS), looked at every 50 ms. Compare the ratios: the machine may be busy with other things.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

REPO = Path(__file__).resolve().parent.parent
RIVALS = {"hta": "HolisticTraceAnalysis==0.5.0", "traceinsight": "traceinsight==0.6.1"}
BASE = "single/a100_nccl_2ranks_rank0.json.gz"

RIVAL = """
import json, logging, sys
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
files = {int(rank): path for rank, path in json.loads(sys.argv[1]).items()}
found = TraceAnalysis(trace_files=files, trace_dir="/")
ranks = sorted(files)
found.get_temporal_breakdown(visualize=False)
found.get_idle_time_breakdown(ranks=ranks, visualize=False)
found.get_gpu_kernel_breakdown(visualize=False)
found.get_comm_comp_overlap(visualize=False)
found.get_cuda_kernel_launch_stats(ranks=ranks, visualize=False)
found.get_queue_length_summary(ranks=ranks)
"""


# -- traces ---------------------------------------------------------------------------------------------------------


_TIME = '"ts": '


class Prolonged:
    """A trace that can be made as long as one likes; numbers that must differ between repetitions are holes in it."""

    _HOLES = re.compile(r'("ts": |"correlation": |"External id": |"id": |ProfilerStep#)(-?\d+(?:\.\d+)?)')

    def __init__(self, trace: str, *, marks: bool) -> None:
        if not marks:
            trace = trace.replace("ProfilerStep#", "train_step#")
        opening = trace.index("[", trace.index('"traceEvents"'))
        closing = opening + json.JSONDecoder().raw_decode(trace[opening:])[1] - 1
        self._head, body, self._tail = trace[: opening + 1], trace[opening + 1 : closing], trace[closing:]
        found = [(match[1], match[2]) for match in self._HOLES.finditer(body)]
        self._fraction = any("." in text for key, text in found if key == _TIME)
        number = float if self._fraction else int
        self._values = [number(text) if key == _TIME else int(text) for key, text in found]
        times = [value for (key, _), value in zip(found, self._values, strict=True) if key == _TIME and value > 0]
        ids = [value for (key, _), value in zip(found, self._values, strict=True) if key != _TIME]
        period, most = int(max(times) - min(times)) + 1000, int(max(ids)) + 1
        self._steps = [period if key == _TIME else most for key, _ in found]
        pieces = self._HOLES.split(body.replace("%", "%%"))
        text = [pieces[0]]
        for key, rest in zip(pieces[1::3], pieces[3::3], strict=True):
            text += [key, "%.3f" if key == _TIME and self._fraction else "%d", rest]
        self._template = "".join(text)

    def write(self, path: Path, size: int, rank: int, world: int) -> None:
        head = re.sub(r'"rank": \d+', f'"rank": {rank}', self._head)
        head = re.sub(r'"world_size": \d+', f'"world_size": {world}', head)
        with path.open("w") as out:
            written, turn = out.write(head), 0
            while written < size or not turn:
                values = tuple(value + step * turn for value, step in zip(self._values, self._steps, strict=True))
                written += out.write(("," if turn else "") + self._template % values)
                turn += 1
            out.write(self._tail)


def packed(path: Path) -> Path:
    target = path.with_suffix(".json.gz")
    with path.open("rb") as source, gzip.open(target, "wb", compresslevel=1) as out:
        shutil.copyfileobj(source, out, 1 << 20)
    return target


# -- captures -------------------------------------------------------------------------------------------------------


def raw_capture(folder: Path, files: dict[int, Path]) -> Path:
    """A capture of the files just as they are, without columns."""
    from sameshot.manifest import Capture, Job, Provenance, Target, build, encode
    from sameshot.model import Artifact, Identity, Outcome
    from sameshot.trace.verify import verify

    targets = []
    for rank, path in files.items():
        found = verify(path)
        (folder / f"rank-{rank}").mkdir(parents=True)
        stored = folder / f"rank-{rank}" / path.name
        stored.symlink_to(path)
        artifact = Artifact(
            uri=f"rank-{rank}/{path.name}",
            size=found.size,
            sha256=found.sha256,
            encoding=found.encoding,
            raw_size=found.raw_size,
            raw_sha256=found.raw_sha256,
            window_start_ns=found.window_start_ns,
            window_end_ns=found.window_end_ns,
        )
        targets.append(Target(f"bench/{rank}", Identity(rank=rank, host="bench"), artifact=artifact))
    capture = Capture(
        capture_id="bench",
        caller="bench",
        n=0,
        provenance=Provenance.IMPORTED,
        job=Job(namespace="local", name="bench", uid="bench", attempt=0),
        world_size=len(files),
        backend="imported",
        spec=None,
        converged_at="2026-01-01T00:00:00Z",
        outcome=Outcome.SUCCEEDED,
    )
    (folder / "manifest.json").write_bytes(encode(build(capture, targets)))
    return folder


def stored_capture(folder: Path, files: dict[int, Path]) -> Path:
    """A capture as `sameshot manifest create` makes it, with columns."""
    from sameshot.trace.imported import Import, import_traces

    import_traces(Import(files=files, out=folder, hosts=dict.fromkeys(files, "bench")))
    return folder


# -- measuring ------------------------------------------------------------------------------------------------------


class Peak:
    """The largest sum of PSS over a process and all below it."""

    def __init__(self, pid: int) -> None:
        self.bytes = 0
        self._root = psutil.Process(pid)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stop.wait(0.05):
            with contextlib.suppress(psutil.Error):
                pids = [self._root.pid, *(child.pid for child in self._root.children(recursive=True))]
                self.bytes = max(self.bytes, sum(map(_pss, pids)))


def _pss(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


def measure(command: list[str], environment: dict[str, str], folder: Path) -> dict[str, float]:
    """Run it to its end. Raises SystemExit where it fails: a number of something that did not work is none."""
    log = folder / "log"
    began = time.monotonic()
    with log.open("wb") as out, subprocess.Popen(command, env=environment, stdout=out, stderr=out, cwd=folder) as child:
        with Peak(child.pid) as peak:
            _, status, used = os.wait4(child.pid, 0)  # with all that it has waited for
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{' '.join(command)[:200]} failed ({child.returncode}):\n{log.read_text()[-2000:]}")
    return {"cpu": used.ru_utime + used.ru_stime, "wall": time.monotonic() - began, "memory": peak.bytes / 2**20}


def interpreter(cache: Path, name: str) -> Path:
    """The Python of an environment that has this rival, made where it is missing."""
    folder = cache / re.sub(r"[^\w.]", "-", RIVALS[name])
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        print(f"making {folder} with {RIVALS[name]} …", flush=True)
        venv.create(folder, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, RIVALS[name], "pandas>=2,<3"], check=True)
        (folder / "ready").touch()
    return python


# -- the contest ----------------------------------------------------------------------------------------------------


def contestants(
    rivals: dict[str, Path], files: dict[int, Path], raw: Path, columns: Path, folder: Path, cache: Path
) -> dict[str, Callable[[], dict[str, float]]]:
    # As installed: pip compiles packages, what runs from a checkout is compiled by the first, unmeasured run.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(cache / "bytecode")

    def ours(capture: Path) -> dict[str, float]:
        out = folder / "out"
        shutil.rmtree(out, ignore_errors=True)
        command = [sys.executable, "-m", "sameshot.cli.main", "analyze", str(capture), "--out", str(out)]
        return measure(command, environment, folder)

    def theirs(python: Path) -> dict[str, float]:
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "HTA_"))}
        named = json.dumps({rank: str(path) for rank, path in files.items()})
        return measure([str(python), "-c", RIVAL, named], clean, folder)

    ours(columns)
    ours(raw)
    return {
        "raw": lambda: ours(raw),
        **{name: lambda python=python: theirs(python) for name, python in rivals.items()},
        "columns": lambda: ours(columns),
    }


def rounds(runs: dict[str, Callable[[], dict[str, float]]], times: int) -> dict[str, dict[str, float]]:
    """In turns; of several times the one with the least CPU, and the largest memory."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in runs}
    for _ in range(times):
        for name, run in runs.items():
            found[name].append(run())
    best = {name: dict(min(all_of, key=lambda one: one["cpu"])) for name, all_of in found.items()}
    for name, all_of in found.items():
        best[name]["memory"] = max(one["memory"] for one in all_of)
    return best


TARGETS = {("raw", 100): 9, ("raw", 500): 9, ("columns", 100): 60, ("columns", 500): 150}


def report(size: int, ranks: int, form: str, found: dict[str, dict[str, float]]) -> None:
    print(f"{size} MB × {ranks} ranks, {form}")
    against = [name for name in found if name in RIVALS]
    for name, one in found.items():
        line = f"  {name:13} {one['cpu']:8.2f} CPU-s {one['wall']:7.1f} s {one['memory']:7.0f} MiB"
        if name not in RIVALS:
            for rival in against:
                cpu, memory = found[rival]["cpu"] / one["cpu"], found[rival]["memory"] / one["memory"]
                aim = f" (aim {TARGETS[name, size]})" if (name, size) in TARGETS and rival == "hta" else ""
                line += f"   {rival}: {cpu:.1f} × CPU{aim}, {memory:.1f} × memory"
        print(line, flush=True)


def parsed(sizes: str) -> Iterator[tuple[int, int]]:
    for each in sizes.split(","):
        size, ranks = each.split("x")
        yield int(size), int(ranks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "sameshot-bench"
    parser.add_argument("--sizes", default="10x8,100x4,500x2", help="MB per rank × ranks, comma-separated")
    parser.add_argument("--forms", default="plain,gz", help="how the raw traces are stored")
    parser.add_argument("--trace", default=BASE, help="the real trace, below traces/ of --data")
    parser.add_argument("--marks", action=argparse.BooleanOptionalAction, default=True, help="keep ProfilerStep marks")
    parser.add_argument("--times", type=int, default=1, help="rounds per size")
    parser.add_argument("--rivals", default=",".join(RIVALS), help="which of them to run")
    parser.add_argument("--cache", type=Path, default=cache, help="where their environments are kept")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("SAMESHOT_TEST_DATA", REPO.parent / "shared")))
    options = parser.parse_args()
    base = options.data / "traces" / options.trace
    if not base.exists():
        raise SystemExit(f"no {base}: set SAMESHOT_TEST_DATA to a folder with traces/{options.trace}")
    rivals: dict[str, Path] = {name: interpreter(options.cache, name) for name in options.rivals.split(",") if name}
    trace = Prolonged(gzip.decompress(base.read_bytes()).decode(), marks=options.marks)
    for size, ranks in parsed(options.sizes):
        with tempfile.TemporaryDirectory(prefix="bench-analysis-") as name:
            folder = Path(name)
            plain: dict[int, Path] = {rank: folder / f"rank{rank}.json" for rank in range(ranks)}
            for rank, path in plain.items():
                trace.write(path, size * 1_000_000, rank, ranks)
            columns = stored_capture(folder / "columns", plain)
            for form in options.forms.split(","):
                files = plain if form == "plain" else {rank: packed(path) for rank, path in plain.items()}
                raw = raw_capture(folder / f"raw-{form}", files)
                runs = contestants(rivals, files, raw, columns, folder, options.cache)
                report(size, ranks, form, rounds(runs, options.times))


if __name__ == "__main__":
    main()
