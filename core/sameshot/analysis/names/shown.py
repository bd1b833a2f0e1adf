"""Names that fit into a table."""

from __future__ import annotations

import re


def short(name: str, limit: int = 96) -> str:
    """An event name that fits into a table; C++ kernels lose their argument lists first, copies never ("Pageable").

    Addresses of Python objects go as well: the same function has another one in each process.
    """
    plain = name.removeprefix("void ")
    if name.endswith(")") and "::" not in name and not name.startswith(("Memcpy", "Memset")):
        plain = name.partition("(")[0]
    if plain.endswith(">"):
        plain = re.sub(r" at 0x[0-9a-f]+>$", ">", plain)
    plain = re.sub(r"[\x00-\x1f\x7f]", "�", plain)
    return plain if len(plain) <= limit else plain[: limit - 1] + "…"
