"""Volumes and their content, by E2B's Python client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from e2b import Sandbox, Volume
from e2b.exceptions import SandboxException


@pytest.fixture
def volume(server: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Volume]:
    monkeypatch.setenv("E2B_VOLUME_API_URL", server.url)
    made = Volume.create("cache")
    yield made
    Volume.destroy("cache")


def test_what_is_written_to_a_volume_is_seen_by_every_sandbox_with_it(volume: Volume) -> None:
    volume.write_file("/given", "from outside")
    first = Sandbox.create(volume_mounts={"/cache": "cache"})
    second = Sandbox.create(volume_mounts={"/cache": "cache"})
    try:
        assert first.files.read("/cache/given") == "from outside"
        first.files.write("/cache/made", "inside")
        assert second.files.read("/cache/made") == "inside"
        assert volume.read_file("/made") == "inside"
    finally:
        first.kill()
        second.kill()
    assert volume.read_file("/made") == "inside"


def test_the_content_of_a_volume_is_read_and_changed(volume: Volume) -> None:
    volume.make_dir("/a/b", force=True)
    stat = volume.write_file("/a/b/file", b"12345", mode=0o600)
    assert (stat.name, stat.size, stat.mode, stat.uid) == ("file", 5, 0o600, 1000)
    assert [each.path for each in volume.list("/", depth=3)] == ["/a", "/a/b", "/a/b/file"]
    assert volume.update_metadata("/a/b/file", uid=0, mode=0o644).uid == 0
    assert volume.get_info("/a/b/file").mode == 0o644
    assert volume.exists("/a/b/file")
    volume.remove("/a")
    assert not volume.exists("/a/b/file")


def test_volumes_are_their_tenants_alone(volume: Volume, server: Any, other_key: str) -> None:
    assert [each.volume_id for each in Volume.list()] == ["cache"]
    assert Volume.list(api_key=other_key) == []
    assert Volume.destroy("cache", api_key=other_key) is False
    with pytest.raises(SandboxException):
        Sandbox.create(volume_mounts={"/cache": "cache"}, api_key=other_key)
    content = f"{server.url}/volumecontent/cache/path?path=/"
    for token in ("x", "rival." + "0" * 64, "acme." + "0" * 64, "../x.y"):
        answer = httpx.get(content, headers={"Authorization": f"Bearer {token}"})
        assert answer.status_code == 401
    own = {"Authorization": f"Bearer {volume.token}"}
    assert httpx.get(content, headers=own).status_code == 200
    up = httpx.get(f"{server.url}/volumecontent/cache/file?path=../../etc/passwd", headers=own)
    assert up.status_code == 404
