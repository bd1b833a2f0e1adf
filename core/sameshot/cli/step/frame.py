"""What all steps have in common: the result file, the exit code, the last words, and what a signal means.

    with reporting("capture", result, result_dir, of=CaptureResult) as report:
        report.knows(request_key=key)        # facts that a failure's file shall have, too
        report.done(capture(request))        # a struct of `steps.results`

The file is always written, whole and at the end: after a success with every field of the result, after an error or a
signal with the exit code, the error's name, its message and what is known. Only a command line that can't be read
leaves none.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Coroutine, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import typer

from sameshot.cli.telling import expected
from sameshot.cli.telling import say as say
from sameshot.errors import UsageError, of_exit_code
from sameshot.steps.contract import TERMINATED as TERMINATED

ResultOption = Annotated[
    Path | None,
    typer.Option("--result", help="Write the small result to this file, as JSON, also on failure.", show_default=False),
]

ResultDirOption = Annotated[
    Path | None,
    typer.Option(
        "--result-dir",
        help="Write each field of the result to a file of its name here, for engines that read single values.",
        show_default=False,
    ),
]

T = TypeVar("T")

_FIRST = ("step", "exit_code", "error", "message")  # in every result file

INTERRUPTED = 130
_SIGNALS = {
    INTERRUPTED: ("Interrupted", "The step was interrupted."),
    TERMINATED: ("Terminated", "The step was terminated by a signal."),
}


class Report:
    """What is to be said of a step, whatever becomes of it."""

    def __init__(self, step: str) -> None:
        self.step = step
        self.when_signalled = ""
        """What a signal leaves as it is: `The capture goes on.`"""
        self._known: dict[str, Any] = {}
        self._result: dict[str, Any] | None = None
        self.error = ""

    def knows(self, **facts: Any) -> None:
        self._known |= {name: msgspec.to_builtins(value) for name, value in facts.items()}

    def done(self, result: msgspec.Struct, error: str = "") -> None:
        """The step ended with a result, good or bad: its `exit_code` says. `error` names what is bad, where that does
        not follow from the exit code."""
        self.error = error
        self._result = {name: msgspec.to_builtins(getattr(result, name)) for name in result.__struct_fields__}

    def document(self, exit_code: int, error: str, message: str) -> dict[str, Any]:
        """The result file's content; the same first four fields in every one."""
        told = self._result if self._result is not None else self._known
        first = dict(zip(_FIRST, (self.step, exit_code, error, message), strict=True))
        return first | {name: value for name, value in told.items() if name not in ("exit_code", "message")}

    @property
    def result(self) -> dict[str, Any] | None:
        return self._result


@contextlib.contextmanager
def reporting(
    step: str,
    result: Path | None,
    result_dir: Path | None = None,
    *,
    of: type[msgspec.Struct] | None = None,
    facts: tuple[str, ...] = (),
) -> Iterator[Report]:
    """Runs a step; leaves by `typer.Exit` with the result's exit code, or with the error that the step raised.

    `of` is what the step's results are, `facts` what it may also know before it has one: values of such names that an
    earlier try left in `result_dir` are removed first.
    """
    report = Report(step)
    _prepare(result, result_dir, {*_FIRST, *(of.__struct_fields__ if of is not None else ()), *facts})
    try:
        yield report
    except KeyboardInterrupt:
        _write(_signalled(report, INTERRUPTED), result, result_dir)
        raise
    except SystemExit as left:  # SIGTERM comes as `main.Terminated`
        code = left.code if isinstance(left.code, int) else 1
        document = _signalled(report, code) if code in _SIGNALS else report.document(code, "", "")
        _write(document, result, result_dir)
        if code in _SIGNALS:
            say(document["message"], fg="yellow")
        raise
    except Exception as error:
        code, words = expected(error) or (1, str(error))
        _write(report.document(code, type(error).__name__, words or str(error)), result, result_dir)
        raise
    told = report.result
    assert told is not None, "a step ends with a result or with an error"
    code = int(told["exit_code"])
    _write(
        report.document(code, report.error or (of_exit_code(code).__name__ if code else ""), told["message"]),
        result,
        result_dir,
    )
    if told["message"]:
        say(told["message"], fg="red" if code else None)
    if told.get("warning"):
        say(f"warning: {told['warning']}", fg="yellow")
    raise typer.Exit(code)


def stoppable(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end. SIGTERM and Ctrl-C end it at its next wait: its clean-up runs, and then
    SystemExit(143) or KeyboardInterrupt leaves here. What it has come to by then is not lost to a later signal."""
    import asyncio  # whoever only asks for help does not pay for it

    before = signal.getsignal(signal.SIGTERM)
    come_to: list[T] = []

    async def main() -> None:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        terminated = False

        def end(*_: object) -> None:
            nonlocal terminated
            terminated = True
            loop.call_soon_threadsafe(task.cancel)

        # Not by the loop's own add_signal_handler: taking that away leaves the system's default for a while, and a
        # second SIGTERM in that while ends the process without a result file.
        signal.signal(signal.SIGTERM, end)
        try:
            come_to.append(await work)
        except asyncio.CancelledError:
            if terminated:
                raise SystemExit(TERMINATED) from None
            raise
        finally:
            signal.signal(signal.SIGTERM, before)

    try:
        asyncio.run(main())
    except (SystemExit, KeyboardInterrupt):  # also while the loop is being taken down, which waits for threads
        if not come_to:
            raise
    return come_to[0]


def _signalled(report: Report, code: int) -> dict[str, Any]:
    name, said = _SIGNALS[code]
    return report.document(code, name, f"{said} {report.when_signalled}".strip())


def _prepare(result: Path | None, result_dir: Path | None, fields: Iterable[str]) -> None:
    """Before anything is done: what can't be reported need not be begun. A result of an earlier try is none of ours."""
    try:
        if result is not None:
            result.parent.mkdir(parents=True, exist_ok=True)
            if not _mounted(result):
                result.unlink(missing_ok=True)
        if result_dir is not None:
            result_dir.mkdir(parents=True, exist_ok=True)
            for name in fields:
                (result_dir / name).unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"The result can't be written: {error}.") from None


def _write(document: dict[str, Any], result: Path | None, result_dir: Path | None) -> None:
    if result_dir is not None:
        for name, value in document.items():
            _replace(result_dir / name, _text(value).encode())
    if result is not None and _mounted(result):
        result.write_bytes(msgspec.json.encode(document))  # short: the kubelet takes 4,096 bytes
    elif result is not None:
        _replace(result, msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")


def _text(value: Any) -> str:
    """A single value as engines take it: text as it is, nothing for null, else JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _mounted(path: Path) -> bool:
    """A file that is a mount of its own, as /dev/termination-log in a pod: it can be written and not replaced."""
    return path.is_file() and (os.path.ismount(path) or not os.access(path.parent, os.W_OK))


def _replace(path: Path, data: bytes) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(data)
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
