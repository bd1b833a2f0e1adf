"""Which job's coordinator a command line means: on this machine, at an address, or in a cluster.

What stands on the command line wins over the environment. A cluster is meant by --namespace, --context, --kubeconfig or
--service-account; without any of them by $SAMESHOT_NAMESPACE, or by being called as `kubectl sameshot`, where no
address is given. Everything else is this machine, as if there were no clusters: a kubeconfig that happens to be there,
and being in a pod, change nothing.
"""

from __future__ import annotations

import functools
import inspect
import os
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from sameshot.cli.options import JobOption, milliseconds
from sameshot.cli.telling import program, say
from sameshot.errors import UsageError

if TYPE_CHECKING:  # the client brings grpc: whoever only asks for help does not pay for it
    from sameshot.client import Client
    from sameshot.client.cluster import KubeAddress
    from sameshot.client.cluster.access import Api

ADDRESS_ENV, NAMESPACE_ENV = "SAMESHOT_ADDRESS", "SAMESHOT_NAMESPACE"

_AddressOption = Annotated[
    str | None,
    typer.Option(
        "--address",
        envvar=ADDRESS_ENV,
        help="The job's coordinator: `local` for a job of this machine (the default, but not of kubectl sameshot), "
        "host:port, or kube:namespace/job.",
        show_default=False,
    ),
]
NamespaceOption = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        "-n",
        help="The job runs in this namespace of a cluster; default with the options below: that of the kubeconfig's "
        "context. $SAMESHOT_NAMESPACE means the same where no --address is given.",
        show_default=False,
    ),
]
AllNamespacesOption = Annotated[bool, typer.Option("--all-namespaces", "-A", help="Of all namespaces.")]
ContextOption = Annotated[
    str | None, typer.Option("--context", help="The cluster: a context of the kubeconfig.", show_default=False)
]
KubeconfigOption = Annotated[
    Path | None,
    typer.Option(
        "--kubeconfig",
        help="Default: $KUBECONFIG, else ~/.kube/config; in a pod the pod's own account.",
        show_default=False,
    ),
]
AccountOption = Annotated[
    str | None,
    typer.Option(
        "--service-account",
        help="In a cluster: whose token is asked for; default: sameshot in the job's namespace, in a pod its own.",
        show_default=False,
    ),
]
WaitForOption = Annotated[
    str | None,
    typer.Option(
        "--wait-for",
        help="In a cluster: so long a coordinator that is only just starting is waited for; default: 60s.",
        show_default=False,
    ),
]


class Where(msgspec.Struct, frozen=True, kw_only=True):
    """What the options say. `address_given`: it stands on the command line, and is not the environment's."""

    address: str | None = None
    address_given: bool = False
    job: str | None = None
    namespace: str | None = None
    context: str | None = None
    kubeconfig: Path | None = None
    service_account: str | None = None
    wait_for: str | None = None

    @property
    def names_cluster(self) -> bool:
        return any((self.namespace, self.context, self.kubeconfig, self.service_account))

    @property
    def again(self) -> str:
        """The options that name the same job in another command, for hints that can be copied: ` -n ml --job bert`."""
        said = {
            "--address": self.address if self.address_given else None,
            "-n": self.namespace,
            "--job": self.job,
            "--context": self.context,
            "--kubeconfig": self.kubeconfig,
            "--service-account": self.service_account,
        }
        return "".join(f" {name} {shlex.quote(str(value))}" for name, value in said.items() if value is not None)


OwnNamespace = Callable[[str | None, Path | None], str]
"""Of (context, kubeconfig): the namespace that kubectl would use."""


def address_of(
    where: Where, environment: Mapping[str, str], own_namespace: OwnNamespace, *, plugin: bool = False
) -> str:
    """What `connect` takes. `plugin`: called as `kubectl sameshot`. Raises UsageError for options that contradict each
    other. Pure, but for `own_namespace`, which is only asked where a cluster is meant and nothing names a namespace."""
    address = where.address
    if address is not None and not where.address_given and where.names_cluster:
        address = None  # the environment's: the command line wins
    if address is not None and not address.startswith("kube:"):
        if where.names_cluster:
            raise UsageError(
                f"--address {address} is one coordinator; leave it out where --namespace, --context, --kubeconfig or "
                "--service-account name a job in a cluster."
            )
        return _at(address, where.job)
    if address is None and not (where.names_cluster or plugin or environment.get(NAMESPACE_ENV)):
        return _at("local", where.job)
    from sameshot.client.cluster import KubeAddress, parse

    if address is not None:
        return _with(parse(address), where)
    namespace = where.namespace or environment.get(NAMESPACE_ENV) or own_namespace(where.context, where.kubeconfig)
    return _with(KubeAddress(namespace=namespace), where)


