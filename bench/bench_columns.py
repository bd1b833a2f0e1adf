"""What columns cost: CPU and peak memory of loading a trace into Parquet, and of making a frame of what is stored.

    python bench/bench_columns.py [--sizes 50,500,2000] [--data ../shared]

Every measurement is a process of its own. CPU is user + system of that process around the call, without imports; memory
is its peak resident size (VmHWM) above its resident size after the imports. Files are made of the events of a small
trace, repeated with times, durations and ids of their own, so that nothing compresses better than it would. Prints
only; big files live in a temporary folder that is removed again.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parent.parent
_NUMBERS = re.compile(r'("(?:ts|dur|correlation|External id|id)": ?)(-?[0-9.]+)')


# -- files --------------------------------------------------------------------------------------------------------


def enlarge(trace: bytes, path: Path, size: int) -> None:
    """A trace of `size` bytes: the events of `trace` again and again, each time later and with other ids."""
    text = trace.decode()
    start = text.index("[", text.index('"traceEvents"')) + 1
    end = start - 1 + json.JSONDecoder().raw_decode(text[start - 1 :])[1] - 1
    parts = _NUMBERS.split(text[start:end])
    texts, keys, values = parts[0::3], parts[1::3], parts[2::3]
    luck = random.Random(1)
    written = start
    with path.open("w") as out:
        out.write(text[:start])
        turn = 0
        while written < size:
            piece = ["," if turn else ""]
            for before, key, value in zip(texts, keys, values, strict=False):
                piece += (before, key, _changed(key, value, turn, luck))
            piece.append(texts[-1])
            whole = "".join(piece)
            out.write(whole)
            written += len(whole)
            turn += 1
        out.write(text[end:])


def _changed(key: str, value: str, turn: int, luck: random.Random) -> str:
    if key.startswith('"ts"'):
        later = turn * 2_000_000 + luck.random() / 4
        return f"{float(value) + later:.3f}" if "." in value else str(int(value) + int(later))
    if key.startswith('"dur"'):
        return f"{float(value) * luck.uniform(0.95, 1.05):.3f}" if "." in value else value
    return str(int(value) + turn * 50_000) if value.lstrip("-").isdigit() else value


# -- one measurement, in a process of its own -----------------------------------------------------------------------


def measure(what: str, path: Path) -> dict[str, Any]:
    command = [sys.executable, __file__, "--child", what, str(path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def best(what: str, path: Path, times: int = 3) -> dict[str, Any]:
    return min((measure(what, path) for _ in range(times)), key=lambda answer: float(answer["cpu"]))


def status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    raise LookupError(key)


def child(what: str, path: Path) -> dict[str, Any]:
    tasks: dict[str, Callable[[Path], object]] = {
        "json.loads": lambda path: len(json.loads(path.read_bytes())),
        "typed decode": _typed_decode,
        "verify": lambda path: _load(path, columns=False, store=False),
        "load": lambda path: _load(path, columns=True, store=False),
        "verify+gzip": lambda path: _load(path, columns=False, store=True),
        "verify+gzip+columns": lambda path: _load(path, columns=True, store=True),
        "frame from trace": _frame_from_trace,
        "frame from columns": _frame_from_columns,
    }
    import numpy  # noqa: F401
    import pyarrow.parquet  # noqa: F401

    import sameshot.analysis.frame
    import sameshot.trace.columns.read
    import sameshot.trace.columns.write
    import sameshot.trace.verify  # noqa: F401

    idle = status("VmRSS")
    start = time.process_time()
    note = tasks[what](path)
    cpu = time.process_time() - start
    return {"cpu": cpu, "memory": status("VmHWM") - idle, "whole": status("VmHWM"), "note": note}


def _load(path: Path, *, columns: bool, store: bool) -> object:
    from sameshot.trace.columns.build import ColumnBuilder
    from sameshot.trace.columns.write import ColumnWriter
    from sameshot.trace.verify import verify

    stored = path.with_name(f"stored.{os.getpid()}") if store else None
    try:
        if not columns:
            return verify(path, store_as=stored).elements
        writer = ColumnWriter(path.with_suffix(".parquet"))
        builder = ColumnBuilder(writer)
        found = verify(path, sink=builder, store_as=stored)
        return writer.close(builder.facts(found)).size
    finally:
        if stored is not None:
            stored.unlink(missing_ok=True)


def _typed_decode(path: Path) -> object:
    """The floor of any loader that decodes with msgspec: the typed rows of each block, and nothing else."""
    from sameshot.trace.columns import parse

    events = 0
    with path.open("rb") as file:
        rest = b"["
        while block := file.read(256 << 10):
            if rest == b"[":
                block = block[block.index(b"[", block.index(b'"traceEvents"')) + 1 :]
            text = rest + block
            while (end := text.rfind(b"},\n")) > 0:
                try:
                    events += len(parse._rows.decode(text[: end + 1] + b"]"))
                    break
                except ValueError:
                    text, rest = text[:end], text[end:]
            rest = b"[" + (rest + block)[end + 2 :] if end > 0 else rest + block
    return events


def _frame_from_trace(path: Path) -> object:
    from sameshot.analysis.frame import FrameBuilder
    from sameshot.trace.columns.build import ColumnBuilder
    from sameshot.trace.verify import verify

    frame = FrameBuilder()
    verify(path, sink=ColumnBuilder(frame))
    return frame.frame().events


def _frame_from_columns(path: Path) -> object:
    from sameshot.analysis.frame import FrameBuilder
    from sameshot.trace.columns.read import read_columns

    frame = FrameBuilder()
    return frame.frame(read_columns(path.with_suffix(".parquet"), frame, frame.wanted)).events


# -- report ---------------------------------------------------------------------------------------------------------


def report(path: Path, *, with_json: bool, times: int) -> None:
    size = path.stat().st_size
    mb = size / 1e6
    found = {what: best(what, path, times) for what in ("verify", "load", "verify+gzip", "verify+gzip+columns")}
    found |= {what: best(what, path, times) for what in ("frame from trace", "frame from columns")}
    events = found["verify"]["note"]
    print(f"{mb:.0f} MB, {events} events, columns {found['load']['note'] / events:.1f} B per event")
    for what, answer in found.items():
        print(
            f"  {what:<20} {answer['cpu']:7.2f} CPU-s {answer['cpu'] / mb * 1000:6.2f} ms/MB "
            f"{answer['memory'] / 2**20:6.0f} MiB above idle"
        )
    load, whole = found["load"]["cpu"], found["verify+gzip+columns"]["cpu"]
    stored = found["frame from columns"]
    allowed = 200 + 48 * events / 2**20
    print(f"  all in one pass / loader alone = {whole / load:.2f}   (aim 1.30)")
    print(
        f"  frame from columns: {stored['cpu'] / events * 1e6:.3f} CPU-s per million events, peak of the whole process "
        f"{stored['whole'] / 2**20:.0f} MiB (allowed for all of map: {allowed:.0f})"
    )
    if with_json:
        loads, typed = best("json.loads", path, times)["cpu"], best("typed decode", path, times)
        print(
            f"  loader / json.loads = {load / loads:.2f}; frame from columns / json.loads = {stored['cpu'] / loads:.4f}"
        )
        print(
            f"  floor, the typed decoder alone: {typed['cpu'] / mb * 1000:.2f} ms/MB of {typed['note']} events; "
            f"a native scan took 1.43 ms/MB on another machine",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="50,500,2000", help="MB of JSON")
    parser.add_argument("--times", type=int, default=3, help="processes per figure, of which the best counts")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("SAMESHOT_TEST_DATA", REPO.parent / "shared")))
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(child(options.child[0], Path(options.child[1]))))
        return
    real = options.data / "traces/single/a100_nccl_2ranks_rank0.json.gz"
    if not real.exists():
        sys.exit(f"{real} is missing: say where the shared data is (--data)")
    trace = gzip.decompress(real.read_bytes())
    with tempfile.TemporaryDirectory(prefix="bench-columns-") as folder:
        path = Path(folder) / "trace.json"
        for at, size in enumerate(options.sizes.split(",")):
            enlarge(trace, path, int(size) * 1_000_000)
            report(path, with_json=at == 0, times=options.times if int(size) < 1000 else 1)


if __name__ == "__main__":
    main()
