"""How a container finds its task again: by the module that holds the `Tasks`, and the names of environment and task.

Flyte's own resolver looks for a function at the top of its module, where these tasks are not: each `Tasks` has its own,
with the image, the secrets and the retries that its maker wants.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from sameshot.errors import UsageError

if TYPE_CHECKING:
    from flyte import TaskTemplate

    from sameshot_flyte.flyte2.workflow import Tasks

_OWN = __name__.partition(".")[0]


class Resolver:
    """`module` is where the `Tasks` stand, by the name under which it was imported. Made without one in a container."""

    def __init__(self, module: str = "") -> None:
        self.module = module

    @property
    def import_path(self) -> str:
        return f"{__name__}.{type(self).__name__}"

    def loader_args(self, task: TaskTemplate[..., Any, Any], root_dir: Path | None) -> list[str]:
        """Raises UsageError, so at deployment, where a container would not find the task."""
        environment = task.parent_env_name or ""
        if (module := sys.modules.get(self.module)) is not None:
            _tasks_in(module, environment)
        name = task.name.removeprefix(f"{environment}.")
        return ["module", _importable(self.module, root_dir), "environment", environment, "task", name]

    def load_task(self, loader_args: list[str]) -> TaskTemplate[..., Any, Any]:
        _, module, _, environment, _, name, *_ = loader_args
        return _tasks_in(importlib.import_module(module), environment).env.tasks[f"{environment}.{name}"]


def _tasks_in(module: ModuleType, environment: str) -> Tasks:
    from sameshot_flyte.flyte2.workflow import Tasks

    for value in vars(module).values():
        if isinstance(value, Tasks) and value.env.name == environment:
            return value
    raise UsageError(
        f"The module {module.__name__} has no tasks of the environment {environment}. Keep what "
        f"`tasks({environment!r}, …)` returns in a variable of the module, not inside a function: a container looks "
        "for it there."
    )


def _importable(module: str, root_dir: Path | None) -> str:
    """The name by which a container, whose folder is a copy of `root_dir`, can import it."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None or module.partition(".")[0] == _OWN:
        return module
    path = Path(file).resolve()
    if root_dir is not None and not {"site-packages", "dist-packages"} & set(path.parts):
        with contextlib.suppress(ValueError):
            return ".".join(path.relative_to(root_dir.resolve()).with_suffix("").parts)
    return path.stem if module == "__main__" else module
