"""From `kube:<namespace>/<job>` to an endpoint that a client can call; remembered until it fails.

What is remembered costs no request to the API server: pollers call a coordinator every few seconds for hours. A call
that fails (the client tells, `Endpoint.failed`) has it looked up anew at the next; while the API server does not answer
then, what is known goes on being used.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from sameshot.api.transport import Endpoint
from sameshot.client.cluster import lookup
from sameshot.client.cluster.access import Access, open_access
from sameshot.client.cluster.address import KubeAddress, Route, parse
from sameshot.client.cluster.coordinators import (
    Armed,
    can_be_called,
    choose,
    forged,
    is_live,
    may_come,
    progress,
    why_not,
)
from sameshot.client.cluster.tunnel import Tunnel
from sameshot.errors import Denied, JobEnded, OtherAttempt, SameshotError, Unreachable
from sameshot.kube import names
from sameshot.kube.coordinators import CaptureCoordinator
from sameshot.kube.tokens import NoAccount, RequestedToken

Say = Callable[[str], None]

UNHEARD_OF_S = 5.0
"""So long a job is waited for of which there is no sign yet: its pods may just be made."""
LOOK_AGAIN_S = 300.0
"""After so long what is remembered is looked up again: a job may have another attempt, a CA may be renewed."""
AWAY_S = 10.0
"""The same where the API server did not answer the last time."""
CALM_S = 1.0
"""So often at most an address that fails is looked up."""
FORGOTTEN_AFTER_S = 900.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 2.0


class Token:
    """A token for one job's coordinators; remembers why none was given, which gRPC passes on as words only."""

    def __init__(self, inner: Callable[[], str]) -> None:
        self._inner = inner
        self.trouble: SameshotError | None = None

    def __call__(self) -> str:
        try:
            token = self._inner()
        except SameshotError as error:
            self.trouble = error
            raise
        self.trouble = None
        return token


@dataclass(eq=False)
class _Known:
    """What was found for one address. `stale`: a call failed, so it is looked up before it is used again. `denied`: for
    want of rights, so its token is not used again either."""

    wanted: KubeAddress
    coordinator: CaptureCoordinator
    token: Token
    tunnel: Tunnel | None
    found_at: float
    used_at: float
    stale: bool = False
    denied: bool = False
    endpoint: Endpoint = field(init=False)

    def __post_init__(self) -> None:
        status, job = self.coordinator.status, self.coordinator.job
        self.endpoint = Endpoint(
            status.endpoint if self.tunnel is None else self.tunnel.address,
            ca=status.ca,
            server_name=status.server_name,
            token=self.token,
            called=f"The coordinator of job {job.namespace}/{job.name}",
            failed=self.failed,
            kept=True,
        )

    @property
    def by_name(self) -> bool:
        """Whether it is called by its Service, which leads to each pod that takes the place of another. A client that
        is kept, and calls a pod's own address, goes on calling that."""
        status = self.coordinator.status
        return status.endpoint.rpartition(":")[0] == status.server_name

    def failed(self, error: SameshotError) -> SameshotError:
        """What a client's call met: is there anything to be looked up anew, and is more known about why?"""
        over = isinstance(error, JobEnded | OtherAttempt)
        if over and self.wanted.attempt is not None:
            return error  # that attempt was meant
        if over or isinstance(error, Unreachable | Denied) or type(error) is SameshotError:
            self.stale = True
        if isinstance(error, Denied):
            self.denied = True
        if not isinstance(error, Unreachable):
            return error
        if (why := self.token.trouble) is not None:
            self.denied = isinstance(why, Denied)
            return type(why)(str(why))
        if self.tunnel is not None and (why := self.tunnel.trouble) is not None:
            return type(why)(str(why))
        if self.tunnel is None and not self.by_name:
            return Unreachable(f"{error} Where its pod was replaced it has another address by now: connect again.")
        return error


