"""The file by which a coordinator in a cluster is told what to do: `sameshot coordinator --config FILE`.

The operator writes it (a ConfigMap), one per job attempt. Every field stands in `ClusterConfig` and nowhere else; keys
are the fields' names, paths are those inside the coordinator's container, an unknown key is an error. The smallest:

    {"job": {"namespace": "ml", "name": "llama-7b", "uid": "0b1c…", "attempt": 0}, "archive": "s3://traces/prod"}

The port opens once it serves. Whether it still does tells `probe`: a port stays open, and takes connections, however
long the process behind it stands still.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from sameshot.api.transport import ServerTls
from sameshot.coordinator.config import Timings
from sameshot.errors import UsageError
from sameshot.kube import names
from sameshot.model import CapturePolicy, JobRef, check_name
from sameshot.profiler.daemon import BackendName

FOLDER = Path("/etc/sameshot")
AGENT_TOKEN = Path("/var/run/secrets/sameshot.dev/agent/token")


class ClusterConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a coordinator in a cluster is told at its start. A change takes effect with its next pod; only `policy` is
    read anew.

    **Whom it serves**
    - `job`: namespace, name, uid, attempt. Its namespace is where pods are followed and rights are asked for; both
      it and its uid make the audience of callers' tokens (`names.audience_of`).
    - `archive`: where traces go, as the agents were told it; only read here. The credential is in the environment.
    - `series`: what makes runs of the same job comparable.
    - `backend`: what stands between agents and Kineto.
    - `policy`: JSON of a `model.CapturePolicy`, read anew whenever it has changed; no file: the defaults.
    - `timings`: of a capture, see `Timings`.
    - `drain_s`: at SIGTERM captures that run are waited for so long, and new ones asked to try again; the pod's
      terminationGracePeriodSeconds is longer.

    **How it is called**
    - `listen`: host:port.
    - `tls_certificate`, `tls_key`: PEM, the certificate for `names.coordinator_host(job)`; read anew when replaced.
    - `operator`: the username of the operator's account. It alone may call Retire, and it may call Describe.
    - `probe`: host:port that answers the kubelet's probes, `/healthz` and `/readyz`, and nothing else; empty: none.
    - `metrics`: host:port of the Prometheus endpoint, which needs prometheus-client; empty: none.

    **How it calls**
    - `agents_namespace`: where the agents' pods are (`names.AGENT_SELECTOR`).
    - `agent_port`: every agent's port, at its pod's IP.
    - `ca`: PEM of the authority, or of an old and a new one, that agents' certificates are from; read anew when
      replaced.
    - `agent_token`: a projected token of its own account with the audience `names.AGENT_AUDIENCE`.
    - `api_server`: https://host:port; empty: as the kubelet tells every pod. `api_token`, `api_ca`: files to go with
      it; None: those of the pod's own account.
    """

    job: JobRef
    archive: str
    series: str = ""
    backend: BackendName = BackendName.BROKER
    policy: Path = FOLDER / "policy.json"
    timings: Timings = Timings()
    drain_s: float = 120.0

    listen: str = f"0.0.0.0:{names.COORDINATOR_PORT}"
    tls_certificate: Path = FOLDER / "tls/tls.crt"
    tls_key: Path = FOLDER / "tls/tls.key"
    operator: str = names.username_of(names.SYSTEM_NAMESPACE, names.OPERATOR_ACCOUNT)
    probe: str = ""
    metrics: str = ""

    agents_namespace: str = names.AGENTS_NAMESPACE
    agent_port: int = names.AGENT_PORT
    ca: Path = FOLDER / "ca.crt"
    agent_token: Path = AGENT_TOKEN
    api_server: str = ""
    api_token: Path | None = None
    api_ca: Path | None = None

    def __post_init__(self) -> None:
        """Raises UsageError for what can't be served."""
        names.account_of(self.job)  # its uid, its attempt
        check_name(self.job.namespace, "The job's namespace")
        check_name(self.job.name, "The job's name")
        if not 0 < self.agent_port < 1 << 16:
            raise UsageError(f"{self.agent_port} is no port.")

    @property
    def tls(self) -> ServerTls:
        return ServerTls(self.tls_certificate, self.tls_key)


def read_config(path: Path) -> ClusterConfig:
    """Raises UsageError, with the place in the file, where it is not such a file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=ClusterConfig, dec_hook=_a_path)
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(f"The coordinator's configuration {path} can't be read: {error}.") from None


def encoded(config: ClusterConfig) -> bytes:
    """The file of this configuration, without what is as by default."""
    return msgspec.json.encode(config, enc_hook=str)


def _a_path(kind: type, text: Any) -> Any:
    """Files are texts in JSON."""
    if kind is Path and isinstance(text, str) and text:
        return Path(text)
    raise ValueError(f"{text!r} is no {kind.__name__.lower()}")


def read_policy(path: Path) -> CapturePolicy:
    """The defaults where there is no such file. Raises UsageError where it is none."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=CapturePolicy)
    except FileNotFoundError:
        return CapturePolicy()
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(f"The capture policy {path} can't be read: {error}.") from None
