"""A stand-in for the stock dynolog daemon, true to its protocols and to its measured vices. Run as a program.

It takes dynolog's own flags (`--port=N --enable_ipc_monitor`) and reads KINETO_IPC_SOCKET_DIR like it, so a test starts
either of the two with the same command. It shares no code with sameshot: an error in our encoder must not be undone by
the same error here. What it does after dynolog 0.6 (src/rpc/SimpleJsonServer*, src/LibkinetoConfigManager.cpp,
src/tracing/IPCMonitor.cpp):

- one RPC client at a time, no timeout anywhere: a silent client blocks all others (connecting still succeeds);
- the answer is written in two pieces, and SIGPIPE ends the daemon when the peer has closed;
- the length is read with one `read`: a split header is a malformed one; malformed requests are closed without a byte;
- int32 job ids and pids, silently truncated; pids match recorded ancestors; `[]` and `[0]` mean everybody;
- busy means that a config is stored and not fetched, whatever the process is doing;
- dead processes stay until a sweep finds them silent for longer than the keep-alive (60 s, swept every 60 s);
- a client under another directory string aborts it.

Knobs of the stand-in alone, as environment variables: STANDIN_KEEPALIVE_S, STANDIN_SWEEP_S, and STANDIN_THINK_S, the
time between reading a request and answering it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import struct
import sys
import threading
import time
from typing import Any

HEADER = struct.Struct("=Q32s")
EVENTS, ACTIVITIES = 1, 2


class Process:
    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.config = ""
        self.last_seen = time.monotonic()


class Registry:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.jobs: dict[str, dict[frozenset[int], Process]] = {}

    def fetch(self, job_id: int, pids: tuple[int, ...], wants: int) -> str:
        with self.lock:
            process = self.jobs.setdefault(str(job_id), {}).setdefault(frozenset(pids), Process(pids[0]))
            process.last_seen = time.monotonic()
            config = ""
            if wants & ACTIVITIES and process.config:
                config, process.config = process.config + "\n", ""
            return config

    def offer(self, job_id: int, pids: set[int], config: str, limit: int) -> dict[str, Any]:
        matched: list[int] = []
        triggered: list[int] = []
        busy = 0
        everybody = not pids or pids == {0}
        with self.lock:
            for family, process in self.jobs.get(str(job_id), {}).items():
                if not everybody and not family & pids:
                    continue
                matched.append(process.pid)
                if limit < 0 or len(triggered) < limit:
                    if process.config:
                        busy += 1
                    else:
                        process.config = config
                        triggered.append(process.pid)
        return {
            "activityProfilersBusy": busy,
            "activityProfilersTriggered": triggered,
            "eventProfilersBusy": 0,
            "eventProfilersTriggered": [],
            "processesMatched": matched,
        }

    def sweep(self, keep_alive_s: float) -> None:
        with self.lock:
            for job_id, processes in list(self.jobs.items()):
                for family, process in list(processes.items()):
                    if time.monotonic() - process.last_seen > keep_alive_s:
                        del processes[family]
                if not processes:
                    del self.jobs[job_id]


def as_int32(value: Any) -> int:
    """nlohmann's conversion: any number is accepted and cut to 32 bits, everything else throws."""
    if not isinstance(value, int | float):
        raise TypeError(f"[json.exception.type_error.302] type must be number, but is {type(value).__name__}")
    return (int(value) + 2**31) % 2**32 - 2**31