def _at(address: str, job: str | None) -> str:
    """A job name only means something on this machine."""
    if job is None:
        return address
    if address != "local":
        raise UsageError(
            "--job picks a job of this machine, or with --namespace one in a cluster; with --address the coordinator "
            "serves one job only."
        )
    return f"local:{job}"


def _with(address: KubeAddress, where: Where) -> str:
    """A cluster's address, with what the other options say of it."""
    if where.namespace not in (None, address.namespace):
        raise UsageError(f"--address {address} and --namespace {where.namespace} name two namespaces; leave one out.")
    if where.job is not None and address.job not in ("", where.job):
        raise UsageError(f"--address {address} names a job, and --job {where.job} another; leave one out.")
    said: dict[str, object] = {
        "job": where.job,
        "wait_ms": None if where.wait_for is None else milliseconds(where.wait_for, "--wait-for"),
        "context": where.context,
        "kubeconfig": None if where.kubeconfig is None else str(where.kubeconfig.expanduser().absolute()),
        "service_account": where.service_account,
    }
    known = {name: value for name, value in said.items() if value is not None}
    return _sound(msgspec.structs.replace(address, **known))


def _sound(address: KubeAddress) -> str:
    """What options say is checked as what an address says."""
    from sameshot.client.cluster import parse

    return str(parse(str(address)))


def at_job(command: Callable[..., None]) -> Callable[..., None]:
    """A command with a parameter `where: Where` gets the options that say it in its place, before its `--output`."""
    own = [
        each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for each in inspect.signature(command, eval_str=True).parameters.values()
        if each.name != "where"
    ]
    at = next((at for at, each in enumerate(own) if each.name == "output"), len(own))
    parameters = [*own[:at], *_OPTIONS, *own[at:]]

    @functools.wraps(command)
    def with_options(**given: Any) -> None:
        source = given.pop("ctx").get_parameter_source("address")
        said = {name: given.pop(name) for name in _NAMES}
        command(where=Where(**said, address_given=source is not None and source.name == "COMMANDLINE"), **given)

    del with_options.__wrapped__  # else its signature counts
    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {each.name: each.annotation for each in parameters} | {"return": None}
    return with_options


def dial(where: Where) -> Client:
    """The coordinator that the options name. One in a cluster that is only just starting is waited for, and that is
    said. Raises what `resolve` does, once the time is over also what was waited for."""
    from sameshot.client import Client, resolve

    address = address_of(where, os.environ, own_namespace, plugin=program() != "sameshot")
    try:
        return Client(resolve(address, say=say))
    except KeyboardInterrupt:
        say("")  # after the terminal's ^C
        say("The coordinator was not waited for any longer; nothing was asked of it.", fg="yellow")
        raise


def in_cluster(namespace: str | None, all_namespaces: bool, context: str | None, kubeconfig: Path | None) -> bool:
    """Whether a list is to be of a cluster: by the same rules as `address_of`."""
    asked = namespace or all_namespaces or context or kubeconfig
    return bool(asked or program() != "sameshot" or (os.environ.get(NAMESPACE_ENV) and not os.environ.get(ADDRESS_ENV)))


def namespace_or_all(
    namespace: str | None, all_namespaces: bool, context: str | None, kubeconfig: Path | None
) -> str | None:
    """Where to look; None: everywhere. Raises UsageError where both are asked for, or nothing tells a namespace."""
    if all_namespaces:
        if namespace is not None:
            raise UsageError("Name one namespace with -n, or ask for all with -A.")
        return None
    return namespace or os.environ.get(NAMESPACE_ENV) or own_namespace(context, kubeconfig)


def api_of(context: str | None, kubeconfig: Path | None) -> Api:
    """The cluster's API as these options, else the pod's account, else kubectl's own settings say."""
    from sameshot.client.cluster.access import open_access

    return open_access(_way(context, kubeconfig)).api


def own_namespace(context: str | None, kubeconfig: Path | None) -> str:
    """The namespace that kubectl would use with these. Raises UsageError where nothing tells one."""
    from sameshot.client.cluster import own_namespace as found

    return found(context, None if kubeconfig is None else str(kubeconfig.expanduser()))


def _way(context: str | None, kubeconfig: Path | None) -> KubeAddress:
    from sameshot.client.cluster import KubeAddress

    path = None if kubeconfig is None else str(kubeconfig.expanduser())
    return KubeAddress(namespace="default", context=context, kubeconfig=path)


def _option(name: str, annotation: Any, default: Any = None) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


_OPTIONS = [
    _option("address", _AddressOption),
    _option("job", JobOption),
    _option("namespace", NamespaceOption),
    _option("context", ContextOption),
    _option("kubeconfig", KubeconfigOption),
    _option("service_account", AccountOption),
    _option("wait_for", WaitForOption),
    _option("ctx", typer.Context, inspect.Parameter.empty),
]
_NAMES = [each.name for each in _OPTIONS if each.name != "ctx"]
