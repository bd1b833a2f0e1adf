"""Were two captures recorded alike? What profiling is asked for costs time itself, and another world size is another
job: times per step of captures that differ in these are no measure of each other. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

from sameshot.model import CaptureSpec

if TYPE_CHECKING:
    from sameshot.manifest import Capture

OPTIONS = ("activities", "with_stack", "record_shapes", "profile_memory", "with_flops")  # what profiling costs
_ALL = ("world_size", *OPTIONS)


class Recording(Protocol):
    """How a capture was recorded: a row of the history, or `Recorded`. None is unknown."""

    @property
    def world_size(self) -> int | None: ...
    @property
    def activities(self) -> str | None: ...
    @property
    def with_stack(self) -> bool | None: ...
    @property
    def record_shapes(self) -> bool | None: ...
    @property
    def profile_memory(self) -> bool | None: ...
    @property
    def with_flops(self) -> bool | None: ...


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """`activities` as text, sorted (`cpu,cuda`): their order says nothing."""

    world_size: int | None = None
    activities: str | None = None
    with_stack: bool | None = None
    record_shapes: bool | None = None
    profile_memory: bool | None = None
    with_flops: bool | None = None
    duration_ms: int | None = None  # kept with the row; a longer window makes no step longer


_Row = TypeVar("_Row", bound=Recording)


def recorded(capture: Capture) -> Recorded:
    """What the manifest states; of an imported capture the options are unknown."""
    spec: CaptureSpec | None = capture.spec
    if spec is None:
        return Recorded(world_size=capture.world_size)
    return Recorded(
        world_size=capture.world_size,
        activities=",".join(sorted(spec.activities)),
        with_stack=spec.with_stack,
        record_shapes=spec.record_shapes,
        profile_memory=spec.profile_memory,
        with_flops=spec.with_flops,
        duration_ms=spec.duration_ms,
    )


def differences(before: Recording, after: Recording) -> tuple[str, ...]:
    """Why times per step of these captures are no measure of each other; empty: nothing is known against it."""
    found = []
    if not _agree(before, after, "world_size"):
        found.append(f"the jobs had {before.world_size} and {after.world_size} ranks")
    if other := [name for name in OPTIONS if not _agree(before, after, name)]:
        found.append(f"they were recorded with other options ({', '.join(other)}), which cost time themselves")
    return tuple(found)


def options_known(of: Recording) -> bool:
    return all(getattr(of, name) is not None for name in OPTIONS)


def alike(rows: Sequence[_Row]) -> list[_Row]:
    """Those of these rows, given in the order of time, that were recorded like the latest one.

    Where the latest one leaves something unknown, the latest one that states it stands for it: captures that are known
    to differ are never taken together. Those that don't say stay in.
    """
    stated = {name: _latest(getattr(row, name) for row in reversed(rows)) for name in _ALL}
    return [row for row in rows if all(getattr(row, name) in (None, value) for name, value in stated.items())]


def _latest(values: Iterable[object]) -> object:
    return next((value for value in values if value is not None), None)


def _agree(before: Recording, after: Recording, name: str) -> bool:
    one, other = getattr(before, name), getattr(after, name)
    return one is None or other is None or one == other
