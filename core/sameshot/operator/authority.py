"""The authority of all certificates between the parts, and its exchange for a new one. Pure, but for randomness.

One operator has it, so there is one answer to who renews what and when: the certificate itself says it. A new authority
is published first and used a day later, when everybody has it; the old one stays in the bundle until it expires.
"""

from __future__ import annotations

import datetime
from typing import Any

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = datetime.timedelta(days=1)
CA_LASTS = 400 * DAY
CA_RENEWED = 130 * DAY  # before its end; longer than any leaf lasts
ACTIVE_AFTER = 1 * DAY  # so long a new authority is only published
LEAF_LASTS = 90 * DAY
LEAF_RENEWED = 30 * DAY  # before its end
SKEW = datetime.timedelta(minutes=5)  # clocks differ


class Pair(msgspec.Struct, frozen=True):
    """A certificate and its key, in PEM."""

    certificate: bytes
    key: bytes

    @property
    def parsed(self) -> x509.Certificate:
        return x509.load_pem_x509_certificate(self.certificate)


class Authority(msgspec.Struct, frozen=True):
    """`next`: published, not yet used. `old`: certificates of which leaves may still be about."""

    current: Pair
    next: Pair | None = None
    old: tuple[bytes, ...] = ()

    @property
    def bundle(self) -> bytes:
        """What to trust, in PEM."""
        coming = () if self.next is None else (self.next.certificate,)
        return b"".join((self.current.certificate, *coming, *self.old))

    @property
    def data(self) -> dict[str, bytes]:
        """As the Secret keeps it."""
        kept = {"ca.crt": self.current.certificate, "ca.key": self.current.key, "old.crt": b"".join(self.old)}
        if self.next is not None:
            kept |= {"next.crt": self.next.certificate, "next.key": self.next.key}
        return kept


def read(data: dict[str, bytes]) -> Authority | None:
    """What a Secret keeps; None: no authority, or a damaged one."""
    try:
        current = Pair(data["ca.crt"], data["ca.key"])
        coming = Pair(data["next.crt"], data["next.key"]) if data.get("next.crt") else None
        old = x509.load_pem_x509_certificates(data["old.crt"]) if data.get("old.crt") else []
        for each in (current, coming):
            if each is not None and not _belong(each):
                return None
    except (KeyError, ValueError, TypeError):
        return None
    return Authority(current, coming, tuple(_pem(each) for each in old))


def new(now: datetime.datetime) -> Authority:
    return Authority(_authority(now))


def advance(authority: Authority, now: datetime.datetime) -> Authority:
    """As it is to be now; the same one where nothing is to be done."""
    current, coming, old = authority.current, authority.next, authority.old
    if coming is None and now >= current.parsed.not_valid_after_utc - CA_RENEWED:
        coming = _authority(now)
    expired = now >= current.parsed.not_valid_after_utc
    if coming is not None and (expired or now >= coming.parsed.not_valid_before_utc + SKEW + ACTIVE_AFTER):
        current, coming, old = coming, None, (current.certificate, *old)
    kept = tuple(each for each in old if now < x509.load_pem_x509_certificate(each).not_valid_after_utc)
    return Authority(current, coming, kept)


def leaf(authority: Authority, host: str, now: datetime.datetime) -> Pair:
    """A server's certificate for `host`, of the current authority."""
    issuer = authority.current.parsed
    signer: Any = serialization.load_pem_private_key(authority.current.key, None)
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "sameshot")]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(min(now + LEAF_LASTS, issuer.not_valid_after_utc))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=True)  # as there is no common name
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA256())
    )
    return Pair(_pem(certificate), _key_pem(key))


def serves(pair: Pair, authority: Authority, host: str, now: datetime.datetime) -> bool:
    """Whether this leaf may go on: for that host, of the current authority, and not near its end."""
    try:
        certificate = pair.parsed
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        certificate.verify_directly_issued_by(authority.current.parsed)
        return (
            names.get_values_for_type(x509.DNSName) == [host]
            and now < certificate.not_valid_after_utc - LEAF_RENEWED
            and _belong(pair)
        )
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
        return False


def _authority(now: datetime.datetime) -> Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "sameshot"),
            x509.NameAttribute(NameOID.COMMON_NAME, f"sameshot authority {now:%Y-%m-%d %H:%M:%S}"),
        ]
    )
    unused = (
        "digital_signature",
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
        "encipher_only",
        "decipher_only",
    )
    usage = x509.KeyUsage(key_cert_sign=True, crl_sign=True, **dict.fromkeys(unused, False))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + CA_LASTS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Pair(_pem(certificate), _key_pem(key))


def _belong(pair: Pair) -> bool:
    key: Any = serialization.load_pem_private_key(pair.key, None)
    return bool(key.public_key() == pair.parsed.public_key())


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
