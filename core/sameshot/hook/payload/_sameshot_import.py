"""Stands in front of `import torch` until torch has really executed.

Common libraries probe with `find_spec("torch")`, first imports fail and are tried again, other import hooks bring
loaders of their own. So nothing happens when torch is *found*: the loader that the other finders chose is wrapped, and
the work is done around its `exec_module`. The finder is never taken out of `sys.meta_path` (another thread may be
walking that list); once there is nothing more to wait for it answers None after one look into an empty set.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import SourceFileLoader

TYPE_CHECKING = False  # typing itself would cost every process milliseconds
if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
TORCH = "torch"
C10D = "torch.distributed.distributed_c10d"

# Without one of these nothing can be a training rank, and the deciding part is not even loaded.
_HINTS = (
    "RANK",
    "OMPI_COMM_WORLD_RANK",
    "PMI_RANK",
    "SLURM_PROCID",
    "SAMESHOT_SINGLE",
    "SAMESHOT_ARM_SPAWNED",
)

_complained = False


UNPROFILED = "training goes on unprofiled"
HALF_PROFILED = "training goes on, but captures of this worker may fail"  # it is registered and stays so


def complain(error: BaseException, then: str = UNPROFILED) -> None:
    """Say in one line, once per process, what failed and what that means."""
    global _complained
    if _complained:
        return
    _complained = True
    detail = " ".join(str(error).split()) or type(error).__name__
    say(f"{detail[:300]}; {then}")


def say(text: str) -> None:
    """One line on stderr, if there is one."""
    try:
        sys.stderr.write(f"sameshot: {text}\n")
        sys.stderr.flush()
    except Exception:
        pass  # a closed or missing stderr is no reason to disturb training


def load(name: str) -> Any:
    """Import a module of this folder by file, whatever has become of `sys.path` and the other import hooks."""
    module = sys.modules.get(name)
    if module is None:
        path = os.path.join(HERE, name + ".py")
        module = type(sys)(name)
        module.__file__ = path
        SourceFileLoader(name, path).exec_module(module)
        sys.modules[name] = module
    return module


class _Loader:
    """The loader that would have been used, with a call around its `exec_module`; otherwise looks just like it."""

    def __init__(self, loader: Any, around: Callable[[Callable[[], None], ModuleType], None]) -> None:
        self._sameshot_loader = loader
        self._sameshot_around = around

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # isinstance() checks of the code that probes
        return type(self._sameshot_loader)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_sameshot_"):  # only while half built (copy, unpickle)
            raise AttributeError(name)
        return getattr(self._sameshot_loader, name)

    def exec_module(self, module: ModuleType) -> None:
        loader = self._sameshot_loader
        spec = module.__spec__
        if spec is not None and spec.loader is self:  # type: ignore[comparison-overlap]
            spec.loader = loader
        if module.__dict__.get("__loader__") is self:
            module.__loader__ = loader
        self._sameshot_around(lambda: loader.exec_module(module), module)


class Finder:
    """Lets every other finder decide, and wraps the loader of the modules that we wait for."""

    def __init__(self) -> None:
        self._around: dict[str, Callable[[Callable[[], None], ModuleType], None]] = {TORCH: self._torch}
        self._executing = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        around = self._around.get(name)
        if around is None:
            return None
        for finder in self._after_us():
            find = getattr(finder, "find_spec", None)
            if find is None:
                return None  # a finder of the old kind: leave the search to the import system
            spec: ModuleSpec | None = find(name, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module") and not issubclass(type(spec.loader), _Loader):
                    spec.loader = _Loader(spec.loader, around)  # type: ignore[assignment]
                return spec
        return None

    def _after_us(self) -> list[Any]:
        finders = list(sys.meta_path)
        for index, finder in enumerate(finders):
            if finder is self:
                return finders[index + 1 :]
        return finders

    def _torch(self, execute: Callable[[], None], module: ModuleType) -> None:
        if self._executing:  # wrapped twice: another finder asked us on the way
            execute()
            return
        worker = None
        if any(name in os.environ for name in _HINTS):
            try:
                rank = load("_sameshot_rank")
                ancestors = rank.ancestor_pids()
                claimed = rank.claim(ancestors)
                if claimed is not None:
                    worker = load("_sameshot_arm").arm(claimed, ancestors)
            except Exception as error:
                complain(error)
        if worker is not None:
            self._around[C10D] = self._c10d
        self._executing = True
        try:
            execute()
        except BaseException:
            self._around.pop(C10D, None)
            if worker is not None:
                worker.torch_failed()
            raise
        finally:
            self._executing = False
        self._around.pop(TORCH, None)
        if worker is not None:
            worker.torch_executed(module)

    def _c10d(self, execute: Callable[[], None], module: ModuleType) -> None:
        execute()
        self._around.pop(C10D, None)
        try:
            load("_sameshot_arm").watch_process_group(module)
        except Exception as error:
            complain(error)


def install() -> None:
    """Put the finder first. Calling it again changes nothing."""
    if TORCH not in sys.modules and not any(type(finder) is Finder for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder())
