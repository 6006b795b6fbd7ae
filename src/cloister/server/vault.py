"""Secrets that tenants store: written and used, never read back; sealed under the owner's key."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import time
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Sequence
from typing import Any

from cloister.errors import CloisterError, Denied, Exhausted, HostError, NotFound, Unsupported
from cloister.model import quote
from cloister.node.memory_key import memory_key
from cloister.node.provisions import ReadStored
from cloister.node.secret_value import SecretValue
from cloister.policy import Effect, Verdict
from cloister.policy.egress_rules import str_destination
from cloister.policy.secrets import MOST_SECRETS, SecretBinding
from cloister.sandbox import Sandbox
from cloister.server.records import Records
from cloister.server.records.rows import SecretRow
from cloister.server.records.secret_rows import find_secret, list_secrets, put_secret, remove_secret
from cloister.server.tenancy import TenantName

_NONCE_BYTES = 12


class Vault:
    """The secrets of every tenant, each for the hosts that its tenant named with it."""

    def __init__(self, records: Records) -> None:
        self._records = records
        # How often sandboxes of a tenant were told to take what is stored.
        self._renewals: Counter[TenantName] = Counter()

    async def put(self, tenant: TenantName, name: str, value: str, hosts: Sequence[str]) -> None:
        """Store a secret, or another value of one that is stored."""
        secret = SecretValue(name, value)
        places = {"from": f"tenant:{name}", "hosts": hosts, "header": "authorization"}
        bound = _bound(SecretBinding(name, **places))
        sealed = _seal(tenant, name, bound, secret.reveal())
        row = SecretRow(tenant, name, bound, sealed, time.time())
        if not await self._records.do(lambda connection: put_secret(connection, row, MOST_SECRETS)):
            raise Exhausted(
                f"this tenant has {MOST_SECRETS} secrets, and may have no more; remove one first",
                limit="disk",
            )

    async def rows(self, tenant: TenantName) -> list[SecretRow]:
        """Return what is stored of a tenant, by name; sealed."""
        return await self._records.do(lambda connection: list_secrets(connection, tenant))

    async def remove(self, tenant: TenantName, name: str) -> None:
        """Forget a secret; sandboxes that run keep what they were started with."""
        if not await self._records.do(lambda connection: remove_secret(connection, tenant, name)):
            raise _missing(name)

    def renew(self, tenant: TenantName) -> None:
        """Note that all sandboxes of a tenant take what is stored now: those that start, too."""
        self._renewals[tenant] += 1

    async def open(self, tenant: TenantName, sandbox: Sandbox) -> None:
        """Open a sandbox; what was to be renewed while it began it has not as it read it.

        Whoever tells all that run after this has returned finds it among them.
        """
        seen = self._renewals[tenant]
        await sandbox.open()
        while self._renewals[tenant] != seen and sandbox.policy.secrets:
            seen = self._renewals[tenant]
            with contextlib.suppress(CloisterError):
                # One that cannot be read any more is withdrawn, as in those that run.
                await sandbox.renew_secrets()

    def reader(self, tenant: TenantName) -> ReadStored:
        """Return what reads the secrets of a tenant for a sandbox of theirs."""

        async def read(binding: SecretBinding) -> str:
            name = binding.where
            row = await self._records.do(lambda connection: find_secret(connection, tenant, name))
            if row is None:
                raise _missing(name)
            # Or whoever may start a sandbox could have it sent anywhere.
            for host in _bound(binding):
                if host not in row.hosts:
                    reason = f"it is stored for {', '.join(row.hosts)}"
                    raise Denied(
                        f"the secret {quote(name)} is not for {host}: {reason}",
                        verdict=Verdict(Effect.DENY, f"secrets.{binding.name}", reason),
                    )
            return _open(row)

        return read


def _bound(binding: SecretBinding) -> tuple[str, ...]:
    return tuple(sorted({str_destination(each) for each in binding.hosts}))


def _seal(tenant: str, name: str, hosts: tuple[str, ...], value: str) -> str:
    nonce = os.urandom(_NONCE_BYTES)
    sealed = _cipher().encrypt(nonce, value.encode(), _about(tenant, name, hosts))
    return b64encode(nonce + sealed).decode()


def _open(row: SecretRow) -> str:
    try:
        data = b64decode(row.sealed)
        nonce, sealed = data[:_NONCE_BYTES], data[_NONCE_BYTES:]
        value: bytes = _cipher().decrypt(nonce, sealed, _about(row.tenant, row.name, row.hosts))
    except CloisterError:
        raise
    except Exception as error:
        # Without the original: what failed is a cipher, and says nothing that helps.
        raise HostError(
            f"the secret {quote(row.name)} cannot be opened with this server's key; store it again"
        ) from (None if type(error).__name__ == "InvalidTag" else error)
    return value.decode()


def _about(tenant: str, name: str, hosts: tuple[str, ...]) -> bytes:
    """Return what a value is sealed with: in another row, or with other hosts, it does not open."""
    return "\0".join((tenant, name, *hosts)).encode()


def _cipher() -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise Unsupported(
            "stored secrets need the Python package cryptography; pip install 'cloister[depth]'"
        ) from None
    return AESGCM(hmac.new(memory_key(), b"secrets of tenants", hashlib.sha256).digest())


def _missing(name: str) -> NotFound:
    return NotFound(
        f"no secret {quote(name)} is stored; PUT /v1/secrets/NAME stores one", what=name
    )
