"""A registry may lie, break off, send us elsewhere or ask who we are."""

from __future__ import annotations

import base64
import hashlib
import json
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cloister.errors import HostError, ImageRefused, NotFound, RequestError
from cloister.image.credentials import Credentials
from cloister.image.http import request
from cloister.image.reference import RegistryReference
from cloister.image.registry import RegistrySource
from cloister.image.source import Resolved

LAYER = b"layer" * 1000
CONFIG = b"{}"


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def manifest(layer: bytes = LAYER, config: bytes = CONFIG) -> bytes:
    def blob(data: bytes) -> dict[str, Any]:
        return {"mediaType": "x", "digest": digest(data), "size": len(data)}

    document = {"schemaVersion": 2, "config": blob(config), "layers": [blob(layer)]}
    return json.dumps(document).encode()


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloister.image.http._FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr("cloister.image.http._LONGEST_PAUSE_S", 0.002)


@pytest.fixture
def honest(fake: Any, answers: Any) -> Callable[[Any], Any]:
    """Answers as a registry should."""

    def answer(asked: Any) -> Any:
        if "/manifests/" in asked.path:
            kind = {"Content-Type": "application/vnd.oci.image.manifest.v1+json"}
            return answers(body=manifest(), headers=kind)
        for data in (LAYER, CONFIG):
            if asked.path == f"/v2/app/blobs/{digest(data)}":
                return answers(body=data)
        return answers(404)

    fake.answer = answer
    return answer


def source(
    fake: Any, tmp_path: Path, *, pin: str | None = None, who: Credentials | None = None
) -> RegistrySource:
    host, _, port = fake.address.partition(":")
    reference = RegistryReference(host, int(port), "app", None if pin else "1", pin)
    return RegistrySource(reference, spool=tmp_path, credentials=who)


def fetched(found: Resolved) -> bytes:
    return b"".join(found.layers[0].open(lambda _: None))


def ignore(count: int) -> None:
    return


def test_an_honest_registry_is_read(fake: Any, honest: Any, tmp_path: Path) -> None:
    found = source(fake, tmp_path).resolve(ignore)
    assert (found.digest, found.config, fetched(found)) == (digest(manifest()), CONFIG, LAYER)
    pinned = source(fake, tmp_path, pin=digest(manifest())).resolve(ignore)
    assert pinned.digest == found.digest
    assert list(tmp_path.iterdir()) == []


def test_another_manifest_than_was_pinned_is_refused(
    fake: Any, honest: Any, tmp_path: Path
) -> None:
    with pytest.raises(ImageRefused, match="another than was asked for"):
        source(fake, tmp_path, pin=digest(b"other")).resolve(ignore)


def changed(honest: Any, part: str, answer: Any) -> Callable[[Any], Any]:
    return lambda asked: answer if part in asked.path else honest(asked)


@pytest.mark.parametrize("body", [LAYER[:-1], LAYER + b"x", LAYER[:-1] + b"X", b""])
def test_another_blob_than_was_asked_for_is_refused(
    fake: Any, honest: Any, answers: Any, tmp_path: Path, body: bytes
) -> None:
    fake.answer = changed(honest, digest(LAYER), answers(body=body))
    found = source(fake, tmp_path).resolve(ignore)
    with pytest.raises(ImageRefused):
        fetched(found)
    fake.answer = honest
    assert fetched(found) == LAYER


def test_a_manifest_that_goes_on_is_cut(
    fake: Any, honest: Any, answers: Any, tmp_path: Path
) -> None:
    fake.answer = changed(honest, "/manifests/", answers(body=b" " * (5 * 2**20)))
    with pytest.raises(ImageRefused, match="more than"):
        source(fake, tmp_path).resolve(ignore)


def test_a_manifest_that_is_not_the_digest_beside_it_is_refused(
    fake: Any, honest: Any, answers: Any, tmp_path: Path
) -> None:
    said = {"Docker-Content-Digest": digest(b"other")}
    fake.answer = changed(honest, "/manifests/", answers(body=manifest(), headers=said))
    with pytest.raises(ImageRefused, match="not what the registry says"):
        source(fake, tmp_path).resolve(ignore)


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_what_may_pass_is_tried_again(
    fake: Any, honest: Any, answers: Any, tmp_path: Path, status: int
) -> None:
    def unwilling(asked: Any) -> Any:
        asking_long = answers(status, headers={"Retry-After": "999999999"})
        return asking_long if len(fake.asked) < 4 else honest(asked)

    fake.answer = unwilling
    assert source(fake, tmp_path).resolve(ignore).config == CONFIG
    fake.answer = lambda asked: answers(status)
    with pytest.raises(HostError, match=f"answers {status}"):
        source(fake, tmp_path).resolve(ignore)


