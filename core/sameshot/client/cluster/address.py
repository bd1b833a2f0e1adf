"""Addresses of jobs in a cluster. Pure.

    kube:<namespace>/<job>      the coordinator of a job
    kube:<namespace>            of the only job there; where jobs are listed: all of them

    ?attempt=<number>           this attempt of it; default: the newest
    &uid=<uid>&kind=<kind>      where several jobs have the same name
    &context=<name>&kubeconfig=<path>      default: the pod's own account, else what kubectl would use
    &service-account=<name>     whose token is asked for; also <namespace>/<name>
    &route=auto|direct|port-forward
    &wait=60s                   so long a coordinator that is just starting is waited for

Everything is percent-encoded as in a URL where it holds one of `%?&#=` or a space.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

import msgspec

from sameshot.errors import InvalidSpec, UsageError
from sameshot.model import JobRef

SCHEME = "kube"
WAIT_S = 60.0

# What Kubernetes takes: RFC 1123 labels for namespaces, subdomains for all else
# (https://kubernetes.io/docs/concepts/overview/working-with-objects/names/).
LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
SUBDOMAIN = re.compile(r"(?=.{1,253}\Z)[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*")
_DURATION = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)(ms|s|m|h)?")
_UNITS_MS = {"ms": 1, "s": 1_000, "": 1_000, "m": 60_000, "h": 3_600_000}


class Route(enum.StrEnum):
    """How the coordinator is reached: from within the cluster, or through the API server."""

    AUTO = "auto"
    DIRECT = "direct"
    PORT_FORWARD = "port-forward"


class KubeAddress(msgspec.Struct, frozen=True, kw_only=True):
    """`job` empty: whichever is the only one. `service_account` is `name` or `namespace/name`. None: not said."""

    namespace: str
    job: str = ""
    attempt: int | None = None
    uid: str | None = None
    kind: str | None = None
    context: str | None = None
    kubeconfig: str | None = None
    service_account: str | None = None
    route: Route = Route.AUTO
    wait_ms: int = int(WAIT_S * 1000)

    def __str__(self) -> str:
        """The address as `parse` takes it; what has its default is left out."""
        place = "/".join(quote(each, safe="") for each in (self.namespace, self.job) if each)
        plain = KubeAddress(namespace=self.namespace)
        said = {key: getattr(self, name) for key, name in _NAMES.items() if getattr(self, name) != getattr(plain, name)}
        query = "&".join(f"{key}={quote(_text(key, value), safe='/:@,')}" for key, value in said.items())
        return f"{SCHEME}:{place}{'?' if query else ''}{query}"

    @property
    def what(self) -> str:
        """The job, in words."""
        which = "" if self.attempt is None else f", attempt {self.attempt}"
        return f"{self.job} in namespace {self.namespace}{which}" if self.job else f"in namespace {self.namespace}"


# As it is written → the field.
_NAMES = {
    "attempt": "attempt",
    "uid": "uid",
    "kind": "kind",
    "context": "context",
    "kubeconfig": "kubeconfig",
    "service-account": "service_account",
    "route": "route",
    "wait": "wait_ms",
}


def is_kube(address: str) -> bool:
    return address.partition(":")[0] == SCHEME


def parse(address: str) -> KubeAddress:
    """Raises UsageError, which says what is wrong with it and how it is written."""
    if not is_kube(address):
        raise _wrong(address, f"it does not begin with {SCHEME}:")
    place, _, query = address.removeprefix(f"{SCHEME}:").partition("?")
    namespace, slash, job = (unquote(each) for each in place.partition("/"))
    if not LABEL.fullmatch(namespace):
        raise _wrong(address, f"{namespace!r} is no name of a namespace")
    if slash and not SUBDOMAIN.fullmatch(job):
        raise _wrong(address, f"{job!r} is no name of a job")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True) if query else []
    except ValueError:
        raise _wrong(address, f"{query!r} is not a list of name=value, joined by &") from None
    said: dict[str, Any] = {}
    for key, value in pairs:
        if key not in _NAMES:
            raise _wrong(address, f"{key!r} is none of {', '.join(_NAMES)}")
        if _NAMES[key] in said:
            raise _wrong(address, f"{key} is given twice")
        try:
            said[_NAMES[key]] = _VALUES[key](value)
        except ValueError as error:
            raise _wrong(address, f"{key} is {value!r}, {error}") from None
    return KubeAddress(namespace=namespace, job=job, **said)


def of_an_author(address: str) -> str:
    """The same address, as a service takes it of somebody who may use the service and no more.

    A kubeconfig names files that are read and programs that are run where the address is used, so which one that is is
    for whoever runs the service to say. A context is one of those that they have put into theirs.

    Raises InvalidSpec for an address with a kubeconfig, UsageError for one in a cluster that is none. Others are given
    back as they are.
    """
    if is_kube(address) and parse(address).kubeconfig is not None:
        raise InvalidSpec(
            f"The address {address!r} names a kubeconfig, which would be read, and its login program run, where this "
            "service runs: leave it out. Whoever runs the service chooses its kubeconfig ($KUBECONFIG); a context of "
            "that may be named."
        )
    return address


def address_of(job: JobRef, wanted: KubeAddress, *, alone: bool) -> KubeAddress:
    """The address of this very job, reached as `wanted` is. `alone`: no other of its name is there."""
    uid = None if alone else job.uid
    return msgspec.structs.replace(wanted, namespace=job.namespace, job=job.name, attempt=None, uid=uid, kind=None)


def _wrong(address: str, why: str) -> UsageError:
    return UsageError(
        f"{address!r} is no address of a job in a cluster: {why}. Write {SCHEME}:<namespace>/<job>, for example "
        f"{SCHEME}:ml/llama-7b or {SCHEME}:ml/llama-7b?context=prod."
    )


def _matching(pattern: re.Pattern[str], what: str) -> Callable[[str], str]:
    def check(text: str) -> str:
        if not pattern.fullmatch(text):
            raise ValueError(f"and not {what}")
        return text

    return check


def _attempt(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,8}", text):
        raise ValueError("and not a whole number")
    return int(text)


def _route(text: str) -> Route:
    try:
        return Route(text)
    except ValueError:
        raise ValueError(f"and none of {', '.join(Route)}") from None


def _wait_ms(text: str) -> int:
    found = _DURATION.fullmatch(text)
    if not found:
        raise ValueError("and not a duration such as 60s or 2m")
    return round(float(found[1]) * _UNITS_MS[found[2] or ""])


_anything = _matching(re.compile(r".+", re.DOTALL), "to be empty")

_VALUES: dict[str, Callable[[str], Any]] = {
    "attempt": _attempt,
    "uid": _matching(re.compile(r"[0-9A-Za-z](?:[0-9A-Za-z-]{0,98}[0-9A-Za-z])?"), "a uid"),
    "kind": _matching(re.compile(r"[A-Za-z][A-Za-z0-9]{0,62}"), "a kind such as Job or JobSet"),
    "context": _anything,
    "kubeconfig": _anything,
    "service-account": _matching(re.compile(rf"(?:{LABEL.pattern}/)?{SUBDOMAIN.pattern}"), "a name, or namespace/name"),
    "route": _route,
    "wait": _wait_ms,
}


def _text(key: str, value: Any) -> str:
    return f"{value}ms" if key == "wait" and value % 1000 else f"{value // 1000}s" if key == "wait" else str(value)
