"""What was made from a key ends with it; what another key of its tenant was told goes on."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from e2b import Sandbox

TEXT = b"of the sandbox"


def revoke(server: Any, key: str) -> None:
    """Revoke a key, whose id is in it."""
    words = ["token", "revoke", key.removeprefix("e2b_")[:12], "--config", str(server.config)]
    done = subprocess.run(
        [sys.executable, "-m", "cloister", *words],
        env=server.environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def ends(status: Callable[[], int]) -> bool:
    """Wait until something is refused that was not."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        if status() == 401:
            return True
    return False


def test_what_a_key_was_told_of_a_sandbox_ends_with_the_key(
    server: Any, key: str, shared: Sandbox
) -> None:
    lent = server.key("acme")
    theirs = Sandbox.connect(shared.sandbox_id, api_key=lent)
    shared.files.write("lent", TEXT)
    urls = [each.download_url("lent") for each in (theirs, shared)]
    tokens = [each._envd_access_token for each in (theirs, shared)]
    assert tokens[0] != tokens[1]

    def with_token(token: str | None) -> int:
        headers = {
            "E2b-Sandbox-Id": shared.sandbox_id,
            "E2b-Sandbox-Port": "49983",
            "X-Access-Token": token or "",
        }
        place = f"{server.url}/files?path=/home/user/lent"
        return httpx.get(place, headers=headers, timeout=30).status_code

    assert [with_token(each) for each in tokens] == [200, 200]
    assert [httpx.get(each, timeout=30).content for each in urls] == [TEXT, TEXT]
    revoke(server, lent)
    assert ends(lambda: with_token(tokens[0]))
    assert httpx.get(urls[0], timeout=30).status_code == 401
    assert with_token(tokens[1]) == 200
    assert httpx.get(urls[1], timeout=30).content == TEXT


def test_a_program_that_is_listened_to_is_not_heard_after_the_key_ended(
    server: Any, shared: Sandbox
) -> None:
    lent = server.key("acme")
    theirs = Sandbox.connect(shared.sandbox_id, api_key=lent)
    running = theirs.commands.run("while sleep 0.1; do echo more; done", background=True, timeout=0)
    revoke(server, lent)
    with pytest.raises(Exception, match=r".") as broken:
        running.wait()
    assert "exit code" not in str(broken.value)
    assert shared.commands.run("echo still").stdout == "still\n"
    shared.commands.kill(running.pid)


def test_what_opens_a_volume_and_what_sends_an_archive_ends_with_the_key(
    server: Any, key: str
) -> None:
    lent = server.key("acme")
    asked = {each: {"X-API-Key": each} for each in (lent, key)}
    volumes = f"{server.url}/volumes"
    assert httpx.post(volumes, json={"name": "lent"}, headers=asked[key], timeout=30).is_success
    tokens = [
        httpx.get(f"{volumes}/lent", headers=asked[each], timeout=30).json()["token"]
        for each in (lent, key)
    ]
    files = f"{server.url}/templates/any/files/"
    links = [
        httpx.get(files + digit * 64, headers=asked[each], timeout=30).json()["url"]
        for each, digit in ((lent, "a"), (key, "b"))
    ]

    def look(token: str) -> int:
        place = f"{server.url}/volumecontent/lent/path?path=/"
        headers = {"Authorization": f"Bearer {token}"}
        return httpx.get(place, headers=headers, timeout=30).status_code

    assert [look(each) for each in tokens] == [200, 200]
    revoke(server, lent)
    assert ends(lambda: look(tokens[0]))
    assert look(tokens[1]) == 200
    assert [httpx.put(each, content=b"x", timeout=30).status_code for each in links] == [401, 200]
    assert httpx.delete(f"{volumes}/lent", headers=asked[key], timeout=30).is_success
