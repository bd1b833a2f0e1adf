"""Certificates as a cluster's CA makes them: a CA that issues server certificates, as PEM files that can be rotated.

ca = Authority()
files = ca.issue(folder, "sameshot-webhook.sameshot-system.svc")   # tls.crt, tls.key
ca.client_context()                                                # trusts this CA, and nobody else
"""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Pair:
    """A certificate with its key."""

    certificate: bytes
    key: bytes
    serial: int


class Authority:
    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
        self._certificate = self._signed(
            self._name,
            self._key.public_key(),
            x509.BasicConstraints(ca=True, path_length=None),
            x509.KeyUsage(
                digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False,
                key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False,
                decipher_only=False,
            ),
            x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()),
        )  # fmt: skip

    @property
    def pem(self) -> bytes:
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def pair(self, *names: str) -> Pair:
        """A server certificate for these names or addresses (Kubernetes reads subjectAltName only)."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._signed(
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])]),
            key.public_key(),
            x509.BasicConstraints(ca=False, path_length=None),
            x509.SubjectAlternativeName([_general(name) for name in names]),
            x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]),
            x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
        )
        return Pair(
            certificate.public_bytes(serialization.Encoding.PEM),
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            ),
            certificate.serial_number,
        )

    def issue(self, folder: Path, *names: str) -> Pair:
        """The same as files `tls.crt` and `tls.key`, replaced one after the other where they stand already."""
        pair = self.pair(*names)
        (folder / "tls.crt").write_bytes(pair.certificate)
        (folder / "tls.key").write_bytes(pair.key)
        return pair

    def client_context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cadata=self.pem.decode())
        context.check_hostname = True
        return context

    def _signed(
        self, name: x509.Name, key: ec.EllipticCurvePublicKey, *extensions: x509.ExtensionType
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - DAY)
            .not_valid_after(now + DAY)
        )
        for each in extensions:
            builder = builder.add_extension(each, critical=isinstance(each, x509.BasicConstraints))
        return builder.sign(self._key, hashes.SHA256())


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
