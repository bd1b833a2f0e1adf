"""Wait for the certificate, which another part makes: agents are started before it and must not fail for that."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable

from sameshot.api.transport import ServerTls

log = logging.getLogger(__name__)

LOOK_S = 1.0
SAY_EVERY_S = 60.0


async def until_usable(tls: ServerTls, say: Callable[[str], None]) -> None:
    """Return once both files are there and belong together. `say` is told what is waited for."""
    left_s, said = 0.0, ""
    while (problem := await asyncio.to_thread(problem_with, tls)) is not None:
        say(problem)
        if problem != said or left_s <= 0:
            log.warning("nothing is served yet: %s; it comes from the operator, and is looked for again", problem)
            said, left_s = problem, SAY_EVERY_S
        await asyncio.sleep(LOOK_S)
        left_s -= LOOK_S


def problem_with(tls: ServerTls) -> str | None:
    """Why nobody could be served with these files; None: they can be used."""
    for path in (tls.certificate, tls.key):
        try:
            path.read_bytes()
        except OSError as error:
            return f"there is no certificate yet ({path}: {error.strerror})"
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tls.certificate, tls.key)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        return f"{tls.certificate} and {tls.key} can't be used: {error}"
    return None
