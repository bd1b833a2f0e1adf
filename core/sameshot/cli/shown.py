"""What others wrote, as it may stand on a terminal.

Names of jobs, namespaces, pods and ranks, notes, request keys and messages are whatever somebody in a cluster or in an
archive put there. A terminal obeys control characters (escape sequences retitle, overwrite, hide, paste), and direction
marks reorder what is read; so all that is not plainly printable is shown as its code. Everything that the command line
prints goes through here, tables by `tables.console`; JSON documents don't: what they hold is exact. Pure.
"""

from __future__ import annotations


def shown(text: str) -> str:
    """On one line: newlines are shown as codes, too, so that no name can pass for a line of ours."""
    return text if text.isprintable() else "".join(each if each.isprintable() else _code(each) for each in text)


def lines(text: str) -> str:
    """The same of words that may have several lines, such as the end of a log: all but the first are indented."""
    return "\n  ".join(shown(line) for line in text.splitlines())


def _code(character: str) -> str:
    number = ord(character)
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"
