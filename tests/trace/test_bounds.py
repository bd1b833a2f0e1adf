"""The cheap proof of bounds holds wherever the exact one would, so no trace is read at the exact one's pace."""

from __future__ import annotations

from pathlib import Path

import pytest

from sameshot.errors import TraceError
from sameshot.model import InvalidKind
from sameshot.trace import bounds
from sameshot.trace.bounds import PROVEN_DEPTH, is_shallow
from sameshot.trace.scan import DocumentScanner
from sameshot.trace.verify import verify


def test_events_nested_as_deep_as_is_allowed_need_no_slow_proof(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Lists and objects of 61 levels in every event's arguments: 64 with the array, the event and the document."""
    walked = []
    locate = DocumentScanner._locate

    def counted(self: DocumentScanner, text: bytes) -> int:
        walked.append(len(text))
        return locate(self, text)

    monkeypatch.setattr(DocumentScanner, "_locate", counted)
    path = tmp_path / "deep.json"
    for opening, closing, levels in (("[", "]", 61), ('{"a":', "}", 61), ('[{"}":', "}]", 30)):
        value = opening * levels + "1" + closing * levels
        event = f'{{"ph":"X","cat":"cpu_op","name":"a","ts":1,"dur":2,"args":{value}}}'
        path.write_text(f'{{"traceEvents":[{",".join([event] * 50)}]}}')
        assert verify(path).events == 50
        assert not walked


def test_a_level_more_than_is_allowed_is_still_refused(tmp_path: Path) -> None:
    path = tmp_path / "deep.json"
    value = "[" * 62 + "]" * 62
    path.write_text(f'{{"traceEvents":[{{"ph":"X","cat":"a","name":"a","ts":1,"dur":2,"args":{value}}}]}}')
    with pytest.raises(TraceError) as caught:
        verify(path)
    assert (caught.value.kind, caught.value.event_index) == (InvalidKind.DEPTH, 0)


@pytest.mark.parametrize("piece", [1 << 19, 50, 7])
def test_depth_is_counted_across_pieces_and_not_inside_strings(monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    monkeypatch.setattr(bounds, "_SLICE", piece)
    for levels in (1, 17, PROVEN_DEPTH - 1, PROVEN_DEPTH, PROVEN_DEPTH + 1):
        deep = b"[" * (levels - 1) + b'"[[[[{{{{"' + b"]" * (levels - 1)
        assert is_shallow(b"[" + b"{}," * 40 + deep + b',{"a":[]}' * 40 + b"]") is (levels <= PROVEN_DEPTH)