def handle(registry: Registry, text: bytes) -> str:
    """The answer to one request; empty: the connection is closed without a byte."""
    try:
        request = json.loads(text)
    except ValueError:
        return ""
    if not isinstance(request, dict) or "fn" not in request:
        return ""
    match request["fn"]:
        case "getStatus":
            return json.dumps({"status": 1})
        case "getVersion":
            return json.dumps({"version": "0.6.0"})
        case "setKinetOnDemandRequest":
            if "config" not in request or "pids" not in request:
                return json.dumps({"status": "failed"})
            try:
                if not isinstance(request["config"], str):
                    raise TypeError("[json.exception.type_error.302] type must be string")
                if not isinstance(request["pids"], list):
                    raise TypeError("[json.exception.type_error.302] type must be array")
                return json.dumps(
                    registry.offer(
                        as_int32(request.get("job_id", 0)),
                        {as_int32(pid) for pid in request["pids"]},
                        request["config"],
                        as_int32(request.get("process_limit", 1000)),
                    )
                )
            except TypeError as error:
                return json.dumps({"status": f"failed with exception = {error}"})
        case _:
            return ""


def read_message(connection: socket.socket) -> bytes:
    header = connection.recv(4)
    if len(header) < 4 or (size := struct.unpack("=i", header)[0]) <= 0:
        return b""
    body = b""
    while len(body) < size:
        chunk = connection.recv(min(65536, size - len(body)))
        if not chunk:
            return b""
        body += chunk
    return body


def serve_rpc(registry: Registry, listening: socket.socket, think_s: float) -> None:
    while True:
        connection, _ = listening.accept()
        with connection:
            try:
                if answer := handle(registry, read_message(connection)):
                    time.sleep(think_s)
                    # Two writes, as the original has them; SIGPIPE is at its default here and ends the process.
                    connection.send(struct.pack("=i", len(answer)))
                    connection.sendall(answer.encode())
            except ConnectionError:
                pass


def address(directory: str, name: str) -> str | bytes:
    """Abstract names carry a trailing NUL that counts."""
    return f"{directory}/{name}" if directory else b"\0" + name.encode() + b"\0"


def serve_ipc(registry: Registry, directory: str) -> None:
    endpoint = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    own = address(directory, "dynolog")
    if isinstance(own, str) and os.path.exists(own):
        os.unlink(own)
    endpoint.bind(own)
    if isinstance(own, str):
        os.chmod(own, 0o666)
    while True:
        data, peer = endpoint.recvfrom(65536)
        if directory and not (isinstance(peer, str) and peer.startswith(directory + "/")):
            print(f"Unexpected socket name: {peer!r}", file=sys.stderr, flush=True)
            os.abort()
        if len(data) < HEADER.size:
            continue
        kind = HEADER.unpack_from(data)[1].split(b"\0")[0]
        body = data[HEADER.size :]
        if kind == b"req":
            wants, count, job_id = struct.unpack_from("=iiq", body)
            if count == 0:
                continue
            pids = struct.unpack_from(f"={count}i", body, 16)
            answer = registry.fetch(job_id, pids, wants).encode()
        elif kind == b"ctxt":
            answer = struct.pack("=i", 1)
        else:
            continue
        try:
            endpoint.sendto(HEADER.pack(len(answer), kind) + answer, socket.MSG_DONTWAIT, peer)
        except OSError:
            print(f"Failed to return config to {peer!r}", file=sys.stderr, flush=True)
        time.sleep(0.01)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=1778)
    parser.add_argument("--enable_ipc_monitor", action="store_true")
    arguments = parser.parse_args()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    registry = Registry()
    if arguments.enable_ipc_monitor:
        directory = os.environ.get("KINETO_IPC_SOCKET_DIR", "")
        threading.Thread(target=serve_ipc, args=(registry, directory), daemon=True).start()
    listening = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    listening.bind(("::", arguments.port))
    listening.listen(50)
    think_s = float(os.environ.get("STANDIN_THINK_S", "0"))
    threading.Thread(target=serve_rpc, args=(registry, listening, think_s), daemon=True).start()
    keep_alive_s = float(os.environ.get("STANDIN_KEEPALIVE_S", "60"))
    while True:
        time.sleep(float(os.environ.get("STANDIN_SWEEP_S", "60")))
        registry.sweep(keep_alive_s)


if __name__ == "__main__":
    main()
