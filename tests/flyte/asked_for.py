"""What a page would ask the network for as soon as it is opened, by reading it: also in pages within it.

Scripts may ask for more; those who open a page in a browser see that.
"""

from __future__ import annotations

import re
from html.parser import HTMLParser

_LOADS = {"src", "srcset", "data", "poster", "background", "xlink:href", "imagesrcset", "manifest", "ping"}
_IN_STYLES = re.compile(r"""url\(\s*['"]?(?!data:|#)([^'")]*)|@import\s+(?:url\()?\s*['"]([^'"]*)""", re.IGNORECASE)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._in_style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._in_style = tag == "style"
        for name, value in attrs:
            text = (value or "").strip()
            if name == "srcdoc":
                self.found += asked_for(text)
            elif name == "style":
                self._styles(text)
            elif name in _LOADS or (name == "href" and tag not in ("a", "area")):
                self.found += [] if text.startswith(("data:", "#")) else [text]

    def handle_endtag(self, tag: str) -> None:
        self._in_style = False

    def handle_data(self, data: str) -> None:
        if self._in_style:
            self._styles(data)

    def _styles(self, text: str) -> None:
        self.found += [one or other for one, other in _IN_STYLES.findall(text)]


def asked_for(page: str) -> list[str]:
    reader = _Reader()
    reader.feed(page)
    reader.close()
    return reader.found
