"""Running the operator: what is seen goes to whom it concerns, and all is looked at anew now and then."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import math
import os
import time
from collections.abc import AsyncIterator
from typing import Any

from sameshot.arm.values import Json, inside
from sameshot.ending import told_to_end
from sameshot.errors import SameshotError
from sameshot.kube.api import TROUBLES, Api
from sameshot.kube.inpod import Way, way
from sameshot.kube.owners import Owners
from sameshot.operator.access import PART, own_image
from sameshot.operator.armed import ArmedPods
from sameshot.operator.authority import Authority
from sameshot.operator.calls import Coordinators
from sameshot.operator.config import OperatorConfig
from sameshot.operator.following import Following
from sameshot.operator.hooks import Hooks
from sameshot.operator.issuing import Issuing
from sameshot.operator.keeper import Keeper
from sameshot.operator.kept import kept
from sameshot.operator.known import RETIRED
from sameshot.operator.queue import Queue
from sameshot.operator.seen import Seen, place_of
from sameshot.operator.sources import FOLLOWED, Source
from sameshot.operator.watching import Watching
from sameshot.threads import DaemonThreads

log = logging.getLogger(__name__)

Key = tuple[str, ...]
"""(namespace, uid) of a job, or (namespace,) for the hook there."""

OWNERS_WITHIN_S = 60.0
RELIST_S = 10.0  # what is listed so long after the first list is a list made anew: something may have been missed
SWEEP_AGAIN_S = 2.0


class Operator:
    """`start` returns once all there is was seen and is being worked on."""

    def __init__(self, config: OperatorConfig, reached: Way | None = None) -> None:
        self.config = config
        self._way = reached or way(config.api_server, config.token_file, config.ca_file)
        self._api: Api = self._way.api(PART)
        self._threads = DaemonThreads(config.parallel, "sameshot-operator")
        timings = config.timings
        self.seen = Seen(self._changed, slim={Source.ARMED})
        self.armed = ArmedPods(Owners(self._api), self._in_thread, self._add, again_s=timings.unread_s)
        calls = Coordinators(self._way.api(PART), config)
        self.keeper = Keeper(config, self._api, self.seen, self.armed, calls, self._in_thread)
        self.hooks = Hooks(self._api, self.seen, self.armed, self._in_thread)
        self.queue: Queue[Key] = Queue(
            self._work, at_once=config.jobs_at_once, first_s=timings.retry_s, longest_s=timings.retry_longest_s
        )
        self.following = Following(config, self._way.api(PART), self._told)
        self.watching = Watching(config, self._way, self._told, served=self._served, lost=self._lost)
        self._issuing = Issuing(self._api, config)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._sweep_soon = asyncio.Event()
        self._first_listed: dict[Source, float] = {}
        self.swept_at: float | None = None
        self.ready = False
        self.waits_for = "the API server has not told everything yet"
        """Before it is ready."""
        self.authority_trouble = ""
        """Why the authority could not be read or renewed the last time; empty: it could."""

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.watching.start()
        self.following.start()
        await self._until_done("the image of its own pod", self._find_image)
        await self._until_done("the authority", self._renew)
        await self._until_done("the first list", self._sweep)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.armed.tried(), OWNERS_WITHIN_S)
        self.ready = True
        log.info("working jobs=%d", len(self.keeper.known.jobs()))
        self._add_all()
        self._tasks = [asyncio.create_task(self.queue.run()), asyncio.create_task(self._keep_sweeping())]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.armed.close()
        self.following.close()
        await asyncio.to_thread(self.watching.close)
        self._threads.shutdown(wait=False)

    async def _in_thread(self, function: Any, *arguments: Any, **options: Any) -> Any:
        call = functools.partial(function, *arguments, **options)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    @property
    def working(self) -> bool:
        """Whether no task of its own has ended that never should."""
        return not any(each.done() for each in self._tasks)

    @property
    def authority(self) -> Authority | None:
        """None: it is not known yet."""
        return getattr(self.keeper.worlds, "authority", None)

    # --- what is seen -----------------------------------------------------------------------------------------

    def _told(self, source: Source, kind: str | None, thing: Json | None) -> None:
        """In a thread of whoever follows."""
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                loop.call_soon_threadsafe(self._take, source, kind, thing)

    def _served(self) -> bool:
        try:
            self._list(Source.CLUSTER_POLICIES)
        except TROUBLES as error:
            log.warning("our kinds can't be listed why=%r; apply deploy/crds where they are missing", f"{error}"[:300])
            return False
        return True

    def _lost(self) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._sweep_soon.set)

    def _take(self, source: Source, kind: str | None, thing: Json | None) -> None:
        meta = inside(thing or {}, "metadata")
        if kind == "DELETED" and thing is not None:
            self.seen.drop(source, place_of(thing), meta.get("uid"), str(meta.get("resourceVersion") or ""))
            return
        if kind is None:
            now = time.monotonic()
            if now > self._first_listed.setdefault(source, now) + RELIST_S:
                self._first_listed[source] = now
                self._sweep_soon.set()
        if thing is not None:
            self.seen.put(source, thing)

    def _changed(self, source: Source, before: Json | None, after: Json | None) -> None:
        namespace, name = place_of(after or before or {})
        match source:
            case Source.ARMED:
                self.armed.take(before, after)
                if self.seen.get(Source.NAMESPACES, "", namespace) is None:
                    self._add((namespace,))
            case Source.NAMESPACES:
                self._add((name,))
            case Source.HOOKS:
                self._add((namespace,))
            case Source.POLICIES:
                for key in self.keeper.known.jobs_in(namespace):
                    self._add(key)
            case Source.CLUSTER_POLICIES:
                for key in self.keeper.known.jobs():
                    self._add(key)
            case _:
                keys = self.keeper.known.note(source, before, after)
                for key in keys:
                    self._add(key)
                if (source is Source.PODS and after is None) or _ends(source, before, after):  # there may be room
                    for waiting in {key[0] for key in keys}:
                        for key in self.keeper.waiting(waiting):
                            self._add(key)

    # --- work -------------------------------------------------------------------------------------------------

    def _add(self, key: Key) -> None:
        if self.ready:
            self.queue.add(key)

    def _add_all(self) -> None:
        for key in self.keeper.known.jobs():
            self._add(key)
        for source in (Source.NAMESPACES, Source.HOOKS):
            for thing in self.seen.all(source):
                namespace, name = place_of(thing)
                self._add((namespace or name,))

    async def _work(self, key: Key) -> float:
        if len(key) == 2:
            return await self.keeper.work((key[0], key[1]))
        if not self.config.namespaces or key[0] in self.config.namespaces:
            await self.hooks.work(key[0])
        return math.inf

    # --- all of it anew ---------------------------------------------------------------------------------------

    async def _keep_sweeping(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._sweep_soon.wait(), self.config.timings.sweep_s)
            self._sweep_soon.clear()
            try:
                await self._renew()
            except Exception as error:  # all else goes on
                log.warning("the authority can't be read or renewed why=%r", f"{error}"[:600])
            try:
                try:
                    await self._sweep()
                finally:
                    self.keeper.forget_old()
                    self.hooks.forget_crd()
                    self._add_all()
            except TROUBLES as error:
                log.warning("looking at everything failed why=%r", f"{error}"[:300])
            except Exception:
                log.exception("looking at everything failed; it is done again")
            await asyncio.sleep(min(SWEEP_AGAIN_S, self.config.timings.sweep_s))

    async def _find_image(self) -> None:
        """Asked for until there is an answer: to end would make the kubelet wait, and longer each time."""
        self.config = self.keeper.worlds.config = await self._in_thread(own_image, self.config, self._way, os.environ)

    async def _renew(self) -> None:
        before = self.authority
        try:
            self.keeper.worlds.authority = await self._in_thread(self._issuing.authority)
        except Exception as error:
            self.authority_trouble = f"{error}" or type(error).__name__
            raise
        self.authority_trouble = ""
        if before is not None and before != self.keeper.worlds.authority:
            self._add_all()
        try:
            await self._in_thread(self._issuing.agents, self.keeper.worlds.authority)
        except TROUBLES as error:
            log.warning("the certificate of the agents was not renewed why=%r", f"{error}"[:300])

    async def _sweep(self) -> None:
        """Raises what the first list did that failed; the others are taken all the same."""
        trouble: Exception | None = None
        for source in FOLLOWED:
            mark = self.seen.begin()
            things: list[Json] | None = None
            version = ""
            try:
                things, version = await self._in_thread(self._list, source)
            except Exception as error:  # one kind that can't be told must not keep the others from being seen
                log.warning("%s can't be listed why=%r", source.value, f"{type(error).__name__}: {error}"[:300])
                trouble = trouble or error
            finally:
                self.seen.listed(source, things, mark, version)
        if trouble is not None:
            raise trouble
        self.swept_at = time.time()

    def _list(self, source: Source) -> tuple[list[Json], str]:
        """All there is, and the version of that; of several lists the first one's."""
        one = FOLLOWED[source]
        found: list[Json] = []
        version = ""
        for path in one.paths(self.config):
            for page in self._api.list(path, one.query):
                version = version or page.version
                found += [thing for raw in page.items if (thing := kept(source, raw)) is not None]
        return found, version

    async def _until_done(self, what: str, do: Any) -> None:
        pause = self.config.timings.retry_s
        while True:
            try:
                await do()
                return
            except SameshotError:
                raise  # to be mended by whoever runs it
            except Exception as error:
                self.waits_for = f"{what} can't be had yet: {type(error).__name__}: {error}"[:600]
                log.warning("%s; again in %.0f s", self.waits_for, pause)
            await asyncio.sleep(pause)
            pause = min(2 * pause, 30.0)


