"""Images in a registry: the part of the OCI distribution protocol that fetches them."""

from __future__ import annotations

import json
import re
import tempfile
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import BinaryIO

from cloister.errors import Exhausted, HostError, ImageRefused, NotFound, RequestError
from cloister.image.blobs import digest_of, resolve_blobs
from cloister.image.credentials import Credentials, find_credentials
from cloister.image.document import MAXIMUM_DOCUMENT_BYTES
from cloister.image.http import TROUBLE, Response, request, require_safe
from cloister.image.manifest import MANIFEST_TYPES, Descriptor
from cloister.image.reference import RegistryReference
from cloister.image.source import Resolved, Tick
from cloister.image.streams import CHUNK_BYTES, file_chunks, verified
from cloister.model import quote

_ATTEMPTS = 3
_LOG_IN = "log in with `docker login` or `skopeo login`"
_PARAMETER = re.compile(r'([A-Za-z]+)="([^"\\]*)"')
_MAXIMUM_TOKEN_BYTES = 64 * 1024


class RegistrySource:
    """One image of a registry. Blobs are fetched whole and checked before anybody reads them."""

    def __init__(
        self, reference: RegistryReference, *, spool: Path, credentials: Credentials | None = None
    ) -> None:
        self._reference = reference
        self._spool = spool
        self._credentials = credentials
        self._authorization: str | None = None
        self._asking = threading.Lock()
        self._stopping = threading.Event()
        scheme = "http" if reference.is_loopback else "https"
        self._base = f"{scheme}://{reference.address}/v2/{reference.repository}"

    @property
    def origin(self) -> str:
        """Where that is."""
        return f"docker://{self._reference}"

    def resolve(self, tick: Tick) -> Resolved:
        """Find the image."""
        if self._credentials is None:
            self._credentials = find_credentials(self._reference.address)
        wanted = self._reference
        found = resolve_blobs(
            wanted.digest or wanted.tag or "", wanted.digest, self._manifest, self._blob, tick
        )
        return Resolved(
            found.digest, found.config, found.layers, found.aliases, name=str(self._reference)
        )

    def close(self) -> None:
        """End what is being waited for."""
        self._stopping.set()

    def _manifest(self, which: str) -> tuple[bytes, str | None]:
        with self._get(f"{self._base}/manifests/{which}", ", ".join(MANIFEST_TYPES)) as response:
            if response.status == 404:
                raise NotFound(
                    f"there is no image {quote(str(self._reference))}", what=str(self._reference)
                )
            self._require_ok(response, "the manifest")
            data = _bounded(response, MAXIMUM_DOCUMENT_BYTES, "the manifest")
            said = response.headers.get("Docker-Content-Digest")
            if said and said.startswith(("sha256:", "sha512:")) and digest_of(data, said) != said:
                raise ImageRefused(f"the manifest is not what the registry says it is: {said}")
            return data, response.headers.get_content_type()

    def _blob(self, blob: Descriptor, tick: Tick) -> Iterator[bytes]:
        with tempfile.TemporaryFile(dir=self._spool) as file:
            self._fetch(blob, file, tick)
            file.seek(0)
            yield from file_chunks(file)

    def _fetch(self, blob: Descriptor, file: BinaryIO, tick: Tick) -> None:
        """Bring a blob here, from the start again where the connection breaks."""
        what = f"blob {blob.digest}"
        url = f"{self._base}/blobs/{blob.digest}"
        for attempt in range(_ATTEMPTS):
            file.seek(0)
            file.truncate()
            fetched = 0
            try:
                with self._get(url, "*/*") as response:
                    self._require_ok(response, what)
                    for chunk in verified(_chunks(response, blob, what), blob, what):
                        _write(file, chunk)
                        fetched += len(chunk)
                        tick(len(chunk))
                return
            except TROUBLE as error:
                tick(-fetched)
                if attempt + 1 == _ATTEMPTS:
                    raise HostError(
                        f"{self._reference.address} breaks off while it sends {what}; try again"
                    ) from error

    @contextmanager
    def _get(self, url: str, accept: str) -> Iterator[Response]:
        with self._ask(url, accept) as response:
            if response.status != 401:
                yield response
                return
            challenge = response.headers.get_all("WWW-Authenticate") or []
        self._authorize(challenge)
        with self._ask(url, accept) as response:
            if response.status in (401, 403):
                raise RequestError(
                    f"{self._reference.address} does not let us have "
                    f"{quote(self._reference.repository)}; {_LOG_IN}"
                )
            yield response

    def _ask(self, url: str, accept: str) -> AbstractContextManager[Response]:
        headers = {"Accept": accept, "User-Agent": "cloister"}
        if self._authorization is not None:
            headers["Authorization"] = self._authorization
        return request(url, headers, stopping=self._stopping)

    def _require_ok(self, response: Response, what: str) -> None:
        if response.status == 200:
            return
        if response.status in (403, 404):
            raise ImageRefused(f"{self._reference.address} does not have {what}, or hides it")
        raise HostError(f"{self._reference.address} answers {response.status} for {what}")

    def _authorize(self, challenges: list[str]) -> None:
        """Do what the registry asks for before it answers: a password, or a token."""
        with self._asking:
            for challenge in challenges:
                scheme, _, rest = challenge.partition(" ")
                if scheme.lower() == "bearer":
                    self._authorization = f"Bearer {self._token(dict(_PARAMETER.findall(rest)))}"
                    return
                if scheme.lower() == "basic" and self._credentials is not None:
                    self._authorization = self._credentials.basic
                    return
        raise RequestError(f"{self._reference.address} wants to know who we are; {_LOG_IN}")

    def _token(self, asked: dict[str, str]) -> str:
        realm = asked.get("realm", "")
        require_safe(realm, may_be_plain=self._reference.is_loopback)
        fields = {
            "service": asked.get("service", ""),
            "scope": asked.get("scope") or f"repository:{self._reference.repository}:pull",
        }
        headers, body, url = {"User-Agent": "cloister"}, None, realm
        if self._credentials is not None and self._credentials.is_identity_token:
            fields |= {
                "grant_type": "refresh_token",
                "client_id": "cloister",
                "refresh_token": self._credentials.password,
            }
            body = urllib.parse.urlencode(fields).encode()
        else:
            if self._credentials is not None:
                headers["Authorization"] = self._credentials.basic
            url = f"{realm}{'&' if '?' in realm else '?'}{urllib.parse.urlencode(fields)}"
        with request(url, headers, stopping=self._stopping, body=body) as response:
            if response.status != 200:
                raise RequestError(
                    f"{quote(realm)} gives no token ({response.status}); log in again"
                )
            return _read_token(_bounded(response, _MAXIMUM_TOKEN_BYTES, "the token"))


