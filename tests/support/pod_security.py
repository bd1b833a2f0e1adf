"""Which Pod Security level a pod template fulfils, judged without a server.

The controls of https://kubernetes.io/docs/concepts/security/pod-security-standards/ (as of Kubernetes 1.34), for Linux
pods; of AppArmor and SELinux only what a template may ask for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]

_BASELINE_CAPABILITIES = {
    "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE",
    "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
}  # fmt: skip
_RESTRICTED_VOLUMES = {
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret",
}  # fmt: skip
_SELINUX = {None, "", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"}
_SYSCTLS = {
    "kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range", "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
}  # fmt: skip


def violations(template: Json, level: str) -> list[str]:
    """What keeps this pod from `baseline` or `restricted`; empty: it is admissible there."""
    found = list(_baseline(template))
    return found + list(_restricted(template)) if level == "restricted" else found


def _containers(spec: Json) -> Iterator[Json]:
    for key in ("initContainers", "containers", "ephemeralContainers"):
        yield from spec.get(key) or []


def _contexts(spec: Json) -> Iterator[tuple[str, Json]]:
    yield "pod", spec.get("securityContext") or {}
    for each in _containers(spec):
        yield each["name"], each.get("securityContext") or {}


def _baseline(template: Json) -> Iterator[str]:
    spec = template["spec"]
    for key in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(key):
            yield key
    for volume in spec.get("volumes") or []:
        if "hostPath" in volume:
            yield f"volume {volume['name']}: hostPath"
    for sysctl in (spec.get("securityContext") or {}).get("sysctls") or []:
        if sysctl["name"] not in _SYSCTLS:
            yield f"sysctl {sysctl['name']}"
    for who, context in _contexts(spec):
        if context.get("privileged"):
            yield f"{who}: privileged"
        if set((context.get("capabilities") or {}).get("add") or []) - _BASELINE_CAPABILITIES:
            yield f"{who}: capabilities"
        if (context.get("windowsOptions") or {}).get("hostProcess"):
            yield f"{who}: hostProcess"
        if context.get("procMount") not in (None, "Default"):
            yield f"{who}: procMount"
        if (context.get("seccompProfile") or {}).get("type") == "Unconfined":
            yield f"{who}: seccomp"
        if (context.get("appArmorProfile") or {}).get("type") == "Unconfined":
            yield f"{who}: AppArmor"
        selinux = context.get("seLinuxOptions") or {}
        if selinux.get("type") not in _SELINUX or selinux.get("user") or selinux.get("role"):
            yield f"{who}: SELinux"
    for each in _containers(spec):
        if any(port.get("hostPort") for port in each.get("ports") or []):
            yield f"{each['name']}: hostPort"
    for key, value in ((template.get("metadata") or {}).get("annotations") or {}).items():
        if key.startswith("container.apparmor.security.beta.kubernetes.io/") and value == "unconfined":
            yield key


def _restricted(template: Json) -> Iterator[str]:
    spec = template["spec"]
    pod = spec.get("securityContext") or {}
    for volume in spec.get("volumes") or []:
        if not set(volume) - {"name"} <= _RESTRICTED_VOLUMES:
            yield f"volume {volume['name']}: type"
    if pod.get("runAsUser") == 0:
        yield "pod: runAsUser 0"
    for each in _containers(spec):
        context = each.get("securityContext") or {}
        if context.get("allowPrivilegeEscalation") is not False:
            yield f"{each['name']}: allowPrivilegeEscalation"
        if context.get("runAsNonRoot", pod.get("runAsNonRoot")) is not True:
            yield f"{each['name']}: runAsNonRoot"
        if context.get("runAsUser") == 0:
            yield f"{each['name']}: runAsUser 0"
        seccomp = context.get("seccompProfile") or pod.get("seccompProfile") or {}
        if seccomp.get("type") not in ("RuntimeDefault", "Localhost"):
            yield f"{each['name']}: seccomp"
        capabilities = context.get("capabilities") or {}
        if "ALL" not in (capabilities.get("drop") or []) or set(capabilities.get("add") or []) - {"NET_BIND_SERVICE"}:
            yield f"{each['name']}: capabilities"
