"""What the admission webhook costs a pod that is being created.

    python bench/bench_webhook.py [--rounds N]

One pod of 20 variables and 6 volumes, asked about again and again: by the pure function (`arm_template`), by the whole
review without a network (decode, arm, difference, encode), and over HTTPS from the real process, on a kept connection
(as API servers keep theirs) and on a new one each time. Everything in one run, interleaved, and stated against the pure
function. API servers wait 2 s; the aim is a p99 of a tenth of that on a kept connection. Memory is resident memory.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / "tests" / each) for each in ("support", "webhook")]
from tls import Authority  # noqa: E402
from webhook_lab import pod, review_of  # noqa: E402

from sameshot.arm.kinds import place_of_pod  # noqa: E402
from sameshot.arm.template import arm_template  # noqa: E402
from sameshot.webhook import review  # noqa: E402

AIM_MS = 200.0


def a_pod() -> dict[str, Any]:
    env = [{"name": f"SETTING_{index}", "value": "x" * 40} for index in range(20)]
    mounts = [{"name": f"data-{index}", "mountPath": f"/data/{index}"} for index in range(6)]
    volumes = [{"name": f"data-{index}", "persistentVolumeClaim": {"claimName": f"d{index}"}} for index in range(6)]
    return pod(container={"env": env, "volumeMounts": mounts}, spec={"volumes": volumes})


class Server:
    """The real process."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority()
        self.authority.issue(folder, "localhost")
        address = folder / "address"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sameshot.cli.main", "webhook", "--certificate", folder / "tls.crt",
             "--key", folder / "tls.key", "--listen", "127.0.0.1:0", "--address-file", address],
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        while not address.exists():
            assert self.process.poll() is None
            time.sleep(0.05)
        self.port = int(address.read_text().rpartition(":")[2])
        self.kept = self.connect()

    def connect(self) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection("localhost", self.port, context=self.authority.client_context(), timeout=10)

    def ask(self, connection: http.client.HTTPSConnection, body: bytes) -> None:
        connection.request("POST", "/arm", body, {"Content-Type": "application/json"})
        answer = json.loads(connection.getresponse().read())
        assert "patch" in answer["response"], answer

    def ask_anew(self, body: bytes) -> None:
        connection = self.connect()
        self.ask(connection, body)
        connection.close()

    @property
    def resident_mib(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS:"))

    def close(self) -> None:
        self.kept.close()
        self.process.kill()
        self.process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=500)
    rounds = parser.parse_args().rounds
    thing = a_pod()
    body = review_of(thing)
    with tempfile.TemporaryDirectory(prefix="webhook") as name:
        server = Server(Path(name))
        variants: dict[str, Callable[[], object]] = {
            "arm_template": lambda: arm_template(thing, place=place_of_pod(thing)),
            "the whole review": lambda: review.answer(body),
            "https, kept connection": lambda: server.ask(server.kept, body),
            "https, new connection": lambda: server.ask_anew(body),
        }
        times: dict[str, list[float]] = {each: [] for each in variants}
        try:
            for round_ in range(rounds + 20):
                for each, work in variants.items():
                    began = time.perf_counter()
                    work()
                    if round_ >= 20:  # the first ones warm up
                        times[each].append((time.perf_counter() - began) * 1e3)
            resident = server.resident_mib
        finally:
            server.close()
    base = statistics.median(times["arm_template"])
    print(f"a review of {len(body)} bytes, ms; {rounds} rounds; the webhook's process: {resident:.0f} MiB")
    for each, values in times.items():
        median, p99 = statistics.median(values), statistics.quantiles(values, n=100)[98]
        print(f"  {each:26} median {median:7.3f}   p99 {p99:7.3f}   x{median / base:.1f}")
    p99 = statistics.quantiles(times["https, kept connection"], n=100)[98]
    print(f"p99 on a kept connection: {p99:.1f} ms; aim < {AIM_MS:.0f} ms: {'met' if p99 < AIM_MS else 'MISSED'}")


if __name__ == "__main__":
    main()
