"""Our pages as Flyte shows them: Decks (flytekit) and reports (Flyte 2) that ask nobody for anything. Pure.

The pages of the analysis are self-contained: no fonts, scripts or pictures of others. Both SDKs would put them into a
page of their own (`html/template.html`, `_template.html`) that links fonts of fonts.googleapis.com, and whose styles
(`ol, ul`, `table`) reach into whatever stands in it. So either the file that Flyte shows is our page itself (Flyte's
console opens it in an iframe of its own, by its address), or, where an SDK insists on a page around it, `TEMPLATE` is
that page and `framed` keeps ours apart in it.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

TEMPLATE = Path(__file__).with_name("deck_template.html")
"""A `string.Template` with the SDKs' two places, `NAV_HTML` and `BODY_HTML`: their tabs, without anything remote."""


def framed(page: str, title: str = "sameshot") -> str:
    """A whole page as an element of another one: its own styles and scripts, and none of the other's.

    The frame may run its own scripts, open links in new windows and hand out downloads, and nothing else: it has no
    origin, so it can't reach the page around it.
    """
    return (
        f'<iframe title="{escape(title)}" srcdoc="{escape(page)}" '
        'sandbox="allow-scripts allow-popups allow-downloads" referrerpolicy="no-referrer" '
        'style="display:block;width:100%;height:90vh;border:0"></iframe>'
    )