def _write(file: BinaryIO, chunk: bytes) -> None:
    try:
        file.write(chunk)
    except OSError as error:
        # Not the connection's fault: asking for it again does not help.
        raise Exhausted(
            f"the disk of the store takes no more: {error.strerror}; run `cloister gc`",
            limit="disk",
        ) from error


def _read_token(data: bytes) -> str:
    try:
        answer = json.loads(data)
        token = answer.get("token") or answer.get("access_token")
    except (ValueError, AttributeError, RecursionError) as error:
        raise ImageRefused("the server of tokens gives no answer that can be read") from error
    if not isinstance(token, str) or not token.isascii() or not token.isprintable():
        raise ImageRefused("the server of tokens gives none that can be sent")
    return token


def _bounded(response: Response, limit_bytes: int, what: str) -> bytes:
    # One byte more than is allowed, so that what is too long is seen to be.
    try:
        data = response.read(limit_bytes + 1)
    except TROUBLE as error:
        raise HostError(f"the registry breaks off while it sends {what}; try again") from error
    if len(data) > limit_bytes:
        raise ImageRefused(f"{what} has more than {limit_bytes} bytes, the limit")
    return data


def _chunks(response: Response, blob: Descriptor, what: str) -> Iterator[bytes]:
    """Go through a body. One that ends before the size it was announced with has broken off."""
    announced = response.length
    if announced is not None and announced > blob.size_bytes:
        raise ImageRefused(f"{what} is longer than the {blob.size_bytes} bytes it should have")
    count = 0
    while chunk := response.read(CHUNK_BYTES):
        count += len(chunk)
        yield chunk
    if announced is not None and count < announced:
        raise ConnectionError(f"{what} ends after {count} of {announced} bytes")