@dataclass
class _Place:
    """One address; `lock` is held by who looks it up."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    known: _Known | None = None


class _Away(Exception):
    """The API server could not be asked."""

    def __init__(self, error: Unreachable) -> None:
        super().__init__(str(error))
        self.error = error


class Dialer:
    """`clock` is monotonic, in seconds; `opened` gives the way to the API server that an address names."""

    def __init__(
        self, opened: Callable[[KubeAddress], Access] = open_access, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._open = opened
        self._clock = clock
        self._lock = threading.Lock()
        self._places: dict[KubeAddress, _Place] = {}
        self._accesses: dict[tuple[str | None, str | None], Access] = {}

    def dial(
        self,
        address: str,
        *,
        uid: str | None = None,
        attempt: int | None = None,
        say: Say | None = None,
        wait_s: float | None = None,
        leave: threading.Event | None = None,
    ) -> Endpoint:
        """As `client.resolve`."""
        if (endpoint := self.remembered(address, uid=uid, attempt=attempt)) is not None:
            return endpoint
        if wait_s is None:
            wait_s = parse(address).wait_ms / 1000
        wanted = _wanted(address, uid, attempt)
        place = self._place(wanted)
        known = place.known
        began, leave = self._clock(), leave or threading.Event()
        while not place.lock.acquire(timeout=0.2 if known is None else 0.0):
            if known is not None:  # it is being looked up already: this may work again, and a call tells soon
                return known.endpoint
            if leave.is_set():
                raise Unreachable(f"The coordinator of job {wanted.what} was not waited for any longer.")
        try:
            known = place.known
            if known is None or not self._holds(known):
                known = place.known = self._looked_up(wanted, known, say, began, wait_s, leave)
            known.used_at = self._clock()
            return known.endpoint
        finally:
            place.lock.release()

    def remembered(self, address: str, *, uid: str | None = None, attempt: int | None = None) -> Endpoint | None:
        """What `dial` would give without asking anybody; None: it would have to. Does not block."""
        known = self._place(_wanted(address, uid, attempt)).known
        if known is None or not self._holds(known):
            return None
        known.used_at = self._clock()
        return known.endpoint

    def access(self, wanted: KubeAddress) -> Access:
        """The way to the API server, made once for all addresses of one cluster and credential."""
        which = (wanted.kubeconfig, wanted.context)
        with self._lock:
            if which not in self._accesses:
                self._accesses[which] = self._open(wanted)
            return self._accesses[which]

    def forget(self) -> None:
        """Nothing is remembered any more; tunnels end with their last user."""
        self._lock = threading.Lock()  # after a fork somebody may have held it
        self._places, self._accesses = {}, {}

    def _place(self, wanted: KubeAddress) -> _Place:
        now = self._clock()
        with self._lock:
            for old, place in list(self._places.items()):
                if place.known is not None and now - place.known.used_at > FORGOTTEN_AFTER_S:
                    del self._places[old]
            return self._places.setdefault(wanted, _Place())

    def _holds(self, known: _Known) -> bool:
        return not known.stale and self._clock() - known.found_at < LOOK_AGAIN_S

    def _looked_up(
        self,
        wanted: KubeAddress,
        before: _Known | None,
        say: Say | None,
        began: float,
        wait_s: float,
        leave: threading.Event,
    ) -> _Known:
        if before is not None and (calm := CALM_S - (self._clock() - before.found_at)) > 0:
            leave.wait(calm)
        access = self.access(wanted)
        through_pod = wanted.route is Route.PORT_FORWARD or (wanted.route is Route.AUTO and not access.in_pod)
        try:
            found = self._coordinator(access, wanted, through_pod, say, began, wait_s, leave)
        except (_Away, Denied) as error:  # servers that have just started know no rights for a moment
            if before is None or before.denied:
                raise (error.error if isinstance(error, _Away) else error) from None
            before.stale = False
            before.found_at = self._clock() - LOOK_AGAIN_S + AWAY_S
            return before
        return self._way_to(found, access, wanted, through_pod, before)

    def _coordinator(
        self,
        access: Access,
        wanted: KubeAddress,
        through_pod: bool,
        say: Say | None,
        began: float,
        wait_s: float,
        leave: threading.Event,
    ) -> CaptureCoordinator:
        """The one that is meant, once it can be called. Asks again and again, so a missed change loses nothing."""
        pause, said, error = FIRST_PAUSE_S, "", None
        while True:
            found = None
            try:
                found = choose(lookup.coordinators(access, wanted), wanted)
                if found is not None and can_be_called(found, through_pod=through_pod):
                    if (lie := forged(found)) is not None:
                        raise lie
                    return found
                armed = lookup.armed(access, wanted) if found is None else Armed.UNKNOWN
                error, limit = why_not(found, wanted, armed), wait_s
                if not may_come(error, found, armed, wanted):
                    limit = min(wait_s, UNHEARD_OF_S) if found is None else 0.0
                now = progress(found, wanted)
            except Unreachable as away:
                if error is None:  # the first question: whoever asks should know that nobody answers
                    raise _Away(away) from None
                error, limit, now = away, wait_s, f"waiting: {away}"
            left = limit - (self._clock() - began)
            if left <= 0 or leave.is_set():
                raise error
            if say is not None and now != said:
                said = now
                say(said)
            leave.wait(min(pause, left))
            pause = min(pause * 1.5, LONGEST_PAUSE_S)

    def _way_to(
        self, found: CaptureCoordinator, access: Access, wanted: KubeAddress, through_pod: bool, before: _Known | None
    ) -> _Known:
        namespace, account = account_for(wanted, access)
        token = Token(RequestedToken(access.api, namespace, account, names.audience_of(found.job)))
        if before is not None and before.coordinator.job == found.job and not before.denied:
            token = before.token
        try:
            token()  # now, so that what is missing is said at once and typed
        except Denied as error:
            raise denied(error, namespace, account, access, wanted) from None
        tunnel = None
        if through_pod and found.status.pod is not None:
            tunnel = before.tunnel if before is not None else None
            if tunnel is None or tunnel.place != found.status.pod:
                try:
                    tunnel = Tunnel(found.status.pod, access.upgrade)
                except Unreachable:
                    if not is_live(found):
                        raise why_not(found, wanted, Armed.UNKNOWN) from None
                    raise
        known = _Known(wanted, found, token, tunnel, self._clock(), self._clock())
        if before is None or not _same(before.endpoint, known.endpoint):
            return known
        # The very same place: clients' open connections to it are of use still.
        before.coordinator, before.found_at = found, known.found_at
        before.stale = before.denied = False
        return before


def _wanted(address: str, uid: str | None, attempt: int | None) -> KubeAddress:
    """By which a place is remembered: how long somebody would wait for it makes no difference."""
    pinned = {name: value for name, value in (("uid", uid), ("attempt", attempt)) if value is not None}
    return msgspec.structs.replace(parse(address), wait_ms=0, **pinned)


def _same(one: Endpoint, other: Endpoint) -> bool:
    return (one.address, one.ca, one.server_name, one.token) == (
        other.address,
        other.ca,
        other.server_name,
        other.token,
    )


def account_for(wanted: KubeAddress, access: Access) -> tuple[str, str]:
    """(namespace, name) of the ServiceAccount whose token is asked for. A name alone is one of the pod's own namespace,
    or with a kubeconfig one of the job's. Pure."""
    if wanted.service_account is None:
        return access.account or (wanted.namespace, names.CALLERS_ACCOUNT)
    namespace, slash, name = wanted.service_account.partition("/")
    if slash:
        return namespace, name
    return (access.account[0] if access.account is not None else wanted.namespace), wanted.service_account


