"""Metrics for Prometheus and answers for the kubelet's probes, of any part, at one address.

    /metrics   what the part's collector reads from its state at that moment
    /healthz   200 while the part is alive, 503 and why where only a restart would help
    /readyz    200 once it serves, 503 and what it waits for until then

Nothing here changes anything or tells more than numbers and these words, and no caller is asked who it is: who may
connect is the network policy's to say. Whoever can connect must not be able to fail the kubelet's probes either: a
connection lasts for seconds in all, however busy it looks, and where there are many the oldest makes room for the
newest, which a probe is for the millisecond that it takes.

prometheus-client is imported here only, and where there is a collector, so a part without metrics needs none.
"""

from __future__ import annotations

import contextlib
import http.server
import logging
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from sameshot.errors import UsageError
from sameshot.hostport import joined, parted

log = logging.getLogger(__name__)

MOST_AT_ONCE = 16  # connections; the oldest goes when there is one more
MOST_THREADS = 64  # of those that went, too: one may still be reading metrics
CONNECTION_LASTS_S = 10.0  # from its beginning to the last byte of the answer
MAX_REQUEST = 16 << 10  # bytes of all its lines


class Health(Protocol):
    """Both in words; empty: all is well. Asked in another thread than the part's own."""

    def dead(self) -> str: ...

    def waits_for(self) -> str: ...


class Collector(Protocol):
    """Gives `prometheus_client.core` metric families, made anew at every look; called in threads."""

    def collect(self) -> Iterable[Any]: ...


@contextlib.contextmanager
def scraped(listen: str, collector: Collector | None, health: Health) -> Iterator[str]:
    """Serve at `host:port` (port 0: any) as long as this lasts; gives the address in force. Without a collector: only
    probes. Raises UsageError."""
    found = parted(listen)
    if found is None:
        raise UsageError(f"{listen!r} is no address for metrics; use host:port, as in 0.0.0.0:9464.")
    try:
        server = _Server(found, _handler(collector, health))
    except (OSError, OverflowError) as error:
        what = "Probes can't be answered" if collector is None else "Metrics can't be served"
        raise UsageError(f"{what} at {listen}: {error}.") from None
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), name="sameshot-metrics", daemon=True)
    thread.start()
    try:
        yield joined(found[0], server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()


def _exposing(collector: Collector) -> Callable[[str], tuple[bytes, str]]:
    """Of an Accept header the text to answer, and its type."""
    from prometheus_client import CollectorRegistry, ProcessCollector, exposition

    registry = CollectorRegistry(auto_describe=False)
    ProcessCollector(registry=registry)
    registry.register(collector)

    def expose(accept: str) -> tuple[bytes, str]:
        encode, content_type = exposition.choose_encoder(accept)
        return encode(registry), content_type

    return expose


def _handler(collector: Collector | None, health: Health) -> type[http.server.BaseHTTPRequestHandler]:
    expose = None if collector is None else _exposing(collector)

    class Handler(http.server.BaseHTTPRequestHandler):
        timeout = CONNECTION_LASTS_S

        def setup(self) -> None:
            super().setup()
            self.rfile = _AtMost(self.rfile, MAX_REQUEST)  # type: ignore[assignment]

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path == "/metrics" and expose is not None:
                try:
                    self._say(200, *expose(self.headers.get("Accept", "")))
                except Exception:
                    log.exception("metrics could not be read")
                    self._say(500, b"see the log\n")
            elif path == "/healthz":
                self._tell(health.dead())
            elif path == "/readyz":
                self._tell(health.dead() or health.waits_for())
            else:
                self._say(404, b"/healthz, /readyz\n" if expose is None else b"/metrics, /healthz, /readyz\n")

        def _tell(self, problem: str) -> None:
            self._say(503 if problem else 200, f"{problem or 'ok'}\n".encode())

        def _say(self, status: int, body: bytes, content_type: str = "text/plain; charset=utf-8") -> None:
            with contextlib.suppress(OSError):  # whoever asked has gone
                self.send_response(status)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    return Handler


class _AtMost:
    """The beginning of a stream."""

    def __init__(self, stream: Any, left: int) -> None:
        self._stream = stream
        self._left = left

    def readline(self, at_most: int = -1) -> bytes:
        line: bytes = self._stream.readline(self._left if at_most < 0 else min(self._left, at_most))
        self._left -= len(line)
        return line

    def close(self) -> None:
        self._stream.close()


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], handler: type[http.server.BaseHTTPRequestHandler]) -> None:
        host, port = address
        self._both = host in ("0.0.0.0", "::") and socket.has_dualstack_ipv6()  # probes come to the pod's own address
        if self._both:
            host = "::"
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._lock = threading.Lock()
        self._held: dict[Any, float] = {}  # connection → its end, in the order in which they came
        self._room = threading.BoundedSemaphore(MOST_THREADS)
        super().__init__((host, port), handler)

    def server_bind(self) -> None:
        if self._both:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        socketserver.TCPServer.server_bind(self)  # HTTPServer's own asks the name service what this machine is called

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            if len(self._held) >= MOST_AT_ONCE:
                self._let_go(next(iter(self._held)))
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        with self._lock:
            self._held[request] = time.monotonic() + CONNECTION_LASTS_S
        try:
            super().process_request(request, client_address)
        except BaseException:  # there is no thread
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def shutdown_request(self, request: Any) -> None:
        with self._lock:  # from here on nobody else touches it
            self._held.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Called by `serve_forever` all the time."""
        now = time.monotonic()
        with self._lock:
            for request in [each for each, ends in self._held.items() if ends <= now]:
                self._let_go(request)

    def _let_go(self, request: socket.socket) -> None:
        """Under the lock. Its thread is told by the end of what it reads, or that nobody takes what it writes."""
        del self._held[request]
        with contextlib.suppress(OSError):
            request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a request for metrics broke off", exc_info=True)
