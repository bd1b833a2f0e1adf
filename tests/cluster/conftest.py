"""Tests against a real cluster: whichever `KUBECONFIG` names. Without it they skip, and say so.

    api     needs a server only: kind, a bare control plane, or any cluster (dry runs, and a namespace of its own)
    nodes   needs nodes that run pods

Every object lies in a namespace that the test makes and takes away again, but for webhook configurations, a
ClusterRole and its binding, which are removed, too. So the user of the kubeconfig makes namespaces and what lies in
them, webhook configurations, ClusterRoles with rights that it must hold itself, their bindings and tokens of
ServiceAccounts, and reads nodes, events and logs: cluster-admin, in effect. Where no controller manager runs, a
deleted namespace stays `Terminating`; no pod is left in it.

What each kind of test needs besides is in its own file. They are part of `make test-full`, so that `make test` never
touches a cluster.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator

import pytest
from api_server import ApiServer, Namespace


@pytest.fixture(scope="session")
def api() -> ApiServer:
    """The API server; one that does not answer is a failure, not a reason to skip."""
    if not os.environ.get("KUBECONFIG"):
        pytest.skip("KUBECONFIG is not set: name the kubeconfig of a user with the rights of cluster-admin")
    pytest.importorskip("kubernetes", reason="the client is missing: pip install 'sameshot[kubernetes]'")
    return ApiServer.of_kubeconfig()


@pytest.fixture(scope="module")
def namespace(api: ApiServer) -> Iterator[Namespace]:
    """A namespace for this file's tests where pods may do what they like."""
    with api.namespace(f"sameshot-test-{uuid.uuid4().hex[:8]}", level="privileged") as made:
        yield made


@pytest.fixture(scope="module")
def restricted(api: ApiServer) -> Iterator[Namespace]:
    """A namespace that enforces the restricted Pod Security level, and warns of it, too."""
    with api.namespace(f"sameshot-test-{uuid.uuid4().hex[:8]}", level="restricted") as made:
        yield made
