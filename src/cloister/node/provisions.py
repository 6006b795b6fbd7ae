"""What a sandbox whose requests are read is given: an authority to trust, and placeholders."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import importlib.util
import os
import stat
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloister.egress.secrets.placeholder import placeholder_for
from cloister.errors import CloisterError, RequestError, Unsupported
from cloister.node.credentials import Credential, mint
from cloister.node.secret_sources import read_secret
from cloister.node.secret_value import SecretValue
from cloister.node.trust_store import STORE_PASSWORD, host_bundle, java_stores
from cloister.policy import DirectoryRoot, HostRoot, Policy
from cloister.policy.secrets import SecretBinding, Source
from cloister.runtime.ground import Ground

if TYPE_CHECKING:
    from cloister.egress.depth.authority import Authority

_NEEDED = ("cryptography", "h2", "websockets")
BUNDLE, STORE = "/run/cloister/ca-certificates.crt", "/run/cloister/ca-certificates.p12"
# The same store for those who open it without a password, as Java does its own.
OPEN_STORE = "/run/cloister/cacerts"
# Where programs look that look at no variable.
_USUAL_BUNDLES = (
    "etc/ssl/certs/ca-certificates.crt",
    "etc/pki/tls/certs/ca-bundle.crt",
    "etc/ssl/ca-bundle.pem",
    "etc/ssl/cert.pem",
)
_USUAL_STORES = ("etc/ssl/certs/java/cacerts", "etc/pki/ca-trust/extracted/java/cacerts")
_VARIABLES = (
    *("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"),
    *("GIT_SSL_CAINFO", "PIP_CERT", "CARGO_HTTP_CAINFO", "AWS_CA_BUNDLE", "DENO_CERT"),
    *("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", "PERL_LWP_SSL_CA_FILE", "BUNDLE_SSL_CA_CERT"),
    *("HTTPLIB2_CA_CERTS", "NIX_SSL_CERT_FILE", "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE"),
)
# Returns the value of a secret that was stored, or says why it may not be had.
ReadStored = Callable[[SecretBinding], Awaitable[str]]
# Each makes what comes back take longer to look through.
_MOST_RETIRED = 16
_DAY_S = 86_400.0
_LONGEST_S = 30 * _DAY_S


@dataclass(frozen=True, slots=True)
class Provisions:
    """All of it, held by the owner: a gateway that is started anew is handed the same again."""

    authority: Authority
    bundle: str = field(repr=False)
    store: bytes = field(repr=False)
    open_store: bytes = field(repr=False)
    placeholders: Mapping[str, str] = field(repr=False)
    values: tuple[SecretValue, ...]
    credentials: tuple[Credential, ...] = field(repr=False)
    # Values of before, which a server may still say back.
    retired: tuple[SecretValue, ...] = ()
    # Those that the authority is good for, as rules and secrets name them.
    hosts: tuple[str, ...] = ()

    @property
    def env(self) -> dict[str, str]:
        """The variables inside: where the certificates are, and the placeholders."""
        trust = "-Djavax.net.ssl.trustStore"
        options = f"{trust}={STORE} {trust}Password={STORE_PASSWORD}"
        return {
            **dict.fromkeys(_VARIABLES, BUNDLE),
            "JAVA_TOOL_OPTIONS": options,
            **self.placeholders,
        }

    def document(self) -> dict[str, Any]:
        """Return what the gateway is handed, by a descriptor of memory and no other way."""
        values = {each.name: each.reveal() for each in self.values}
        return {
            "depth": {
                "certificate": self.authority.certificate,
                "key": self.authority.key,
                "bundle": self.bundle,
            },
            "values": {
                name: {
                    "placeholder": placeholder,
                    # Without one what stands for it is refused.
                    "value": values.get(name, ""),
                    "retired": [each.reveal() for each in self.retired if each.name == name],
                }
                for name, placeholder in self.placeholders.items()
            },
        }

    async def close(self) -> None:
        """Have revoked what was minted; raises the first that was not."""
        outcomes = await asyncio.gather(
            *(each.revoke() for each in self.credentials), return_exceptions=True
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome


async def provide(
    policy: Policy, sandbox: str, read_stored: ReadStored | None = None
) -> Provisions | None:
    """Return what a sandbox needs for its policy to be kept, or None where it needs nothing."""
    if not policy.has_depth:
        return None
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise Unsupported(
            f"rules on requests and secrets need the Python package {missing[0]}; "
            "pip install 'cloister[depth]'"
        )
    credentials: list[Credential] = []
    values: list[SecretValue] = []
    try:
        for binding in policy.secrets:
            if binding.source is Source.MINT:
                credentials.append(await mint(binding, sandbox))
                values.append(credentials[-1].value)
            elif binding.source is Source.TENANT:
                values.append(await _stored(binding, read_stored))
            else:
                values.append(await read_secret(binding))
        authority, bundle, (store, open_store) = await asyncio.to_thread(_certificates, policy)
    except BaseException:
        for each in credentials:
            with contextlib.suppress(CloisterError):
                await each.revoke()
        raise
    placeholders = {each.name: placeholder_for(each.reveal()) for each in values}
    return Provisions(
        authority,
        bundle,
        store,
        open_store,
        placeholders,
        tuple(values),
        tuple(credentials),
        hosts=tuple(_hosts(policy)),
    )


async def renew(
    provisions: Provisions, policy: Policy, read_stored: ReadStored | None = None
) -> tuple[Provisions, list[CloisterError]]:
    """Return the same with every value read anew, and why some are there no more.

    What was minted stays. The old ones are known still, to be taken out of what comes back.
    """
    old = {each.name: each for each in provisions.values}
    values: list[SecretValue] = []
    failed: list[CloisterError] = []
    for binding in policy.secrets:
        try:
            if binding.source is Source.MINT:
                values.append(old[binding.name])
            elif binding.source is Source.TENANT:
                values.append(await _stored(binding, read_stored))
            else:
                values.append(await read_secret(binding))
        except CloisterError as error:
            failed.append(error)
    kept = {each.reveal() for each in values}
    retired = (*provisions.retired, *(each for each in old.values() if each.reveal() not in kept))
    renewed = dataclasses.replace(
        provisions, values=tuple(values), retired=retired[-_MOST_RETIRED:]
    )
    return renewed, failed


def without_values(provisions: Provisions) -> Provisions:
    """Return the same with no value but what was minted for it, which cannot be read again."""
    minted = {each.value.name for each in provisions.credentials}
    values = tuple(each for each in provisions.values if each.name in minted)
    retired = (*provisions.retired, *(each for each in provisions.values if each not in values))
    return dataclasses.replace(provisions, values=values, retired=retired[-_MOST_RETIRED:])


async def _stored(binding: SecretBinding, read: ReadStored | None) -> SecretValue:
    if read is None:
        raise RequestError(
            f'the secret {binding.name} has from = "tenant:{binding.where}", which is stored on a '
            "server; set CLOISTER_URL, or name another source"
        )
    return SecretValue(binding.name, await read(binding))


def _certificates(policy: Policy) -> tuple[Authority, str, tuple[bytes, bytes]]:
    from cloister.egress.depth.authority import make_authority

    hosts = _hosts(policy)
    lifetime = policy.limits.lifetime
    lasts_s = _LONGEST_S if lifetime is None else min(lifetime + _DAY_S, _LONGEST_S)
    authority = make_authority(hosts, lasts_s)
    bundle = host_bundle()
    return authority, bundle, java_stores(bundle, authority.certificate)


def _hosts(policy: Policy) -> list[str]:
    """Return the hosts to which requests may be read."""
    rules = () if policy.egress is None else policy.egress.rules
    hosts = [rule.host.host for rule in rules]
    return hosts + [host.host for secret in policy.secrets for host in secret.hosts]


def write_files(provisions: Provisions, beside: Path) -> dict[str, Path]:
    """Write what is shown inside, next to a path; return the files by where they are shown."""
    bundle, store = beside.with_suffix(".pem"), beside.with_suffix(".p12")
    open_store = beside.with_suffix(".open.p12")
    _write(bundle, f"{provisions.bundle}\n{provisions.authority.certificate}".encode())
    _write(store, provisions.store)
    _write(open_store, provisions.open_store)
    return {
        BUNDLE.lstrip("/"): bundle,
        STORE.lstrip("/"): store,
        OPEN_STORE.lstrip("/"): open_store,
    }


def _write(path: Path, data: bytes) -> None:
    path.unlink(missing_ok=True)
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644)
    with open(fd, "wb") as file:
        # Whoever runs inside reads them, under whatever id.
        os.fchmod(fd, 0o644)
        file.write(data)


def usual_places(policy: Policy, ground: Ground) -> dict[str, str]:
    """Return where the sandbox's own certificates are, and which of ours is shown there instead.

    Never where a link leads there.
    """
    disk = () if ground.disk is None else (ground.disk.path, *ground.disk.sealed)
    if isinstance(policy.root, HostRoot):
        roots = ("/", *disk)
    elif isinstance(policy.root, DirectoryRoot):
        roots = (str(policy.root.path), *disk)
    else:
        roots = (*ground.image, *disk)
    places = {
        **dict.fromkeys(_USUAL_BUNDLES, BUNDLE.lstrip("/")),
        **dict.fromkeys(_USUAL_STORES, OPEN_STORE.lstrip("/")),
    }
    return {path: ours for path, ours in places.items() if _is_plain(path, roots)}


def _is_plain(path: str, roots: tuple[str, ...]) -> bool:
    """Whether some layer has a file there, and none has anything else on the way."""
    found = False
    parts = path.split("/")
    for root in roots:
        for size in range(1, len(parts) + 1):
            try:
                mode = os.lstat(os.path.join(root, *parts[:size])).st_mode
            except OSError:
                break
            if size < len(parts) and not stat.S_ISDIR(mode):
                return False
            if size == len(parts):
                if not stat.S_ISREG(mode):
                    return False
                found = True
    return found
