"""What the command line makes of a capture that has ended: its exit code and its last words."""

from __future__ import annotations

import io

import msgspec
import pytest
from rich.console import Console

from sameshot.api.views import CaptureView
from sameshot.cli.progress import print_result
from sameshot.model import CaptureState, Nobody
from sameshot.steps.verdict import exit_code
from support.fake_agent import JOB

DONE = CaptureView(
    capture_id="0" * 32,
    job=JOB,
    state=CaptureState.SUCCEEDED,
    expected=2,
    archived=2,
    published=True,
    manifest_uri="file:///archive/manifest.json",
    converged_at_ns=1,
)


def ended(state: CaptureState, **changes: object) -> CaptureView:
    return msgspec.structs.replace(DONE, state=state, **changes)


@pytest.mark.parametrize(
    ("view", "code"),
    [
        (ended(CaptureState.SUCCEEDED), 0),
        (ended(CaptureState.PARTIAL), 3),
        (ended(CaptureState.FAILED), 4),
        (ended(CaptureState.UNKNOWN, published=False, expected=0), 5),
        (ended(CaptureState.CANCELLED), 7),
        (ended(CaptureState.SUCCEEDED, published=False), 75),
        (ended(CaptureState.FAILED, published=False), 75),
        # given up for good: a retry finds the same
        (ended(CaptureState.SUCCEEDED, published=False, manifest_uri=""), 4),
        (ended(CaptureState.CANCELLED, published=False, manifest_uri=""), 4),
        (ended(CaptureState.COLLECTING, published=False, manifest_uri=""), 75),
        (ended(CaptureState.FAILED, published=False, expected=0, nobody=Nobody.ENDED), 6),
        (ended(CaptureState.FAILED, published=False, expected=0, nobody=Nobody.NOT_ARMED), 6),
        (ended(CaptureState.FAILED, published=False, expected=0, nobody=Nobody.SILENT), 75),
        (ended(CaptureState.FAILED, published=False, expected=0, nobody=Nobody.BROKEN), 1),
        # of a coordinator that is a version older and gives no reason
        (ended(CaptureState.FAILED, published=False, expected=0), 6),
        (ended(CaptureState.FAILED, published=False, expected=0, converged_at_ns=None), 1),
        (ended(CaptureState.CANCELLED, published=False, expected=0), 7),
        (ended(CaptureState.COLLECTING, published=False), 75),
    ],
)
def test_each_end_has_its_exit_code(view: CaptureView, code: int) -> None:
    assert exit_code(view) == code


def said(view: CaptureView, capsys: pytest.CaptureFixture[str]) -> str:
    out = io.StringIO()
    print_result(view, Console(file=out, width=200))
    return out.getvalue() + capsys.readouterr().err


def test_a_capture_without_any_worker_says_so_and_promises_no_manifest(capsys: pytest.CaptureFixture[str]) -> None:
    note = "No worker of this job is registered on any of 1 nodes: was it armed and is it running?"
    text = said(ended(CaptureState.FAILED, published=False, expected=0, archived=0, note=note), capsys)
    assert note in text
    assert "manifest" not in text


def test_a_capture_that_is_not_published_yet_says_that_it_is_tried_again(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(ended(CaptureState.SUCCEEDED, published=False, note="storage is away"), capsys)
    assert "storage is away" in text
    assert "keeps trying" in text
