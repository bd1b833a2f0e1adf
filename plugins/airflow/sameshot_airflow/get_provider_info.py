"""What Airflow is told about this provider (the entry point `apache_airflow_provider`): data, no imports of Airflow.

Every Airflow process reads this at its start. The keys are those of `airflow/provider_info.schema.json`; the
connection's form is described here for Airflow 3.2 and newer, which then need not import the hook, and by the hook
itself for 3.1.
"""

from __future__ import annotations

from typing import Any

from sameshot import __version__

_INTEGRATION = "sameshot"
CONNECTION_TYPE = "sameshot"
HOOK_NAME = "sameshot (PyTorch profiling)"

# field of the connection's extra -> label, help
EXTRA_FIELDS: dict[str, tuple[str, str]] = {
    "results_uri": (
        "Results URI",
        "Where analyses, reports and the history are written, outside the archive of captures: a folder or s3://….",
    ),
    "report_base_url": (
        "Report base URL",
        "An http(s) address at which a web server serves the results URI; without it tasks show no report link.",
    ),
    "archive_base_url": (
        "Archive base URL",
        "An http(s) address at which a web server serves the archive; without it tasks show no manifest link.",
    ),
    "service_account": (
        "Service account",
        "In a cluster: the account that captures, namespace/name. Empty: each process's own (kubeconfig: sameshot).",
    ),
    "context": ("Context", "In a cluster: the kubeconfig's context; empty, in a pod: the pod's own cluster."),
    "kubeconfig": ("Kubeconfig", "In a cluster: the file, on every machine with workers or a triggerer."),
}

HIDDEN_FIELDS = ["password", "extra"]
RELABELING = {"host": "Coordinator", "schema": "Namespace", "login": "Caller"}
PLACEHOLDERS = {
    "host": "kube: jobs of a cluster; empty or local: of this machine; else one coordinator: 127.0.0.1, unix:/path",
    "port": "the coordinator's port, or that of a tunnel to it; none with kube",
    "schema": "with kube: the namespace of the jobs",
    "login": "on whose behalf captures are asked for; empty: the user that Airflow runs as. None with kube",
    "results_uri": "s3://bucket/profiles",
    "report_base_url": "https://profiles.example.com",
    "archive_base_url": "https://archive.example.com",
    "service_account": "airflow/sameshot",
}


def get_provider_info() -> dict[str, Any]:
    return {
        "package-name": "sameshot",
        "name": "sameshot",
        "description": "On-demand profiling of running distributed PyTorch jobs, scheduled from Airflow.",
        "versions": [__version__],
        "integrations": [{"integration-name": _INTEGRATION, "tags": ["software"]}],
        "operators": [
            _modules("operators.capture", "operators.analyze", "operators.compare", "operators.cancel"),
        ],
        "sensors": [_modules("sensors.job")],
        "hooks": [_modules("hooks.sameshot")],
        "triggers": [_modules("triggers.capture", "triggers.job")],
        "connection-types": [
            {
                "connection-type": CONNECTION_TYPE,
                "hook-class-name": "sameshot_airflow.hooks.sameshot.SameshotHook",
                "hook-name": HOOK_NAME,
                "conn-fields": {
                    name: {"label": label, "description": text, "schema": {"type": ["string", "null"]}}
                    for name, (label, text) in EXTRA_FIELDS.items()
                },
                "ui-field-behaviour": {
                    "hidden-fields": HIDDEN_FIELDS,
                    "relabeling": RELABELING,
                    "placeholders": PLACEHOLDERS,
                },
            }
        ],
        "task-decorators": [
            {
                "name": "sameshot_capture",
                "class-name": "sameshot_airflow.decorators.capture.sameshot_capture_task",
            }
        ],
        "asset-uris": [{"schemes": ["sameshot"], "handler": "sameshot_airflow.assets.sanitize_uri"}],
        "extra-links": [
            "sameshot_airflow.links.SameshotReportLink",
            "sameshot_airflow.links.SameshotManifestLink",
            "sameshot_airflow.links.SameshotComparisonLink",
        ],
    }


def _modules(*names: str) -> dict[str, Any]:
    return {"integration-name": _INTEGRATION, "python-modules": [f"sameshot_airflow.{name}" for name in names]}