def test_a_blob_that_breaks_off_is_fetched_again(
    fake: Any, honest: Any, answers: Any, tmp_path: Path
) -> None:
    def breaking(asked: Any) -> Any:
        first = len(fake.paths(digest(LAYER))) == 1 and digest(LAYER) in asked.path
        return answers(body=LAYER, break_off=True) if first else honest(asked)

    fake.answer = breaking
    ticks: list[int] = []
    found = source(fake, tmp_path).resolve(ignore)
    assert b"".join(found.layers[0].open(ticks.append)) == LAYER
    assert len(fake.paths(digest(LAYER))) == 2
    assert sum(ticks) == len(LAYER)


def test_a_missing_image_is_not_found(fake: Any, tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        source(fake, tmp_path).resolve(ignore)


def test_nobody_there_is_said(fake: Any, tmp_path: Path) -> None:
    fake.close()
    with pytest.raises(HostError, match="does not answer"):
        source(fake, tmp_path).resolve(ignore)


def test_a_redirect_is_followed_without_what_only_the_registry_may_know(
    fake: Any, other: Any, honest: Any, answers: Any, tmp_path: Path
) -> None:
    place = {"Location": f"http://{other.address}/elsewhere?signed=yes"}
    fake.answer = changed(honest, digest(LAYER), answers(307, headers=place))
    other.answer = lambda asked: answers(body=LAYER)
    who = Credentials("me", "password")
    one = source(fake, tmp_path, who=who)
    one._authorization = who.basic
    assert fetched(one.resolve(ignore)) == LAYER
    assert {asked.authorization for asked in fake.asked} == {who.basic}
    assert [asked.authorization for asked in other.asked] == [None]


@pytest.mark.parametrize(
    "location",
    [
        "http://registry.example/blob",
        "http://10.0.0.1/blob",
        "file:///etc/passwd",
        "ftp://127.0.0.1/blob",
        "//registry.example/blob",
        "http://localhost.example/blob",
    ],
)
def test_no_way_leads_into_the_clear_or_to_files(
    fake: Any, honest: Any, answers: Any, tmp_path: Path, location: str
) -> None:
    fake.answer = changed(honest, "/blobs/", answers(302, headers={"Location": location}))
    with pytest.raises(ImageRefused, match="not encrypted"):
        source(fake, tmp_path).resolve(ignore)


def test_a_circle_of_redirects_ends(fake: Any, honest: Any, answers: Any, tmp_path: Path) -> None:
    place = {"Location": "/v2/app/blobs/again"}
    fake.answer = changed(honest, "/blobs/", answers(302, headers=place))
    with pytest.raises(ImageRefused, match="sends us on more than"):
        source(fake, tmp_path).resolve(ignore)


def with_token(fake: Any, answers: Any, honest: Any, realm: str) -> Callable[[Any], Any]:
    ask = {"WWW-Authenticate": f'Bearer realm="{realm}",service="it",scope="repository:app:pull"'}

    def answer(asked: Any) -> Any:
        if asked.path.startswith("/token"):
            return answers(body=b'{"token": "secret-token"}')
        if asked.authorization != "Bearer secret-token":
            return answers(401, headers=ask)
        return honest(asked)

    return answer


def test_a_token_is_fetched_where_the_registry_says(
    fake: Any, honest: Any, answers: Any, tmp_path: Path
) -> None:
    fake.answer = with_token(fake, answers, honest, f"http://{fake.address}/token")
    assert source(fake, tmp_path).resolve(ignore).config == CONFIG
    (asked,) = fake.paths("/token")
    assert asked.authorization is None
    assert "scope=repository%3Aapp%3Apull" in asked.path and "service=it" in asked.path
    who = Credentials("me", "password")
    assert source(fake, tmp_path, who=who).resolve(ignore).config == CONFIG
    assert fake.paths("/token")[1].authorization == who.basic


def test_an_identity_token_is_exchanged(
    fake: Any, honest: Any, answers: Any, tmp_path: Path
) -> None:
    fake.answer = with_token(fake, answers, honest, f"http://{fake.address}/token")
    source(fake, tmp_path, who=Credentials("<token>", "long-lived")).resolve(ignore)
    (asked,) = fake.paths("/token")
    assert b"refresh_token=long-lived" in asked.body and asked.authorization is None


@pytest.mark.parametrize("realm", ["http://registry.example/token", "file:///etc/passwd", ""])
def test_no_token_is_asked_for_in_the_clear(
    fake: Any, honest: Any, answers: Any, tmp_path: Path, realm: str
) -> None:
    fake.answer = with_token(fake, answers, honest, realm)
    with pytest.raises(ImageRefused, match="not encrypted"):
        source(fake, tmp_path, who=Credentials("me", "password")).resolve(ignore)


@pytest.mark.parametrize(
    "token", [b"{}", b"[]", b"junk", b'{"token": "a\\r\\nb"}', b'{"token": 1}']
)
def test_a_token_that_is_none_is_refused(
    fake: Any, honest: Any, answers: Any, tmp_path: Path, token: bytes
) -> None:
    usual = with_token(fake, answers, honest, f"http://{fake.address}/token")
    fake.answer = lambda asked: answers(body=token) if "/token" in asked.path else usual(asked)
    with pytest.raises(ImageRefused, match="token"):
        source(fake, tmp_path).resolve(ignore)


def test_a_password_is_shown_to_a_registry_that_asks_for_one(
    fake: Any, honest: Any, answers: Any, tmp_path: Path
) -> None:
    who = Credentials("me", "password")
    ask = {"WWW-Authenticate": 'Basic realm="it"'}
    fake.answer = lambda asked: (
        honest(asked) if asked.authorization == who.basic else answers(401, headers=ask)
    )
    assert source(fake, tmp_path, who=who).resolve(ignore).config == CONFIG
    with pytest.raises(RequestError, match="log in"):
        source(fake, tmp_path).resolve(ignore)
    with pytest.raises(RequestError, match="log in"):
        source(fake, tmp_path, who=Credentials("me", "wrong")).resolve(ignore)
    assert fake.asked[0].authorization is None


def test_what_docker_login_left_is_used(
    fake: Any, honest: Any, answers: Any, tmp_path: Path
) -> None:
    auth = base64.b64encode(b"me:password").decode()
    (tmp_path / "config.json").write_text(json.dumps({"auths": {fake.address: {"auth": auth}}}))
    fake.answer = lambda asked: (
        honest(asked)
        if asked.authorization == f"Basic {auth}"
        else answers(401, headers={"WWW-Authenticate": "Basic"})
    )
    assert source(fake, tmp_path).resolve(ignore).config == CONFIG


def test_closing_ends_a_wait(fake: Any, honest: Any, answers: Any, tmp_path: Path) -> None:
    fake.answer = lambda asked: answers(503)
    one = source(fake, tmp_path)
    one.close()
    with pytest.raises(HostError):
        one.resolve(ignore)
    assert len(fake.asked) == 1


def test_a_registry_that_cannot_prove_who_it_is_is_not_asked_twice(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    names = ["-subj", "/CN=localhost", "-keyout", str(key), "-out", str(certificate)]
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *names]
    subprocess.run(make, check=True, capture_output=True)
    outside = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    outside.load_cert_chain(certificate, key)
    with socket.create_server(("127.0.0.1", 0)) as server:
        refused: list[str] = []

        def serve() -> None:
            while not refused:
                accepted, _ = server.accept()
                try:
                    outside.wrap_socket(accepted, server_side=True).close()
                except ssl.SSLError as error:
                    refused.append(str(error))
                    accepted.close()

        serving = threading.Thread(target=serve)
        serving.start()
        url = f"https://localhost:{server.getsockname()[1]}/v2/"
        with (
            pytest.raises(HostError, match="cannot prove who it is"),
            request(url, {}, stopping=threading.Event()),
        ):
            raise AssertionError("it was asked")
        serving.join()
    assert len(refused) == 1
