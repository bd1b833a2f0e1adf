"""What a service logs: one line for each record, whatever somebody called his job."""

from __future__ import annotations

import logging

from sameshot.cli.logs import FORMAT, OneLine


def formatted(message: str, *arguments: object, error: BaseException | None = None) -> list[str]:
    info = None if error is None else (type(error), error, error.__traceback__)
    record = logging.LogRecord("sameshot", logging.WARNING, "f", 1, message, arguments, info)
    return OneLine(FORMAT).format(record).split("\n")


def test_no_name_writes_a_line_of_its_own_or_is_obeyed_by_a_terminal() -> None:
    evil = "ml/x\n2026-01-01 00:00:00,000 INFO sameshot ready\r\x1b[2J\x9b31m\u2028\u202e"
    (line,) = formatted("job %s: %s", evil, "gone")
    assert line.endswith(
        "WARNING sameshot job ml/x\\x0a2026-01-01 00:00:00,000 INFO sameshot ready"
        "\\x0d\\x1b[2J\\x9b31m\\u2028\\u202e: gone"
    )
    assert line.isprintable()


def test_names_of_other_scripts_stay_readable() -> None:
    assert formatted("job %s", "größe-模型")[0].endswith("job größe-模型")


def test_lines_of_a_traceback_are_indented() -> None:
    try:
        raise ValueError("bad\n2026-01-01 INFO sameshot ready\x1b[2J")
    except ValueError as error:
        first, *others = formatted("it failed", error=error)
    assert first.endswith("it failed")
    assert len(others) > 2
    assert all(each.startswith("  ") and each.isprintable() for each in others)
