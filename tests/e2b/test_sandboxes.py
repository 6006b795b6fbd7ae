"""The control API, by E2B's Python client: create, find again, list, time, pause, end."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator
from typing import Protocol

import httpx
import pytest
from e2b import Sandbox, SandboxQuery, SandboxState
from e2b.exceptions import (
    AuthenticationException,
    SandboxException,
    SandboxNotFoundException,
)

from .conftest import envd_headers

BOOT_ID = "/proc/sys/kernel/random/boot_id"


class Pointed(Protocol):
    url: str


def test_a_sandbox_is_created_and_killed() -> None:
    sandbox = Sandbox.create()
    assert sandbox.is_running()
    assert sandbox.kill() is True
    assert sandbox.is_running() is False
    assert sandbox.kill() is False


def test_a_wrong_key_creates_nothing() -> None:
    with pytest.raises(AuthenticationException):
        Sandbox.create(api_key="e2b_" + "0" * 52)


def test_info_tells_what_was_asked_for(sandbox: Sandbox) -> None:
    info = sandbox.get_info()
    assert info.sandbox_id == sandbox.sandbox_id
    assert info.template_id == "base"
    assert info.state is SandboxState.RUNNING
    assert 100 < (info.end_at - datetime.datetime.now(datetime.UTC)).total_seconds() <= 120


def test_another_tenants_sandbox_does_not_exist(shared: Sandbox, other_key: str) -> None:
    id = shared.sandbox_id
    with pytest.raises(SandboxNotFoundException):
        Sandbox.connect(id, api_key=other_key)
    with pytest.raises(SandboxNotFoundException):
        Sandbox.set_timeout(id, 5, api_key=other_key)
    with pytest.raises(SandboxNotFoundException):
        Sandbox.pause(id, api_key=other_key)
    with pytest.raises(SandboxNotFoundException):
        Sandbox.get_info(id, api_key=other_key)
    assert Sandbox.kill(id, api_key=other_key) is False
    listed = Sandbox.list(api_key=other_key).next_items()
    assert id not in [each.sandbox_id for each in listed]
    # The allow twin: its owner can do each of these.
    assert shared.is_running()
    assert Sandbox.connect(id).commands.run("echo mine").stdout == "mine\n"


def test_connecting_finds_the_same_sandbox_with_the_same_token(sandbox: Sandbox) -> None:
    sandbox.files.write("left", "here")
    again = Sandbox.connect(sandbox.sandbox_id)
    assert again.files.read("left") == "here"
    assert again._envd_access_token == sandbox._envd_access_token


def test_connecting_never_brings_the_end_nearer(sandbox: Sandbox) -> None:
    before = sandbox.get_info().end_at
    Sandbox.connect(sandbox.sandbox_id, timeout=5)
    assert sandbox.get_info().end_at == before
    Sandbox.connect(sandbox.sandbox_id, timeout=500)
    assert sandbox.get_info().end_at > before


def test_a_timeout_set_later_is_counted_from_then(sandbox: Sandbox) -> None:
    sandbox.set_timeout(30)
    left = sandbox.get_info().end_at - datetime.datetime.now(datetime.UTC)
    assert 25 < left.total_seconds() <= 30


def test_a_sandbox_ends_at_its_timeout() -> None:
    sandbox = Sandbox.create(timeout=1)
    assert sandbox.is_running()
    give_up = time.monotonic() + 10
    while sandbox.is_running() and time.monotonic() < give_up:
        time.sleep(0.05)
    with pytest.raises(SandboxNotFoundException):
        sandbox.get_info()


def test_lists_are_paged_newest_first_and_filtered_by_metadata() -> None:
    mark = {"of this": "tést & more=1"}
    made = [Sandbox.create(metadata=mark) for _ in range(3)]
    try:
        pages, seen = Sandbox.list(query=SandboxQuery(metadata=mark), limit=2), []
        while pages.has_next:
            page = pages.next_items()
            assert len(page) <= 2
            seen += [each.sandbox_id for each in page]
        assert seen == [each.sandbox_id for each in reversed(made)]
        nothing = Sandbox.list(query=SandboxQuery(metadata={"of this": "other"})).next_items()
        assert nothing == []
    finally:
        for each in made:
            each.kill()


def test_a_pause_holds_processes_still_and_a_connect_lets_them_go_on(sandbox: Sandbox) -> None:
    count = "while true; do echo x >> /tmp/count; sleep 0.02; done"
    sandbox.commands.run(count, background=True)
    sandbox.commands.run("until test -s /tmp/count; do sleep 0.01; done")
    boot = sandbox.files.read(BOOT_ID)
    assert sandbox.pause() is True
    assert sandbox.pause() is False
    assert sandbox.is_running() is False
    assert sandbox.get_info().state is SandboxState.PAUSED
    query = SandboxQuery(state=[SandboxState.PAUSED])
    assert sandbox.sandbox_id in [each.sandbox_id for each in Sandbox.list(query).next_items()]
    again = sandbox.connect()
    assert again.files.read(BOOT_ID) == boot
    first = again.commands.run("wc -l < /tmp/count").stdout
    time.sleep(0.2)
    assert int(again.commands.run("wc -l < /tmp/count").stdout) > int(first)


def test_a_pause_without_memory_keeps_the_files(sandbox: Sandbox) -> None:
    sandbox.files.write("kept", "on disk")
    boot = sandbox.files.read(BOOT_ID)
    sandbox.commands.run("sleep 100", background=True)
    assert sandbox.pause(keep_memory=False) is True
    assert sandbox.pause(keep_memory=False) is False
    assert sandbox.get_info().state is SandboxState.PAUSED
    again = Sandbox.connect(sandbox.sandbox_id)
    assert again.sandbox_id == sandbox.sandbox_id
    assert again.files.read("kept") == "on disk"
    assert sandbox.files.read("kept") == "on disk", "the old token still opens it"
    assert again.commands.list() == []
    assert again.files.read(BOOT_ID) != boot


def test_a_sandbox_paused_at_its_timeout_goes_on_by_traffic() -> None:
    lifecycle = {"on_timeout": "pause", "auto_resume": True}
    sandbox = Sandbox.create(timeout=1, lifecycle=lifecycle)
    try:
        give_up = time.monotonic() + 10
        while sandbox.get_info().state is SandboxState.RUNNING and time.monotonic() < give_up:
            time.sleep(0.05)
        assert sandbox.get_info().state is SandboxState.PAUSED
        assert sandbox.commands.run("echo back").stdout == "back\n"
        assert sandbox.get_info().state is SandboxState.RUNNING
    finally:
        sandbox.kill()


def test_a_sandbox_that_is_to_forget_its_memory_at_its_timeout_does() -> None:
    lifecycle = {"on_timeout": {"action": "pause", "keep_memory": False}}
    sandbox = Sandbox.create(timeout=300, lifecycle=lifecycle)
    try:
        sandbox.files.write("kept", "on disk")
        boot = sandbox.files.read(BOOT_ID)
        sandbox.set_timeout(0)
        assert sandbox.get_info().state is SandboxState.PAUSED
        again = sandbox.connect()
        assert again.files.read("kept") == "on disk"
        assert again.files.read(BOOT_ID) != boot
    finally:
        sandbox.kill()


@pytest.mark.parametrize(
    ("port", "path", "headers"),
    [
        (49983, "/envs", {}),
        (49983, "/envs", {"x-access-token": "0" * 64}),
        (49983, "/files?path=/etc/passwd", {}),
        (49983, "/health", {}),
        (49999, "/execute", {}),
        (49999, "/contexts", {"x-access-token": "0" * 64}),
        (8000, "/", {}),
        (8000, "/", {"e2b-traffic-access-token": "0" * 64}),
    ],
)
def test_whoever_may_not_come_in_does_not_wake_it(
    held: Sandbox, server: Pointed, port: int, path: str, headers: dict[str, str]
) -> None:
    address = {"e2b-sandbox-id": held.sandbox_id, "e2b-sandbox-port": str(port)}
    answer = httpx.get(f"{server.url}{path}", headers={**address, **headers}, timeout=60)
    assert answer.status_code == 502
    assert held.get_info().state is SandboxState.PAUSED


def test_whoever_may_come_in_wakes_it(held: Sandbox, server: Pointed) -> None:
    answer = httpx.get(f"{server.url}/envs", headers=envd_headers(held), timeout=60)
    assert answer.status_code == 200
    assert held.get_info().state is SandboxState.RUNNING


@pytest.fixture(scope="module")
def held() -> Iterator[Sandbox]:
    """A sandbox that is paused, and goes on when somebody comes who may."""
    lifecycle = {"on_timeout": "pause", "auto_resume": True}
    network = {"allow_public_traffic": False}
    one = Sandbox.create(timeout=300, lifecycle=lifecycle, network=network)
    one.pause()
    yield one
    one.kill()


def test_a_paused_sandbox_can_be_killed() -> None:
    sandbox = Sandbox.create()
    sandbox.pause()
    assert sandbox.kill() is True
    with pytest.raises(SandboxNotFoundException):
        sandbox.get_info()


def test_metrics_tell_what_is_used(shared: Sandbox) -> None:
    (sample,) = shared.get_metrics()
    assert sample.mem_used > 0
    assert sample.cpu_count >= 1
    before = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=2)
    assert shared.get_metrics(start=before, end=before + datetime.timedelta(hours=1)) == []


def test_a_snapshot_starts_others_and_is_gone_when_deleted(sandbox: Sandbox) -> None:
    sandbox.files.write("seed", "1")
    snapshot = sandbox.create_snapshot()
    sandbox.files.write("seed", "2")
    listed = sandbox.list_snapshots().next_items()
    assert [each.snapshot_id for each in listed] == [snapshot.snapshot_id]
    other = Sandbox.create(snapshot.snapshot_id)
    try:
        assert other.files.read("seed") == "1"
    finally:
        other.kill()
    assert Sandbox.delete_snapshot(snapshot.snapshot_id) is True
    assert Sandbox.delete_snapshot(snapshot.snapshot_id) is False
    with pytest.raises(SandboxException):
        Sandbox.create(snapshot.snapshot_id)


def test_another_tenants_snapshot_cannot_be_started(sandbox: Sandbox, other_key: str) -> None:
    snapshot = sandbox.create_snapshot()
    with pytest.raises(SandboxException, match="not found"):
        Sandbox.create(snapshot.snapshot_id, api_key=other_key)
    assert Sandbox.delete_snapshot(snapshot.snapshot_id, api_key=other_key) is False
    assert Sandbox.delete_snapshot(snapshot.snapshot_id) is True


def test_forks_begin_as_the_source_is_and_go_their_own_ways(sandbox: Sandbox) -> None:
    sandbox.files.write("shared", "before")
    one, two = sandbox.fork(count=2)
    try:
        one.files.write("shared", "one")
        assert two.files.read("shared") == "before"
        assert sandbox.files.read("shared") == "before"
        assert len({one.sandbox_id, two.sandbox_id, sandbox.sandbox_id}) == 3
    finally:
        one.kill()
        two.kill()


def test_without_a_network_nothing_is_reached(shared: Sandbox) -> None:
    script = "import socket; socket.create_connection(('1.1.1.1', 53), 2)"
    result = shared.commands.run(f'python3 -c "{script}" 2>&1 | tail -1')
    assert "Network is unreachable" in result.stdout


@pytest.mark.parametrize("ask", [{"template": "nowhere"}, {"mcp": {"x": {}}}])
def test_what_is_not_there_is_refused_in_words(ask: dict[str, object]) -> None:
    with pytest.raises(SandboxException, match=r"not found|not supported"):
        Sandbox.create(**ask)
