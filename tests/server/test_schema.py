"""Requests that schemathesis makes up from the API's own description, valid and broken."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS as KNOWN_CHECKS
from schemathesis.checks import load_all_checks
from schemathesis.core.failures import FailureGroup

from cloister.server.openapi import describe_api
from cloister.server.routes import conversations, endpoints

from .conftest import Server, created

load_all_checks()
CHECKS = KNOWN_CHECKS.get_by_names(
    [
        "status_code_conformance",
        "content_type_conformance",
        "response_schema_conformance",
    ]
)
SCHEMA = schemathesis.openapi.from_dict(
    describe_api(endpoints(), conversations(), version("cloister"))
)
OPERATIONS = [found.ok() for found in SCHEMA.get_all_operations()]


@pytest.fixture
def fuzzed(server: Server) -> Iterator[httpx.Client]:
    """A tenant of its own, of whom nothing is left afterwards."""
    client = server.client(server.token("fuzzed"))
    yield client
    for each in client.get("/v1/sandboxes", params={"limit": 1000}).json()["sandboxes"]:
        client.delete(f"/v1/sandboxes/{each['id']}")


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.name.lower())
def test_every_answer_to_made_up_requests_is_one_that_the_api_describes(
    server: Server, fuzzed: httpx.Client, mode: GenerationMode
) -> None:
    # The same ones each time: what is new is looked for where there is time for it.
    assert ask_everything(server, fuzzed, mode, count=2, number=1) == []


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.name.lower())
def test_every_answer_to_many_made_up_requests_is_one_that_the_api_describes(
    server: Server, fuzzed: httpx.Client, mode: GenerationMode, number: int
) -> None:
    assert ask_everything(server, fuzzed, mode, count=100, number=100 + number) == []


def ask_everything(
    server: Server, client: httpx.Client, mode: GenerationMode, *, count: int, number: int
) -> list[str]:
    """Ask `count` made-up requests of each operation, and return what was wrong of the answers."""
    wrong: list[str] = []
    live = created(client, storage="disk")

    def ask(case: Any) -> None:
        nonlocal live
        if "id" in case.path_parameters:
            if client.get(f"/v1/sandboxes/{live}/end").json()["ended"]:
                live = created(client, storage="disk")
            case.path_parameters["id"] = live
        # One that is made up would be refused before anything else is looked at.
        case.headers.pop("Authorization", None)
        case.headers["authorization"] = client.headers["authorization"]
        answer = case.call(base_url=server.url, timeout=60)
        try:
            case.validate_response(answer, checks=CHECKS)
            # That something is not supported here, or that a server inside is no good, is said so.
            assert answer.status_code != 500, answer.text
        except (AssertionError, FailureGroup) as failed:
            said = "; ".join(str(each) for each in getattr(failed, "exceptions", [failed]))
            wrong.append(f"{case.operation.label}: {said}\n{case.as_curl_command()[:1000]}")

    for operation in OPERATIONS:
        # What the last one started would leave no room for one that is needed.
        for each in client.get("/v1/sandboxes", params={"state": "live"}).json()["sandboxes"]:
            if each["id"] != live:
                client.delete(f"/v1/sandboxes/{each['id']}")
        chosen = settings(
            max_examples=count,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        chosen(seed(number)(given(case=operation.as_strategy(generation_mode=mode))(ask)))()
    return wrong
