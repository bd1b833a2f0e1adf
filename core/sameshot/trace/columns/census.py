"""What a trace holds beside its columns, counted: keys of `args` that no column keeps, and how times are written."""

from __future__ import annotations

from collections import Counter

import msgspec

from sameshot.trace.columns.parse import ARGUMENTS
from sameshot.trace.columns.times import Times

_ALL = 4  # blocks counted one and all; of later ones …
_EVERY = 32  # … each so-manyth, as counting costs as much as reading
_MOST_KEYS = 1000
_LONGEST = 200  # characters of a key

_LARGEST = 1 << 16  # bytes of the arguments of one event; nobody writes more but to be counted here


class _Event(msgspec.Struct, gc=False):
    """Other fields are skipped by the decoder, however many there are."""

    args: msgspec.Raw = msgspec.Raw()


_events = msgspec.json.Decoder(list[_Event])
_keys = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Census:
    """Counts over blocks."""

    def __init__(self) -> None:
        self.args: Counter[str] = Counter()
        self.args_events = 0
        """How many events `args` rests on."""
        self.whole = 0
        """Starts written as whole µs, as fractions and as text."""
        self.fractions = 0
        self.texts = 0
        self._blocks = 0

    def block(self, text: bytes, events: int) -> None:
        """The next block: an array of so many events."""
        self._blocks += 1
        if self._blocks > _ALL and self._blocks % _EVERY:
            return
        self.args_events += events
        for event in _events.decode(text):
            args = event.args
            if not (size := memoryview(args).nbytes):
                continue
            if size > _LARGEST:
                self.args["(too long to be counted)"] += 1
                continue
            try:
                self.args.update(key[:_LONGEST] for key in _keys.decode(args) if key not in ARGUMENTS)
            except msgspec.ValidationError:
                self.args["(not an object)"] += 1
        if len(self.args) > 2 * _MOST_KEYS:
            self.args = Counter(dict(self.args.most_common(_MOST_KEYS)))

    def times(self, starts: Times) -> None:
        """The next starts."""
        self.fractions += starts.fractions
        self.texts += starts.texts
        stated = int((starts.ns != -(1 << 63)).sum())
        self.whole += max(0, stated - starts.fractions - starts.texts)
