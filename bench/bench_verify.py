"""What a full verification costs: CPU against `json.loads` and against its own parts, and memory above idle.

    python bench/bench_verify.py [--sizes 50,500,2000] [--data ../shared]

Every measurement is a process of its own. CPU is user + system of that process around the call; memory is its peak
resident size (VmHWM, which starts anew with exec) above its resident size after the imports. Big files are made by
repeating the events of a small trace, in a temporary folder that is removed again. Prints only; writes nothing else.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

BLOCK = 256 << 10  # as the verifier reads
REPO = Path(__file__).resolve().parent.parent


# -- files --------------------------------------------------------------------------------------------------------


def synthetic() -> bytes:
    """A CPU trace as torch 2.13 lays it out: four operators, a flow arrow and a Python function per turn."""
    events = []
    for i in range(500):
        ts = 5_140_056_930_963.196 + i * 50
        for j, name in enumerate(("aten::linear", "aten::addmm", "aten::copy_", "gloo:all_reduce")):
            events.append(
                _SPAN % (b"cpu_op", name.encode(), ts + j * 11.5, 7.25 + j, b'"External id": %d,"Ev Idx": %d' % (i, j))
            )
        events.append(
            _SPAN
            % (b"python_function", b"torch/nn/modules/linear.py(124): forward", ts, 44.125, b'"Python id": %d' % i)
        )
        events.append(_FLOW % (b"s", i, ts))
        events.append(_FLOW % (b"f", i, ts + 20))
    return b'{\n    "schemaVersion": 1,\n    "traceEvents": [\n' + b",".join(events) + b'\n  ],"traceName": "t.json" }'


_SPAN = (
    b'\n  {\n    "ph": "X",\n    "cat": "%s",\n    "name": "%s",\n    "pid": 7040,\n    "tid": 7041,\n    "ts": %.3f,\n'
    b'    "dur": %.3f\n    ,\n    "args": {\n      %s, "Record function id": 0\n    }\n  }'
)
_FLOW = (
    b'\n  {\n    "ph": "%s",\n    "id": %d,\n    "pid": 7040,\n    "tid": 7041,\n    "ts": %.3f,\n'
    b'    "cat": "fwdbwd",\n    "name": "fwdbwd", "bp": "e"\n  }'
)


def enlarge(trace: bytes, path: Path, size: int) -> None:
    """Repeat all events of `trace` until the file has `size` bytes."""
    opening = trace.index(b"[", trace.index(b'"traceEvents"'))
    text = trace[opening:].decode()
    closing = opening + len(text[: json.JSONDecoder().raw_decode(text)[1] - 1].encode())
    events = trace[opening + 1 : closing]
    with path.open("wb") as out:
        out.write(trace[: opening + 1])
        for _ in range(max(0, size - len(trace)) // (len(events) + 1)):
            out.write(events)
            out.write(b",")
        out.write(trace[opening + 1 :])


def one_event(path: Path, size: int) -> None:
    """A file that is a single event: no cut anywhere."""
    with path.open("wb") as out:
        out.write(b'{"traceEvents": [{"ph": "X", "ts": 1, "args": {"list": [[')
        for _ in range(size // 10_000_000):
            out.write(b'"x"],["y",' * 1_000_000)
        out.write(b"0]]}}]}")


# -- one measurement, in a process of its own -----------------------------------------------------------------------


def measure(what: str, path: Path) -> dict[str, Any]:
    command = [sys.executable, __file__, "--child", what, str(path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    raise LookupError(key)


def child(what: str, path: Path) -> dict[str, Any]:
    tasks: dict[str, Callable[[Path], Callable[[], object]]] = {
        "json.loads": lambda path: lambda: json.loads(path.read_bytes()),
        "verify": lambda path: _verify(path, store=False, sink=False),
        "verify+gzip": lambda path: _verify(path, store=True, sink=False),
        "verify+sink": lambda path: _verify(path, store=False, sink=True),
        "part read": lambda path: lambda: [None for _ in _blocks(path)],
        "part utf8": _part_utf8,
        "part sha256": _part_sha256,
        "part gzip": _part_gzip,
        "part decode": _part_decode,
        "part bounds": _part_bounds,
        "part window": _part_window,
    }
    task = tasks[what](path)
    if what != "json.loads":
        bytes(8 << 20)  # as the verifier does (see there): the parts get the same cheap memory
    idle = status("VmRSS")
    start, wall = time.process_time(), time.monotonic()
    note = task()
    cpu, wall = time.process_time() - start, time.monotonic() - wall
    return {
        "cpu": cpu,
        "wall": wall,
        "memory": status("VmHWM") - idle,
        "note": str(note) if isinstance(note, str) else "",
    }


def _verify(path: Path, *, store: bool, sink: bool) -> Callable[[], object]:
    from sameshot.errors import TraceError
    from sameshot.trace.columns.build import ColumnBuilder
    from sameshot.trace.columns.chunk import Chunk, Dictionaries
    from sameshot.trace.verify import verify

    class Drop:
        def chunk(self, chunk: Chunk, words: Dictionaries) -> None:
            pass

    def run() -> object:
        stored = path.with_name(f"stored.{os.getpid()}") if store else None
        try:
            found = verify(path, store_as=stored, sink=ColumnBuilder(Drop()) if sink else None)
            return f"{found.elements} events, {found.raw_size / found.size:.1f}x"
        except TraceError as error:
            return str(error)
        finally:
            if stored is not None:
                stored.unlink(missing_ok=True)

    return run


def _blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb", buffering=0) as file:
        while block := file.read(BLOCK):
            yield block


def _timed(path: Path, once: Callable[[bytes], object]) -> Callable[[], object]:
    """Blocks are read before the clock starts, so that each part is counted once."""
    blocks = list(_blocks(path))
    return lambda: [once(block) for block in blocks] and None


def _part_utf8(path: Path) -> Callable[[], object]:
    import codecs

    decoder = codecs.getincrementaldecoder("utf-8")()
    return _timed(path, lambda block: block.isascii() or decoder.decode(block))


def _part_sha256(path: Path) -> Callable[[], object]:
    import hashlib

    return _timed(path, hashlib.sha256().update)


def _part_gzip(path: Path) -> Callable[[], object]:
    from isal import isal_zlib

    packer = isal_zlib.compressobj(level=1, wbits=31, memLevel=1)
    return _timed(path, packer.compress)


def _event_blocks(path: Path) -> list[bytes]:
    """`traceEvents` cut where events end: the decoder's work without the search for cuts."""
    data = path.read_bytes()
    at = data.index(b"[", data.index(b'"traceEvents"')) + 1
    found = []
    border = b"},\n" if b"},\n" in data else b"},"
    while at < len(data) - BLOCK:
        end = at + BLOCK
        while True:
            end = data.rindex(border, at, end) + 1
            block = b"[" + data[at:end] + b"]"
            try:
                json.loads(block)
                break
            except ValueError:
                continue
        found.append(block)
        at = end + 1
    return found


