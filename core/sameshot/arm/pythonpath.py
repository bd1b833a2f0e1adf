"""How the hook's folder gets in front of the Python path.

A PYTHONPATH in a pod spec replaces the image's own, which nobody can read here. So a command is wrapped, and the
variable is set only where its whole value is known: it stands in the spec already, or a person told it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from sameshot.arm import labels
from sameshot.arm.command import WRAPPER, is_kept
from sameshot.arm.environment import named_env
from sameshot.arm.record import Replaced
from sameshot.arm.values import Json, NotArmable, copied, mappings

_NAME = "PYTHONPATH"


def way_in(
    container: Json, command: Sequence[str], told: str | None
) -> tuple[tuple[str, ...], Replaced | None, list[str]]:
    """Words before the command or an environment entry, and warnings; `told` is a person's word for what the image's
    own PYTHONPATH holds. Raises NotArmable where neither is possible."""
    if told is None and command:
        return WRAPPER, None, _through_a_shell(container)
    name = container["name"]
    entries = named_env(container, _NAME)
    if len(entries) > 1:
        raise NotArmable(f"Container {name} sets {_NAME} {len(entries)} times; leave one of them.")
    if entries:
        return (), Replaced({"name": _NAME, "value": _joined(_literal(name, entries[0], told))}, entries[0]), []
    if told is None:
        raise NotArmable(
            f"Container {name} has no `command`: its image's entrypoint can't be read here, so nothing can be put in "
            f"front of it. Write the entrypoint as `command`, or say with --pythonpath what the image's {_NAME} is "
            "('' where it has none)."
        )
    warnings = []
    if container.get("envFrom"):
        warnings.append(f"{_NAME} is set in the pod spec from now on; one that comes through envFrom no longer counts")
    return (), Replaced({"name": _NAME, "value": _joined(told)}), warnings


def _through_a_shell(container: Json) -> list[str]:
    """What a person should know about this container's variables. Raises NotArmable where a shell would lose some."""
    name = container["name"]
    names = [str(each.get("name")) for each in mappings(container, "env")]
    lost = [repr(each) for each in names if not is_kept(each)]
    sources = mappings(container, "envFrom")
    prefixes = [str(each["prefix"]) for each in sources if each.get("prefix")]
    lost += [f"{each!r} (a prefix of envFrom)" for each in prefixes if not is_kept(each)]
    if lost:
        raise NotArmable(
            f"Container {name} has variables whose names a shell can't hold, and the command would be started by one "
            f"(/bin/sh of Debian, Ubuntu and Alpine drops them): {', '.join(lost)}. Say with --pythonpath what the "
            f"image's {_NAME} is ('' where it has none): the command is then left as it is. Or rename them."
        )
    if sources:
        told = (
            f"container {name} takes variables from envFrom: those whose names have other characters than letters, "
            "digits and _ are dropped where the image's /bin/sh is dash or BusyBox; if there are such, use --pythonpath"
        )
        return [told]
    return []


def _literal(name: str, entry: Json, told: str | None) -> str:
    if "valueFrom" in entry:
        raise NotArmable(
            f"Container {name} takes {_NAME} from elsewhere (valueFrom), and without a wrapped command nothing can be "
            "put in front of it: write the image's entrypoint as `command`, without --pythonpath."
        )
    value = str(entry.get("value") or "")
    if told and told != value:
        raise NotArmable(
            f"Container {name} sets {_NAME} to {value!r} itself, which replaces the image's; leave --pythonpath "
            f"{told!r} out, or write its value there."
        )
    return value


def _joined(rest: str) -> str:
    return f"{labels.HOOK_DIRECTORY}:{rest}" if rest else labels.HOOK_DIRECTORY


def put_back(container: Json, replaced: Replaced, changes: list[str]) -> None:
    """Undo the environment entry, in place; `changes` gets what somebody did to it."""
    entries: list[Json] = container.get("env") or []
    at = next((index for index, each in enumerate(entries) if each.get("name") == _NAME), None)
    if at is None:
        changes.append(f"{_NAME} of container {container['name']} is gone")
        return
    entry = entries[at]
    if entry == replaced.now:
        entries[at : at + 1] = [] if replaced.was is None else [copied(replaced.was)]
        return
    changes.append(f"{_NAME} of container {container['name']} was changed (now {entry!r:.200})")
    value = str(entry.get("value", ""))
    rest = re.sub(rf"^{re.escape(labels.HOOK_DIRECTORY)}(?::|$)", "", value)
    if rest != value:  # the hook's folder is still in front of it
        entries[at : at + 1] = [{**entry, "value": rest}] if rest else []
