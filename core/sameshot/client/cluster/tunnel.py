"""The API server's port-forward as an address on this machine: each connection to it is one to the coordinator's pod.

What goes through is the coordinator's own TLS, end to end; neither the API server nor whoever else connects to the
address on this machine can read it or call without a token.

Each connection is a websocket of its own. One thread serves it (pump.py) and sleeps in `poll` while nothing comes. The
official client's `stream.portforward` is not used: where its websocket breaks, its thread dies and the caller's socket
stays open for ever (mended in version 32), it answers pings in the middle of its own half-sent frames, and takes no
timeout.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import msgspec

from sameshot.client.cluster.access import Upgrade
from sameshot.client.cluster.pump import Pump
from sameshot.errors import Denied, SameshotError, Unreachable, UsageError
from sameshot.kube import names
from sameshot.kube.coordinators import PodPlace

log = logging.getLogger(__name__)

PROTOCOL = "v4.channel.k8s.io"
OPEN_S = 15.0
SPARE_S = 20.0  # servers wait some time for a client to say hello, not for ever


class Tunnel:
    """Opens the first connection at once, so that its errors are typed: Denied, Unreachable, UsageError.

    `upgrade` is asked for each connection. Ends when nobody holds it any more, or with `close`.
    """

    def __init__(self, place: PodPlace, upgrade: Callable[[], Upgrade]) -> None:
        self.place = place
        self._shared = _Shared(place, upgrade)
        self._shared.spare = (time.monotonic(), open_websocket(upgrade(), place))
        listener = socket.create_server(("127.0.0.1", 0), backlog=16)
        self.address = f"127.0.0.1:{listener.getsockname()[1]}"
        self._end = weakref.finalize(self, _close, listener, self._shared)
        threading.Thread(target=_accept, args=(listener, self._shared), name="sameshot-tunnel", daemon=True).start()

    @property
    def trouble(self) -> SameshotError | None:
        """Why the last connection could not be made, or ended; None: it stands, or ended as they do."""
        return self._shared.trouble

    @property
    def connections(self) -> int:
        return len(self._shared.open)

    def close(self) -> None:
        """Every connection is cut; new ones are refused."""
        self._end()


class _Shared:
    """What the threads hold, and not the tunnel itself: so it ends when its users have gone."""

    def __init__(self, place: PodPlace, upgrade: Callable[[], Upgrade]) -> None:
        self.place = place
        self.upgrade = upgrade
        self.trouble: SameshotError | None = None
        self.spare: tuple[float, Any] | None = None
        self.open: set[socket.socket] = set()
        self.lock = threading.Lock()

    def websocket(self) -> Any:
        spare, self.spare = self.spare, None
        if spare is not None:
            if time.monotonic() - spare[0] < SPARE_S:
                return spare[1]
            _shut(spare[1])
        return open_websocket(self.upgrade(), self.place)


def _close(listener: socket.socket, shared: _Shared) -> None:
    with contextlib.suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)  # wakes who waits in accept
    listener.close()
    spare, shared.spare = shared.spare, None
    if spare is not None:
        _shut(spare[1])
    with shared.lock:
        for each in shared.open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


def _accept(listener: socket.socket, shared: _Shared) -> None:
    while True:
        try:
            near, _ = listener.accept()
            near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:
            if listener.fileno() < 0:  # closed
                return
            time.sleep(0.1)  # out of file descriptors, as a rule
            continue
        threading.Thread(target=_serve, args=(near, shared), name="sameshot-forward", daemon=True).start()


def _serve(near: socket.socket, shared: _Shared) -> None:
    with near:
        with shared.lock:
            shared.open.add(near)
        far = None
        try:
            far = shared.websocket()
            shared.trouble = None
            shared.trouble = _ended(Pump(near, far).run(), shared.place)
        except SameshotError as error:
            shared.trouble = error
        except Exception as error:
            log.warning("a forwarded connection broke why=%r", f"{type(error).__name__}: {error}"[:300])
            shared.trouble = Unreachable(f"The port-forward to pod {_named(shared.place)} broke: {error}.")
        finally:
            with shared.lock:
                shared.open.discard(near)
            if far is not None:
                _shut(far)
            with contextlib.suppress(OSError):  # so that the peer sees an end, whoever else holds a copy
                near.shutdown(socket.SHUT_RDWR)


def open_websocket(upgrade: Upgrade, place: PodPlace) -> Any:
    """Raises Denied, Unreachable, or UsageError where the library is not installed."""
    try:
        import websocket
    except ImportError:
        raise UsageError(
            "A port-forward needs websocket-client, which is not installed: pip install 'sameshot[kubernetes]'. From "
            "within the cluster use ?route=direct."
        ) from None
    namespace, name = quote(place.namespace, safe=""), quote(place.name, safe="")  # no slash: it is this path or none
    path = f"{names.pods_path(namespace)}/{name}/portforward?ports={int(place.port)}"
    try:
        return websocket.create_connection(
            upgrade.server + path,
            timeout=OPEN_S,
            header=upgrade.headers,
            subprotocols=[PROTOCOL],
            sslopt=upgrade.sslopt,
            sockopt=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)],
            skip_utf8_validation=True,
            **upgrade.options,
        )
    except websocket.WebSocketBadStatusException as error:
        raise refused(error.status_code, _said(error), place) from None
    except (OSError, websocket.WebSocketException) as error:
        raise Unreachable(
            f"The API server does not open a port-forward to pod {_named(place)}: {str(error)[:300]}."
        ) from None


def refused(status: int, said: str, place: PodPlace) -> SameshotError:
    """What the API server's answer to the request for a port-forward means. Pure."""
    if status in (401, 403):
        return Denied(
            f"The API server refuses a port-forward to the coordinator ({status}): {said}. It takes the verbs get and "
            f"create on pods/portforward in namespace {place.namespace}, which an administrator gives with: kubectl "
            f"create rolebinding connect-<you> -n {place.namespace} --role=sameshot-connect --user=<you>"
        )
    if status == 404:
        return Unreachable(
            f"The coordinator's pod {_named(place)} is not there any more; if its job still runs, another one is made."
        )
    return Unreachable(f"The API server opened no port-forward to pod {_named(place)} ({status}): {said}.")


def _said(error: Any) -> str:
    """Of a Status object its message."""
    body = getattr(error, "resp_body", None) or b""
    with contextlib.suppress(msgspec.MsgspecError):
        return msgspec.json.decode(body, type=_Status).message[:300]
    text = body.decode(errors="replace") if isinstance(body, bytes) else str(body)
    return text.strip()[:300] or str(error)[:300]


class _Status(msgspec.Struct):
    message: str


def _named(place: PodPlace) -> str:
    return f"{place.namespace}/{place.name}"


def _ended(said: str, place: PodPlace) -> SameshotError | None:
    if not said:
        return None
    return Unreachable(f"The port-forward to pod {_named(place)} ended: {said[:300]}.{_next(said, place)}")


def _next(said: str, place: PodPlace) -> str:
    """What it means, and what to do, where nobody was found at the pod's port, in the words of container runtimes."""
    if not any(words in said.lower() for words in ("failed to connect", "connection refused")):
        return ""
    return (
        " Nobody answers at its port now: the pod's process has ended or is just starting, so this call did not reach "
        "it and began nothing; what ran in it before is over, and what was archived stays. It is started again by "
        f"itself: try again, and see why with kubectl -n {place.namespace} logs {place.name} --previous"
    )


def _shut(far: Any) -> None:
    with contextlib.suppress(Exception):
        far.shutdown()  # without the closing handshake, for which nobody may be there
