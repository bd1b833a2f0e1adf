"""Following by kopf what only we and administrators write: what happens is handed on, and nothing is ever written.

These objects are small and few. What users of a namespace may write is followed otherwise (following.py).

kopf ends all tasks of its event loop when it ends, and one that fails ends it: so it has threads of its own, and is
begun anew. One follows what is in no namespace, the other our own: one kopf has one selector for each resource.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

import kopf

from sameshot.arm.values import Json
from sameshot.kube.inpod import Way
from sameshot.operator.access import login as login_of
from sameshot.operator.config import OperatorConfig
from sameshot.operator.kept import kept
from sameshot.operator.sources import FOLLOWED, Followed, Source

log = logging.getLogger(__name__)

LONGEST_PAUSE_S = 60.0

Told = Callable[[Source, str | None, Json], None]
"""Source, ADDED, MODIFIED, DELETED or None (it was listed), and the object."""


class Watching:
    """All are called in threads of this one. `served`: whether the API server knows all kinds, as kopf looks for them
    only once. `lost`: what was deleted meanwhile may have been missed. (That kopf listed anew is told only by what
    is in it: where nothing is, the next look at everything sees to that.)"""

    def __init__(
        self,
        config: OperatorConfig,
        way: Way,
        told: Told,
        *,
        served: Callable[[], bool],
        lost: Callable[[], None],
    ) -> None:
        self._config = config
        self._way = way
        self._told = told
        self._served = served
        self._lost = lost
        self._ending = threading.Event()
        self._threads: list[threading.Thread] = []
        self.restarts = 0

    def start(self) -> None:
        _quiet()
        config = self._config
        parts: dict[str, tuple[dict[Source, Followed], tuple[str, ...]]] = {
            "cluster": ({key: value for key, value in FOLLOWED.items() if not value.namespaced}, config.namespaces),
            "own": ({key: value for key, value in FOLLOWED.items() if value.own}, (config.coordinators_namespace,)),
        }
        for name, (followed, namespaces) in parts.items():
            thread = threading.Thread(
                target=self._follow, args=(name, followed, namespaces), name=f"sameshot-{name}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def close(self, within_s: float = 5.0) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join(within_s)

    @property
    def alive(self) -> bool:
        return all(each.is_alive() for each in self._threads)

    def _follow(self, name: str, followed: Mapping[Source, Followed], namespaces: tuple[str, ...]) -> None:
        pause = self._config.timings.restart_s
        while not self._ending.is_set():
            try:
                while not self._served():
                    if self._ending.wait(self._config.timings.restart_s):
                        return
                kopf.run(
                    registry=self._registry(followed),
                    settings=_settings(followed),
                    standalone=True,
                    clusterwide=not namespaces,
                    namespaces=namespaces,
                    stop_flag=self._ending,
                    # Its own one asks for the user's name, and an image's user may have none.
                    identity=f"sameshot-{name}",  # type: ignore[arg-type]
                )
                why = "it ended"
            except Exception as error:
                why = f"{type(error).__name__}: {error}"[:300]
            if self._ending.is_set():
                return
            self.restarts += 1
            log.warning("following %s is begun anew in %.0f s why=%r", name, pause, why)
            self._ending.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)
            self._lost()

    def _registry(self, followed: Mapping[Source, Followed]) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()

        def login(**_: Any) -> kopf.ConnectionInfo:
            return login_of(self._way)

        kopf.on.login(registry=registry, errors=kopf.ErrorsMode.PERMANENT)(login)  # the thread is begun anew
        for source, one in followed.items():
            self._add(registry, source, one)
        return registry

    def _add(self, registry: kopf.OperatorRegistry, source: Source, one: Followed) -> None:
        async def seen(event: Any, **_: Any) -> None:
            thing = kept(source, dict(event["object"]))
            if thing is not None:
                self._told(source, event["type"], thing)

        what = (one.group, one.version, one.plural) if one.group else (one.version, one.plural)
        kopf.on.event(*what, id=source.name.lower(), registry=registry)(seen)


def _settings(followed: Mapping[Source, Followed]) -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.process.ultimate_exiting_timeout = None  # it would kill the whole process
    settings.watching.chunk_size = 250
    settings.networking.error_backoffs = (0.5, 1, 2, 5)
    settings.networking.request_timeout = 60.0
    for one in followed.values():
        what = (one.group, one.version, one.plural) if one.group else ("", one.version, one.plural)
        if one.labels:
            settings.watching.label_selectors[what] = one.labels
        if one.fields:
            settings.watching.field_selectors[what] = one.fields
    return settings


class _NoSignals(logging.Filter):
    """Signals are the main thread's; kopf warns that it does not get them."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "OS signals are ignored" not in record.getMessage()


def _quiet() -> None:
    logging.getLogger("kopf").setLevel(logging.WARNING)
    signals = logging.getLogger("kopf._core.reactor.running")
    if not any(isinstance(each, _NoSignals) for each in signals.filters):
        signals.addFilter(_NoSignals())
