"""What the operator is told at its start."""

from __future__ import annotations

import enum
from pathlib import Path

import msgspec

import sameshot
from sameshot.errors import UsageError
from sameshot.kube import names


class Reach(enum.StrEnum):
    """What is published as a coordinator's address."""

    SERVICE = "service"
    POD_IP = "pod-ip"


class Timings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All in seconds. The defaults suit real clusters; tests shorten some."""

    grace_s: float = 600.0  # so long a coordinator without captures stays after its job ended or was superseded
    orphan_s: float = 900.0  # at most so long the captures of a deleted job, or of who never answered, are waited for
    patience_s: float = 6 * 3600.0  # the same for an ended job, and who does not answer any more: that won't change
    stuck_s: float = 300.0  # without progress for so long, a coordinator to be replaced takes new captures meanwhile
    settle_s: float = 10.0  # what seems to be an orphan is looked at again after this
    remake_s: float = 3.0  # what was deleted or changed is made again after this, then 2, 4, … times as long
    remake_longest_s: float = 300.0
    mend_longest_s: float = 30.0  # the same for what only needs a patch
    calm_s: float = 600.0  # what was as it should be for so long is made again at once
    lost_s: float = 180.0  # a pod that is there so long after it should have ended is on a node that is lost
    recount_s: float = 5.0  # while pods come and go, between two counts of workers
    ask_s: float = 1.0  # the first pause between questions to a coordinator; each is twice as long as the one before
    settling_longest_s: float = 20.0  # while it still has captures, or does not answer and is to go
    end_s: float = 2.0  # the first pause between two looks at whether a job without pods has ended
    end_longest_s: float = 300.0
    retry_s: float = 1.0  # the first pause after a failure, for that job alone
    retry_longest_s: float = 120.0
    sweep_s: float = 300.0  # between two lists of everything
    call_s: float = 5.0  # one call to a coordinator
    restart_s: float = 2.0  # before following begins anew after it failed
    unread_s: float = 30.0  # before an owner that could not be read is asked for again
    unsure_s: float = 120.0  # so long that is waited for before the owner below it is taken for the job


class Toleration(msgspec.Struct, frozen=True, omit_defaults=True):
    """https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/; no effect: all of them."""

    key: str
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    @staticmethod
    def parse(text: str) -> Toleration:
        """Of key[=value][:effect], as kubectl writes taints; without a value: whatever it is. Raises UsageError."""
        taint, _, effect = text.partition(":")
        key, equals, value = taint.partition("=")
        if not key or effect not in ("", "NoSchedule", "PreferNoSchedule", "NoExecute"):
            raise UsageError(
                f"The toleration is {text!r}; it must be key[=value][:effect], effect one of NoSchedule, "
                "PreferNoSchedule and NoExecute."
            )
        return Toleration(key, "Equal" if equals else "Exists", value, effect)


class OperatorConfig(msgspec.Struct, frozen=True, kw_only=True):
    """`namespaces`: whose jobs; none: all. `archive` and `image` are the coordinators'; an empty image: that of the
    operator's own pod.

    `api_server`, `token_file` and `ca_file`: outside of a pod, or where the API server's usual address can't be
    reached; the first is handed on to coordinators (`coordinators_api_server` where theirs is another one).
    `host_network`: coordinators share their node's network, each with a port of its own out of `ports` after
    names.COORDINATOR_PORT.
    """

    archive: str
    image: str = ""
    namespaces: tuple[str, ...] = ()
    api_server: str = ""
    token_file: Path | None = None
    ca_file: Path | None = None
    coordinators_api_server: str = ""
    host_network: bool = False
    ports: int = 1000
    reach: Reach = Reach.SERVICE
    system_namespace: str = names.SYSTEM_NAMESPACE
    coordinators_namespace: str = names.COORDINATORS_NAMESPACE
    agents_namespace: str = names.AGENTS_NAMESPACE
    account: str = names.OPERATOR_ACCOUNT
    coordinator_metrics: str = ""  # host:port; not with a host network, where they would meet
    metrics: str = ""
    pull_secrets: tuple[str, ...] = ()
    node_selector: tuple[tuple[str, str], ...] = ()  # labels of the nodes that coordinators may run on
    tolerations: tuple[Toleration, ...] = ()  # of coordinators' pods
    max_coordinators: int = 50  # pods of coordinators for the jobs of one namespace; 0: any number
    priority_class: str = names.COORDINATOR_PRIORITY
    version: str = sameshot.__version__
    parallel: int = 8  # requests to the API server at once
    jobs_at_once: int = 64  # that are worked on at once; most of them wait for an answer
    timings: Timings = Timings()
