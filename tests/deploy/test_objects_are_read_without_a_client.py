"""Files are read without the Kubernetes client, so that tests against a cluster can say that it is what they miss."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]

SCRIPT = """
import sys
from pathlib import Path
sys.modules["kubernetes"] = None  # importing it fails
sys.path[:0] = sys.argv[2:]
from kubernetes_objects import documents_in, kustomized, schema_problems
documents = kustomized(Path(sys.argv[1]))
assert documents
import api_server, conftest
try:
    schema_problems(documents[0])
except ModuleNotFoundError:
    print("only its schema needs the client")
"""


def test_what_is_deployed_is_read_where_the_client_is_missing() -> None:
    agent, support, cluster = TESTS.parent / "deploy/agent", TESTS / "support", TESTS / "cluster"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, agent, support, cluster], capture_output=True, text=True, check=False
    )
    assert done.stdout == "only its schema needs the client\n", done.stderr
