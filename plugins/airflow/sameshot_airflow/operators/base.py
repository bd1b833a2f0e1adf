"""What every step on a finished capture shares: which capture, where results go, and what a retry can't mend."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import BaseOperator

from sameshot import errors
from sameshot_airflow.compat import AirflowFailException, AirflowSkipException
from sameshot_airflow.failures import failure

if TYPE_CHECKING:
    from airflow.sdk import Context

    from sameshot.steps.results import CaptureResult, Result

DEFAULT_CONN_ID = "sameshot_default"

_LINES = 20  # of progress in a task's log, at most


class FinishedCaptureOperator(BaseOperator):
    """The base of operators that read a capture from its manifest.

    :param capture: the XCom of a `SameshotCaptureOperator` (`capture.output`), which brings the manifest's address and
        its digest together. Either this or `manifest_uri` is needed.
    :param manifest_uri: the address of a capture's manifest, or of its folder: a path or an `s3://` URI.
    :param manifest_sha256: what the manifest's digest must be; the task fails where another manifest is found.
    :param results_uri: where results are written; default: that of the connection.
    :param sameshot_conn_id: the connection, looked at only for what the task needs of it.
    """

    template_fields: Sequence[str] = ("capture", "manifest_uri", "manifest_sha256", "results_uri", "sameshot_conn_id")
    template_fields_renderers = {"capture": "json"}  # noqa: RUF012
    ui_color = "#e8f1fa"

    def __init__(
        self,
        *,
        capture: Any = None,
        manifest_uri: str | None = None,
        manifest_sha256: str | None = None,
        results_uri: str | None = None,
        sameshot_conn_id: str = DEFAULT_CONN_ID,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if (capture is None) == (manifest_uri is None):
            raise ValueError(f"{self.task_id}: say which capture, either by `capture` or by `manifest_uri`.")
        if capture is not None and manifest_sha256 is not None:
            raise ValueError(f"{self.task_id}: `capture` brings the manifest's digest, `manifest_sha256` is for a URI.")
        self.capture = capture
        self.manifest_uri = manifest_uri
        self.manifest_sha256 = manifest_sha256
        self.results_uri = results_uri
        self.sameshot_conn_id = sameshot_conn_id

    def manifest(self) -> tuple[str, str | None]:
        """The manifest's address and the digest that it must have. Skips where the capture was skipped."""
        if self.manifest_uri is not None:
            if not self.manifest_uri:
                raise AirflowFailException(f"{self.task_id}: the template of `manifest_uri` gave an empty text.")
            return self.manifest_uri, self.manifest_sha256 or None
        found = capture_of(self.capture)
        if found.skipped:
            raise AirflowSkipException(f"There is no capture to look at: {found.message}")
        if not found.manifest_uri:
            raise AirflowFailException(f"Capture {found.capture_id} has no manifest to read: {found.message}")
        return found.manifest_uri, found.manifest_sha256

    def where_results_go(self) -> str:
        """`results_uri`, of the operator or else of the connection. Raises UsageError where neither has one."""
        from sameshot_airflow.hooks.sameshot import SameshotHook

        return SameshotHook(self.sameshot_conn_id).place_of_results(self.results_uri)

    def progress(self, noun: str = "ranks") -> Callable[[int, int, str], None]:
        """How far a step is, as lines of the task's log; of a large job not every rank has one."""

        def report(done: int, total: int, what: str) -> None:
            if done == total or done % -(-total // _LINES) == 0:
                self.log.info("%d of %d %s: %s", done, total, noun, what)

        return report

    def fail_with(self, context: Context, result: Result, why: str) -> NoReturn:
        """Fail for good, with the result kept as XCom all the same: what was written stays linked."""
        self.keep(context, result)
        raise AirflowFailException(why)

    def keep(self, context: Context, result: Result) -> None:
        """Push the result as Airflow would if the task were to return it."""
        from sameshot.steps.results import to_builtins

        if self.do_xcom_push:
            context["ti"].xcom_push(key="return_value", value=to_builtins(result))


def capture_of(given: Any) -> CaptureResult:
    """What an option `capture` says: a result as a dict, or the text that a template made of one. Skips where the task
    that makes it left none, and fails for good where it is no such result."""
    from sameshot.steps.results import CaptureResult, from_builtins

    value = _read(given) if isinstance(given, str) else given
    if value is None:
        raise AirflowSkipException("There is no capture to look at: the task that makes it left no result.")
    try:
        return from_builtins(value, CaptureResult)
    except (TypeError, ValueError) as error:  # msgspec's is a ValueError
        raise AirflowFailException(
            f"capture: {str(given)[:80]!r} is not what a capture task returns ({error}). Give it the task's output, "
            "`capture.output`, or a template for that."
        ) from error


def _read(text: str) -> Any:
    """A dict as Jinja writes it, or as JSON."""
    for read in (json.loads, ast.literal_eval):
        try:
            return read(text.strip())
        except (ValueError, SyntaxError):
            continue
    return None if text.strip() in ("", "None") else text


@contextmanager
def typed_failures() -> Generator[None, None, None]:
    """What a retry can't mend (a manifest that is none, bytes that differ) fails for good; the rest (storage that does
    not answer, a process that was killed) is left to the task's retries."""
    try:
        yield
    except errors.SameshotError as error:
        raise failure(error, reads_only=True) from error
