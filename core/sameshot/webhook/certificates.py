"""The webhook's certificate, from files that somebody else keeps fresh (cert-manager, or whoever runs the cluster).

A rotated certificate counts from the next handshake on; connections that are open go on with the one they began with.
Each pair is loaded into a context of its own and only then put to use: a certificate beside the key of another, as it
can be seen in the middle of a rotation, would leave OpenSSL without any key if it were loaded over the one in use.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path

from sameshot.errors import UsageError

log = logging.getLogger(__name__)

LOOK_EVERY_S = 5.0  # the kubelet brings a changed Secret within a minute or so; the files are small


class Certificates:
    """`certificate` is a PEM chain, leaf first; `key` its private key, without a passphrase.

    Raises UsageError where the pair can't be used at the start; later, one that can't be used is told once and the one
    before it stays.
    """

    def __init__(self, certificate: Path, key: Path) -> None:
        self._files = (certificate, key)
        self._seen = self._contents()
        try:
            self._current = self._load()
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise UsageError(
                f"The certificate {certificate} with the key {key} can't be used: {error}. Both must be PEM files, the "
                "key without a passphrase."
            ) from None
        self._refused: tuple[bytes, bytes] | None = None
        self.context = self._load()  # what listens; every handshake is given the current one
        self.context.sni_callback = self._choose

    @property
    def chain(self) -> bytes:
        """PEM, of the one that is in use."""
        return self._seen[0]

    async def follow(self, every_s: float = LOOK_EVERY_S) -> None:
        """Take rotated files; runs until it is cancelled."""
        while True:
            await asyncio.sleep(every_s)
            await asyncio.to_thread(self.look)

    def look(self) -> bool:
        """Take the files if they changed; whether they were taken."""
        try:
            found = self._contents()
            if found == self._seen:
                return False
            self._current = self._load()
        except (UsageError, OSError, ValueError) as error:
            self._tell(error)
            return False
        self._seen, self._refused = found, None
        log.info("certificate taken file=%s", self._files[0])
        return True

    def _choose(self, connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, context: ssl.SSLContext) -> None:
        connection.context = self._current

    def _load(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.set_alpn_protocols(["http/1.1"])
        # Never ask for a passphrase: there is nobody at the terminal.
        certificate, key = self._files
        context.load_cert_chain(certificate, key, password=lambda: b"")
        return context

    def _contents(self) -> tuple[bytes, bytes]:
        try:
            certificate, key = (path.read_bytes() for path in self._files)
        except OSError as error:
            raise UsageError(f"{error.filename} can't be read: {error.strerror}.") from None
        return certificate, key

    def _tell(self, error: Exception) -> None:
        """Once for each state of the files."""
        try:
            found = self._contents()
        except UsageError:
            found = (b"", b"")
        if found != self._refused:
            self._refused = found
            log.warning("certificate not taken, the one before stays file=%s why=%r", self._files[0], str(error))
