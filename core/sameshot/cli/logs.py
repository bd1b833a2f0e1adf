"""The log of a service: one record is one line, whatever names and messages of others stand in it.

Names of jobs, pods and nodes and what servers answer are others' words; with a newline in them they could write lines
of ours, and with escape sequences whatever a terminal obeys.
"""

from __future__ import annotations

import logging
import sys
from types import TracebackType

from sameshot.cli.shown import lines, shown

FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"


class OneLine(logging.Formatter):
    """All that is not plainly printable is a code; lines of a traceback are indented, as no record is."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        return shown(super().formatMessage(record))

    def formatException(  # noqa: N802
        self,
        ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None],
    ) -> str:
        return f"  {lines(super().formatException(ei))}"

    def formatStack(self, stack_info: str) -> str:  # noqa: N802
        return f"  {lines(super().formatStack(stack_info))}"


def log_to_stderr() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine(FORMAT))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