def _ends(source: Source, before: Json | None, after: Json | None) -> bool:
    """Whether it is a coordinator that counts no more from now on."""
    was, now = (None if each is None else inside(each, "status").get("phase") in RETIRED for each in (before, after))
    return source is Source.COORDINATORS and was is False and now is not False


@contextlib.asynccontextmanager
async def running(config: OperatorConfig, reached: Way | None = None) -> AsyncIterator[Operator]:
    operator = Operator(config, reached)
    try:
        await operator.start()
        yield operator
    finally:
        await operator.stop()


async def serve(config: OperatorConfig) -> None:
    """Run until SIGTERM or SIGINT. Raises UsageError where no API server or no image is known, or metrics can't be
    served."""
    ending = told_to_end()
    operator = Operator(config)
    async with contextlib.AsyncExitStack() as stack:
        if config.metrics:
            from sameshot.kube.scrape import scraped
            from sameshot.operator.metrics import OperatorHealth, OperatorMetrics

            address = stack.enter_context(scraped(config.metrics, OperatorMetrics(operator), OperatorHealth(operator)))
            log.info("metrics address=%s", address)
        stack.push_async_callback(operator.stop)
        starting = asyncio.create_task(operator.start())
        ended = asyncio.create_task(ending.wait())
        await asyncio.wait({starting, ended}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            await ended
        starting.cancel()
        log.info("ending")
