"""The certificates that this host trusts, and the same with one more for a sandbox."""

from __future__ import annotations

import functools
import os
import re
import ssl
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from cloister.errors import HostError, NotFound

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12Certificate

_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----")
# Further certificates to trust, such as a company's own.
VARIABLE = "CLOISTER_CA_FILE"
_USUAL = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
# Java opens no store without one; it is no secret.
STORE_PASSWORD = "changeit"  # noqa: S105


def host_bundle() -> str:
    """Return all certificates that the host trusts, and those that CLOISTER_CA_FILE adds."""
    paths = ssl.get_default_verify_paths()
    wanted = [path for path in (paths.cafile, *_USUAL) if path and Path(path).is_file()]
    if not wanted:
        raise HostError(
            f"this host has no file of certificates it trusts; install ca-certificates, or name "
            f"one in {VARIABLE}"
        )
    bundle = _read(wanted[0])
    further = os.environ.get(VARIABLE)
    return bundle if not further else f"{bundle}\n{_read(further)}"


def _read(path: str) -> str:
    try:
        status = os.stat(path)
        return _read_once(path, status.st_mtime_ns, status.st_size)
    except OSError as error:
        raise NotFound(
            f"the certificates in {path} cannot be read: {error.strerror}", what=path
        ) from error


@functools.lru_cache(maxsize=8)
def _read_once(path: str, changed_ns: int, size: int) -> str:
    # Of what else may be in such a file, a key for one, nothing is passed on.
    return "\n".join(_CERTIFICATE.findall(Path(path).read_text("ascii", "replace"))) + "\n"


def java_stores(bundle: str, certificate: str) -> tuple[bytes, bytes]:
    """Return the same certificates in the form that Java reads: with its password, and without.

    Of a store that is opened without one, Java sees only what is not encrypted.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.serialization import pkcs12

    parsed = x509.load_pem_x509_certificate(certificate.encode())
    own = pkcs12.PKCS12Certificate(parsed, b"cloister")
    password = serialization.BestAvailableEncryption(STORE_PASSWORD.encode())
    held = [own, *_parsed(bundle)]
    closed = pkcs12.serialize_java_truststore(held, password)
    return closed, pkcs12.serialize_java_truststore(held, serialization.NoEncryption())


@functools.lru_cache(maxsize=2)
def _parsed(bundle: str) -> tuple[PKCS12Certificate, ...]:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import pkcs12

    with warnings.catch_warnings():
        # Some that hosts trust have numbers that nobody would give today.
        warnings.simplefilter("ignore")
        found = x509.load_pem_x509_certificates(bundle.encode())
    return tuple(
        pkcs12.PKCS12Certificate(each, b"host-%d" % number) for number, each in enumerate(found)
    )
