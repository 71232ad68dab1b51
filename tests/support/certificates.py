"""A certificate authority of one's own, for tests of TLS."""

from __future__ import annotations

import datetime as dt
import ipaddress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority:
    """`ca_file`: what those who trust it need."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder = folder
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.ca_file = folder / f"{name}.pem"
        made = self._builder(self._name, self._key).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        self.ca_file.write_bytes(_pem(made.sign(self._key, hashes.SHA256())))

    def issue(self, name: str, valid_hours: int = 24, host: str = "") -> Path:
        """A PEM file with a certificate for a host, or 127.0.0.1, and its key."""
        of_host = x509.DNSName(host) if host else x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        made = self._builder(subject, key, valid_hours).add_extension(
            x509.SubjectAlternativeName([of_host]), critical=False
        )
        path = self._folder / f"{name}.pem"
        path.write_bytes(
            _pem(made.sign(self._key, hashes.SHA256()))
            + key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return path

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, valid_hours: int = 24
    ) -> x509.CertificateBuilder:
        now = dt.datetime.now(dt.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(hours=valid_hours))
        )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
