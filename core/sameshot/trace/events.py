"""Where the events of a trace go while it is verified."""

from __future__ import annotations

from collections.abc import Sized
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from sameshot.trace.window import Window


class EventSink(Protocol):
    """Decodes the text of each block itself, and so decides which fields are worth it. `ColumnBuilder` is one.

    A sink must not assume that the trace is valid until verification returned: a later byte may prove it broken.
    """

    window: Window
    """Of all that was taken, once `finish` was called."""

    def parse(self, block: bytes) -> Sized:
        """The events of one JSON array; must keep nothing of them.

        Raises msgspec.DecodeError where it is none: this is the proof that the block is well-formed.
        """
        ...

    def take(self, parsed: Any) -> None:
        """What `parse` returned last, once its place in the document is proven."""
        ...

    def finish(self) -> None:
        """There are no more events."""
        ...
