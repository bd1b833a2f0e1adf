"""How a container finds its task again: by the module that holds the `Tasks`, and the names of environment and task.

Flyte's own resolver looks for a function at the top of its module, where these tasks are not: each `Tasks` has its own,
with the image, the secrets and the retries that its maker wants.
"""

from __future__ import annotations

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
        """Raises UsageError, so at deployment, where a container would not find the task. Whether its image has what is
        installed here is not seen."""
        environment = task.parent_env_name or ""
        module = sys.modules.get(self.module)
        if module is None:
            raise UsageError(
                f"The tasks of the environment {environment} are said to stand in the module {self.module!r}, and none "
                "of that name is loaded. Give `tasks` as `module` the `__name__` of the module that keeps what it "
                "returns, or leave it out where it is called there."
            )
        _tasks_in(module, environment)
        name = task.name.removeprefix(f"{environment}.")
        return ["module", _importable(module, root_dir), "environment", environment, "task", name]

    def load_task(self, loader_args: list[str]) -> TaskTemplate[..., Any, Any]:
        _, module, _, environment, _, name, *_ = loader_args
        return _tasks_in(importlib.import_module(module), environment).env.tasks[f"{environment}.{name}"]


def _tasks_in(module: ModuleType, environment: str) -> Tasks:
    from sameshot_flyte.flyte2.workflow import Tasks

    kept = (each for each in vars(module).values() if isinstance(each, Tasks) and each.env.name == environment)
    found = list({id(each): each for each in kept}.values())
    if len(found) > 1:
        raise UsageError(
            f"The module {module.__name__} keeps {len(found)} that `tasks({environment!r}, …)` returned, and a "
            "container could not tell them apart. Call it once, or give each environment a name of its own."
        )
    if found:
        return found[0]
    raise UsageError(
        f"The module {module.__name__} has no tasks of the environment {environment}. Keep what "
        f"`tasks({environment!r}, …)` returns in a variable of the module, not inside a function: a container looks "
        "for it there. Where a function of another module calls `tasks`, let it pass on "
        "`module=` the `__name__` of the module that keeps it."
    )


def _importable(module: ModuleType, root_dir: Path | None) -> str:
    """The name by which a container, whose folder is a copy of `root_dir`, can import it.

    What is installed has to be in the image, too. What is installed editably is none of both, as with Flyte's own
    resolver: its files are not copied, unless they lie below `root_dir`.
    """
    name = module.__name__
    if name.partition(".")[0] == _OWN:
        return name
    file = getattr(module, "__file__", None)
    if file is None or not Path(file).is_file():
        raise UsageError(
            f"The tasks stand in the module {name!r}, which is no file (a notebook, a prompt, `python -c`), so a "
            "container could not load them. Write them into a file below the root folder of the deployment, and import "
            "them from there."
        )
    path = Path(file).resolve()
    if {"site-packages", "dist-packages"} & set(path.parts):
        return name
    if root_dir is None:
        return path.stem if name == "__main__" else name
    try:
        return ".".join(path.relative_to(root_dir.resolve()).with_suffix("").parts)
    except ValueError:
        raise UsageError(
            f"The tasks stand in {path}, which is not below the root folder of the deployment, {root_dir}, and is not "
            "installed, so a container would not find it. Deploy from a folder above it (`root_dir` of `flyte.init`, "
            "`--root-dir` of `flyte deploy`), or install it (not editably), here and in the image."
        ) from None
