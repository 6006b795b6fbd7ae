"""The certificate authority of one sandbox: made by the owner, used by the gateway, in no file."""

from __future__ import annotations

import datetime
import ipaddress
import os
import ssl
from collections.abc import Iterable
from dataclasses import dataclass, field

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_PEM = serialization.Encoding.PEM
# Clocks differ; those inside are the host's own, but what is checked elsewhere is not.
_BEFORE = datetime.timedelta(hours=1)
_MOST_LEAVES = 256
_MOST_COMMON_NAME = 64
_EVERY_ADDRESS = ("0.0.0.0/0", "::/0")


@dataclass(frozen=True, slots=True)
class Authority:
    """The certificate that the sandbox trusts, and the key that never enters it, both as PEM."""

    certificate: str
    key: str = field(repr=False)


def make_authority(hosts: Iterable[str], lasts_s: float) -> Authority:
    """Return an authority for these hosts and no others ("*.host" is all names below it)."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Cloister, of one sandbox")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(now + datetime.timedelta(seconds=lasts_s))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(_constraints(hosts), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Authority(made.public_bytes(_PEM).decode(), _key_text(key))


def _constraints(hosts: Iterable[str]) -> x509.NameConstraints:
    names: list[x509.GeneralName] = []
    addresses: list[x509.GeneralName] = []
    for host in dict.fromkeys(hosts):
        try:
            addresses.append(x509.IPAddress(ipaddress.ip_network(host)))
        except ValueError:
            names.append(x509.DNSName(host.removeprefix("*.")))
    # A kind of name that no constraint speaks of would not be constrained.
    excluded: list[x509.GeneralName] = []
    if not addresses:
        excluded += [x509.IPAddress(ipaddress.ip_network(each)) for each in _EVERY_ADDRESS]
    if not names:
        excluded.append(x509.DNSName(""))
    return x509.NameConstraints(names + addresses or None, excluded or None)


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _key_text(key: ec.EllipticCurvePrivateKey) -> str:
    private, none = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(_PEM, private, none).decode()


class Leaves:
    """What a program inside is shown for each name: signed when first asked for."""

    def __init__(self, authority: Authority) -> None:
        key = serialization.load_pem_private_key(authority.key.encode(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError("the key of the sandbox's authority is of another kind")
        self._key = key
        self._certificate = x509.load_pem_x509_certificate(authority.certificate.encode())
        # One for all names: it proves nothing about them that the signature does not.
        self._leaf_key = ec.generate_private_key(ec.SECP256R1())
        self._contexts: dict[str, ssl.SSLContext] = {}

    def context_for(self, name: str) -> ssl.SSLContext:
        """Return what to be that server with."""
        context = self._contexts.pop(name, None)
        if context is None:
            context = self._make_context(name)
            while len(self._contexts) >= _MOST_LEAVES:
                del self._contexts[next(iter(self._contexts))]
        self._contexts[name] = context
        return context

    def _make_context(self, name: str) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["h2", "http/1.1"])
        text = self._leaf(name).public_bytes(_PEM) + _key_text(self._leaf_key).encode()
        # OpenSSL is given names of files only, by this Python; this one is nowhere but in memory.
        fd = os.memfd_create("leaf", os.MFD_CLOEXEC)
        try:
            os.write(fd, text)
            context.load_cert_chain(f"/proc/self/fd/{fd}")
        finally:
            os.close(fd)
        return context

    def _leaf(self, name: str) -> x509.Certificate:
        try:
            meant: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(name))
        except ValueError:
            meant = x509.DNSName(name)
        common = [x509.NameAttribute(NameOID.COMMON_NAME, name)]
        issuer = self._certificate
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name(common if len(name) <= _MOST_COMMON_NAME else []))
            .issuer_name(issuer.subject)
            .public_key(self._leaf_key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(issuer.not_valid_before_utc)
            .not_valid_after(issuer.not_valid_after_utc)
            .add_extension(
                x509.SubjectAlternativeName([meant]), critical=len(name) > _MOST_COMMON_NAME
            )
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(self._leaf_key.public_key()),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
