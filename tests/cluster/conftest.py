"""Tests against a real cluster: whichever `KUBECONFIG` names. Without it most skip, and say so.

    api     needs a server only: kind, a bare control plane, or any cluster (dry runs, and a namespace of its own)
    nodes   needs nodes that run pods
    cluster all of sameshot: what is shipped is applied, its parts are processes beside the cluster. Needs a server;
            what else, says each file. Without KUBECONFIG they run against the emulated server of tests/support, which
            proves nothing of a real one; the slow ones do that only with `SAMESHOT_TEST_EMULATED_API=1`

Every object lies in a namespace that the test makes and takes away again, but for what is cluster-wide (webhook
configurations, roles and bindings, definitions of kinds, sameshot's own namespaces), which is removed, too. So the user
of the kubeconfig makes all of that, with rights that it must hold itself, and tokens of ServiceAccounts, impersonates,
and reads nodes, events and logs: cluster-admin, in effect. Where no controller manager runs, a deleted namespace stays
`Terminating`; no pod is left in it.

What each kind of test needs besides is in its own file. They are part of `make test-full`, so that `make test` never
touches a cluster.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator

import pytest
from api_server import ApiServer, Namespace
from cluster_at_hand import KUBECONFIG, Cluster, accounts_of, apply, installed


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


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A server to try things on, real or emulated."""
    folder = tmp_path_factory.mktemp("cluster")
    if os.environ.get("KUBECONFIG"):
        made = Cluster(request.getfixturevalue("api"), folder)
        with made.stack:
            yield made
        return
    with Cluster.emulating(folder) as made, pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(folder / KUBECONFIG))
        yield made


@pytest.fixture(scope="session")
def sameshot(cluster: Cluster) -> Iterator[Cluster]:
    """The same with all that is shipped, but no part running."""
    before = ours(cluster)
    with installed(cluster) as made:
        yield made
    left = sorted(ours(cluster) - before)
    assert not left, f"these tests left behind {left}"


def ours(cluster: Cluster) -> set[str]:
    """What of the whole cluster has our name and is not about to go."""
    rbac, admission = "/apis/rbac.authorization.k8s.io/v1", "/apis/admissionregistration.k8s.io/v1"
    everywhere = [
        "/api/v1/namespaces", "/api/v1/nodes", f"{rbac}/clusterroles", f"{rbac}/clusterrolebindings",
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "/apis/scheduling.k8s.io/v1/priorityclasses",
        f"{admission}/mutatingwebhookconfigurations",
    ]  # fmt: skip
    found = [(path, each["metadata"]) for path in everywhere for each in cluster.items(path)]
    return {
        f"{path}/{meta['name']}"
        for path, meta in found
        if "sameshot" in meta["name"] and "deletionTimestamp" not in meta
    }


@pytest.fixture
def ml(sameshot: Cluster) -> Iterator[str]:
    """A namespace for one test's jobs, with the accounts that captures are made with."""
    with sameshot.scope() as inner:
        name = inner.namespace("ml")
        apply(inner, accounts_of(name))
        yield name