def denied(error: Denied, namespace: str, account: str, access: Access, wanted: KubeAddress) -> Denied:
    """The same, and what to do about it. Pure."""
    missing = isinstance(error, NoAccount)
    if access.account is not None:
        caller = "" if access.account == (namespace, account) else f" --caller {access.account[1]}"
        return Denied(
            f"{error} {'Make' if missing else 'Give'} it with: sameshot rights {account} -n {namespace}{caller} "
            f"--jobs-namespace {wanted.namespace}{'' if missing else ' --existing'} | kubectl apply -f - (this pod "
            f"runs as {':'.join(access.account)})"
        )
    role, people = _ROLES.get(account, ("", ""))
    if missing and role:
        return Denied(
            f"{error} It is made, and given its role, with: sed 's/namespace: ml$/namespace: {namespace}/' "
            "deploy/namespace/accounts.yaml | kubectl apply -f -"
        )
    if missing:
        return Denied(
            f"{error} Make it and bind the ClusterRole sameshot-user to it, or name another one{_account('NAME')}."
        )
    if role:
        look = f" To look only, {_VIEWER} is enough{_account(_VIEWER)}." if role == "sameshot-user" else ""
        return Denied(
            f"{error} Who may {people} the namespace has that, and whoever is given it with: kubectl create "
            f"rolebinding {role} -n {namespace} --clusterrole={role} --user=<you>.{look}"
        )
    return Denied(
        f"{error} If there is such an account, it takes a Role that names it: kubectl create role {account}-token -n "
        f"{namespace} --verb=create --resource=serviceaccounts/token --resource-name={account} && kubectl create "
        f"rolebinding {account}-token -n {namespace} --role={account}-token --user=<you>. The role sameshot-user gives "
        f"tokens of {names.CALLERS_ACCOUNT} only, which is who calls where no account is named."
    )


_VIEWER = "sameshot-viewer"
_ROLES = {names.CALLERS_ACCOUNT: ("sameshot-user", "edit"), _VIEWER: ("sameshot-viewer", "view")}
"""Of an account of ours: the ClusterRole that may mint its tokens, and what people have it that may do this."""


def _account(name: str) -> str:
    return f" (--service-account {name}, in an address ?service-account={name})"


DIALER = Dialer()
"""The one of this process. A fork begins anew: threads and connections stay with the parent."""
os.register_at_fork(after_in_child=DIALER.forget)
