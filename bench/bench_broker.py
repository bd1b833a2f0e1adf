"""How long the broker takes to answer a worker, while its own process is idle and while it is busy.

    python bench/bench_broker.py [--polls N]

Kineto reads for 90 ms. Printed is the answer's age as a share of that, and the share of polls that the broker left
unanswered because they had grown too old (50 ms). "Threads" burn the interpreter lock of the broker's own process, as
verifying a trace in a thread would; "processes" take the machine's cores away from it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import os
import socket
import struct
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from sameshot.profiler.broker import Broker
from sameshot.profiler.kineto_ipc import HEADER, REQUEST

KINETO_WAITS_S = 0.09


def polls(ipc_dir: str, count: int, out: multiprocessing.SimpleQueue[list[float | None]]) -> None:
    """Poll as Kineto does, from a process of its own; None for a poll without an answer."""
    waited: list[float | None] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
        client.bind(f"{ipc_dir}/dynoconfigclient{uuid.uuid4()}")
        client.settimeout(KINETO_WAITS_S)
        message = HEADER.pack(REQUEST.size + 8, b"req") + REQUEST.pack(3, 2, 1) + struct.pack("=ii", os.getpid(), 1)
        for _ in range(count):
            began = time.perf_counter()
            client.sendto(message, f"{ipc_dir}/dynolog")
            try:
                client.recv(65536)
                waited.append(time.perf_counter() - began)
            except TimeoutError:
                waited.append(None)
            time.sleep(0.005)
    out.put(waited)


def burn(until: threading.Event | None = None) -> None:
    while until is None or not until.is_set():
        sum(range(1000))


@contextlib.contextmanager
def busy_threads(count: int) -> Iterator[None]:
    stop = threading.Event()
    threads = [threading.Thread(target=burn, args=(stop,)) for _ in range(count)]
    for thread in threads:
        thread.start()
    yield
    stop.set()
    for thread in threads:
        thread.join()


@contextlib.contextmanager
def busy_processes(count: int) -> Iterator[None]:
    processes = [multiprocessing.get_context("fork").Process(target=burn, daemon=True) for _ in range(count)]
    for process in processes:
        process.start()
    yield
    for process in processes:
        process.kill()
        process.join()


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--polls", type=int, default=300)
    count = parser.parse_args().polls
    cores = os.cpu_count() or 1
    with tempfile.TemporaryDirectory(prefix="sb-", dir="/tmp") as folder:
        loads = {
            "idle": contextlib.nullcontext,
            "2 threads": lambda: busy_threads(2),
            f"{2 * cores} processes": lambda: busy_processes(2 * cores),
        }
        for name, load in loads.items():
            with load():
                broker = Broker(Path(folder))
                await broker.start()
                context = multiprocessing.get_context("spawn")
                out = context.SimpleQueue()
                client = context.Process(target=polls, args=(folder, count, out))
                client.start()
                waited = await asyncio.to_thread(out.get)
                client.join()
                await broker.close()
            answered = sorted(w for w in waited if w is not None)
            shares = [answered[int(q * (len(answered) - 1))] / KINETO_WAITS_S for q in (0.5, 0.99)]
            print(
                f"{name:>14}: answer after {shares[0]:.4f} (p50) and {shares[1]:.4f} (p99) of Kineto's patience, "
                f"{(count - len(answered)) / count:.3f} unanswered"
            )


if __name__ == "__main__":
    asyncio.run(main())
