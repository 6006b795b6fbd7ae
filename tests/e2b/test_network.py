"""What a sandbox may reach, by E2B's client: addresses, an open Internet, and changes later."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2b import Sandbox
from e2b.exceptions import SandboxException

from ..egress.far_away import OTHER_ADDRESS, far_away

ROOT = Path(__file__).parents[2]
ALL = "0.0.0.0/0"


@pytest.fixture(scope="module")
def away() -> Iterator[str]:
    with far_away() as address:
        yield address


@pytest.fixture
def open_server(server: Any) -> Iterator[dict[str, str]]:
    """Another server, whose owner has opened the Internet."""
    directory = Path(tempfile.mkdtemp(prefix="e2b-", dir=ROOT / ".venv"))
    one = type(server)(directory)
    with one.config.open("r+") as file:
        file.write("open_internet = true\n" + one.config.read_text())
    one.start()
    key = one.key("acme")
    yield {"api_key": key, "api_url": one.url, "sandbox_url": one.url}
    assert one.stop() == 0, one.said()
    shutil.rmtree(directory, ignore_errors=True)


def reaches(sandbox: Sandbox, *addresses: str) -> list[bool]:
    """Whether each address answers from inside."""
    script = "\n".join(
        f"curl -s -o /dev/null --max-time 20 http://{each}/ && echo True || echo False"
        for each in addresses
    )
    return [line == "True" for line in sandbox.commands.run(script).stdout.split()]


def test_addresses_are_reached_that_were_allowed_at_creation_or_later(away: str) -> None:
    sandbox = Sandbox.create(network={"deny_out": [ALL], "allow_out": [away]})
    try:
        assert reaches(sandbox, away, OTHER_ADDRESS) == [True, False]
        sandbox.update_network({"deny_out": [ALL], "allow_out": [f"{OTHER_ADDRESS}/32"]})
        assert reaches(sandbox, away, OTHER_ADDRESS) == [False, True]
        network = sandbox.get_info().network
        assert network is not None
        assert network["allow_out"] == [f"{OTHER_ADDRESS}/32"]
        # The Internet is not open on this server, and so nothing is where nothing is named.
        sandbox.update_network({})
        assert reaches(sandbox, away, OTHER_ADDRESS) == [False, False]
    finally:
        sandbox.kill()


def test_where_the_owner_opened_the_internet_all_is_reached_but_what_is_denied(
    away: str, open_server: dict[str, str]
) -> None:
    sandbox = Sandbox.create(**open_server)
    assert reaches(sandbox, away, OTHER_ADDRESS, "169.254.169.254") == [True, True, False]
    sandbox.update_network({"deny_out": [away]})
    assert reaches(sandbox, away, OTHER_ADDRESS) == [False, True]
    sandbox.update_network({"deny_out": [f"{away}/31"], "allow_out": [away]})
    sandbox.pause(keep_memory=False)
    sandbox.connect()
    assert reaches(sandbox, away, "7.7.7.6") == [True, False]
    sandbox.kill()
    closed = Sandbox.create(allow_internet_access=False, **open_server)
    assert reaches(closed, away) == [False]
    closed.kill()


@pytest.mark.parametrize(
    ("network", "words"),
    [
        ({"allow_out": ["example.com"]}, "denyOut must have"),
        ({"allow_out": [ALL], "deny_out": [ALL]}, "open_internet"),
        ({"deny_out": ["10.0.0.0/8"]}, "open_internet"),
        ({"deny_out": [ALL], "allow_out": ["2001:db8::1"]}, "no IPv6"),
        ({"deny_out": [ALL], "allow_out": ["*"]}, "host"),
    ],
)
def test_a_network_that_cannot_be_held_is_refused(
    network: dict[str, list[str]], words: str
) -> None:
    with pytest.raises(SandboxException, match=words):
        Sandbox.create(network=network)


def test_a_sandbox_without_a_network_is_given_none_later(shared: Sandbox) -> None:
    with pytest.raises(SandboxException, match="created without a network"):
        shared.update_network({"allow_out": ["example.com"], "deny_out": [ALL]})
    shared.update_network({"deny_out": [ALL]})


def test_the_internet_in_halves_is_no_less_than_all_of_it(server: Any, key: str) -> None:
    halves = {"allowOut": ["0.0.0.0/1", "128.0.0.0/1"], "denyOut": [ALL]}
    few = {"allowOut": ["203.0.113.0/24"], "denyOut": [ALL]}
    with httpx.Client(base_url=server.url, headers={"x-api-key": key}, timeout=60) as client:
        refused = client.post("/sandboxes", json={"templateID": "base", "network": halves})
        assert (refused.status_code, "open_internet" in refused.text) == (403, True)
        made = client.post("/sandboxes", json={"templateID": "base", "network": few})
        assert made.status_code == 201
        place = f"/sandboxes/{made.json()['sandboxID']}"
        assert client.put(f"{place}/network", json=halves).status_code == 403
        assert client.put(f"{place}/network", json=few).status_code == 204
        assert client.delete(place).status_code == 204


def test_a_key_for_one_sandbox_does_not_widen_its_own_way_out(server: Any, key: str) -> None:
    closed, wider = {"denyOut": [ALL]}, {"allowOut": ["far.example"], "denyOut": [ALL]}
    with httpx.Client(base_url=server.url, headers={"x-api-key": key}, timeout=60) as client:
        made = client.post("/sandboxes", json={"templateID": "base", "network": closed}).json()
        place, id = f"/sandboxes/{made['sandboxID']}", f"sb_{made['sandboxID'][1:]}"
        inside = {"x-api-key": server.key("acme", "--sandbox", id)}
        assert client.get(place, headers=inside).status_code == 200
        assert client.put(f"{place}/network", json=wider, headers=inside).status_code == 403
        own = {"allow": ["far.example"]}
        answer = client.put(f"/v1/sandboxes/{id}/egress", json=own, headers=inside)
        assert answer.status_code == 403
        assert client.get(f"/v1/sandboxes/{id}").json()["policy"]["egress"]["allow"] == []
        assert client.put(f"/v1/sandboxes/{id}/egress", json=own).status_code == 200
        assert client.delete(place).status_code == 204