def _part_decode(path: Path) -> Callable[[], object]:
    from sameshot.trace.decode import decode_lean

    blocks = _event_blocks(path)
    return lambda: [len(decode_lean(block)) for block in blocks] and None


def _part_bounds(path: Path) -> Callable[[], object]:
    from sameshot.trace.bounds import has_no_huge_number, is_shallow

    return _timed(path, lambda block: is_shallow(block) and has_no_huge_number(block))


def _part_window(path: Path) -> Callable[[], object]:
    from sameshot.trace.decode import decode_lean
    from sameshot.trace.window import Window

    events = [decode_lean(block) for block in _event_blocks(path)]
    window = Window()
    return lambda: [window.add(block) for block in events] and None


# -- report ---------------------------------------------------------------------------------------------------------


def best(what: str, path: Path, times: int = 3) -> dict[str, Any]:
    return min((measure(what, path) for _ in range(times)), key=lambda answer: answer["cpu"])


def report_cpu(name: str, path: Path) -> None:
    mb = path.stat().st_size / 1e6
    loads = best("json.loads", path)["cpu"]
    whole = best("verify+gzip", path)
    plain, sink = best("verify", path)["cpu"], best("verify+sink", path)["cpu"]
    parts = {
        part: best(f"part {part}", path)["cpu"]
        for part in ("read", "utf8", "sha256", "gzip", "decode", "bounds", "window")
    }
    libraries = sum(parts[part] for part in ("read", "utf8", "sha256", "gzip", "decode"))
    everything = sum(parts.values())
    print(f"{name} ({mb:.0f} MB, {whole['note']}); ms of CPU per MB:")
    print("  parts: " + ", ".join(f"{part} {cpu / mb * 1000:.2f}" for part, cpu in parts.items()))
    print(
        f"  full verify {whole['cpu'] / mb * 1000:.2f}, not stored {plain / mb * 1000:.2f}; "
        f"json.loads {loads / mb * 1000:.2f}"
    )
    print(f"  full verify / json.loads           = {whole['cpu'] / loads:.2f}   (target 0.40)")
    print(f"  full verify / its parts            = {whole['cpu'] / everything:.2f}   (target 1.25)")
    print(f"  full verify / library calls alone  = {whole['cpu'] / libraries:.2f}   (parts without bounds and window)")
    print(f"  with all event fields / json.loads = {sink / loads:.2f}   (not stored)", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="50,500,2000", help="MB of JSON for the memory table")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("SAMESHOT_TEST_DATA", REPO.parent / "shared")))
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(child(options.child[0], Path(options.child[1]))))
        return
    traces = {"synthetic CPU trace": synthetic()}
    for name in ("single/a100_nccl_2ranks_rank0", "resnet50_dataloader/num_workers_0", "single/h100_bert_small"):
        real = options.data / f"traces/{name}.json.gz"
        if real.exists():
            traces[name] = gzip.decompress(real.read_bytes())
    sizes = [int(size) for size in options.sizes.split(",")]
    with tempfile.TemporaryDirectory(prefix="bench-verify-") as folder:
        path = Path(folder) / "trace.json"
        for name, trace in traces.items():
            enlarge(trace, path, sizes[0] * 1_000_000)
            report_cpu(name, path)
        print("memory above idle (target 64 MiB)")
        for name in list(traces)[:2]:
            for size in sizes:
                enlarge(traces[name], path, size * 1_000_000)
                for what in ("verify+gzip", "verify+sink"):
                    found = measure(what, path)
                    print(
                        f"  {name}, {size} MB, {what}: {found['memory'] / 2**20:.0f} MiB, "
                        f"{found['cpu'] / size * 1000:.2f} ms/MB",
                        flush=True,
                    )
        packed = path.with_suffix(".gz")
        with gzip.open(packed, "wb", compresslevel=1) as out:
            for block in _blocks(path):
                out.write(block)
        found = measure("verify+gzip", packed)
        print(f"  the last of these as gzip: {found['memory'] / 2**20:.0f} MiB, {found['cpu'] / size * 1000:.2f} ms/MB")
        one_event(path, 200_000_000)
        found = measure("verify+gzip", path)
        print(f"  one event of 200 MB: {found['memory'] / 2**20:.0f} MiB, {found['cpu']:.2f} s, {found['note']}")


if __name__ == "__main__":
    main()
