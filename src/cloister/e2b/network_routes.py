"""The control API of a sandbox's network: replaces what may be reached while it runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from starlette.responses import Response

from cloister.e2b.answers import empty_answer, read_json
from cloister.e2b.boxes import notes_of
from cloister.e2b.control import Route, Visit, route
from cloister.e2b.network_rules import read_network
from cloister.e2b.pausing import awake
from cloister.e2b.refusal import CallRefused
from cloister.policy import Egress
from cloister.server.spec import require_may_change_egress, require_tenants_egress

# What of the network is about reaching the sandbox, and stays what it was.
_INWARD = ("allowPublicTraffic", "maskRequestHost")


async def change(visit: Visit) -> Response:
    """Replace what a sandbox may reach; what is not said is as it is for a new one."""
    visit.require("sandboxes:write")
    body = await read_json(visit.request)
    resident = awake(visit)
    require_may_change_egress(resident.sandbox.policy, visit.caller)
    fleet = visit.desk.house.fleet
    box = visit.desk.boxes.of(resident)
    network = {key: value for key, value in body.items() if key != "allow_internet_access"}
    rules = read_network({**body, "network": network}, is_open=fleet.settings.open_internet)
    egress = rules.egress or Egress()
    require_tenants_egress(egress, visit.caller, fleet.settings)
    if resident.sandbox.policy.egress is not None:
        await resident.sandbox.update_egress(egress)
    elif egress != Egress():
        raise CallRefused(
            "failed_precondition",
            "the sandbox was created without a network, and none can be added; create it with "
            'network={"deny_out": ["0.0.0.0/0"]}, and it can be changed later',
        )
    box.terms = replace(
        box.terms, network=_remembered(box.terms.network, network), internet=rules.internet
    )
    resident.notes.update(notes_of(box.terms))
    await fleet.records.change_sandbox(resident.id, notes=dict(resident.notes))
    return empty_answer()


def _remembered(before: str | None, network: Mapping[str, Any]) -> str | None:
    old = {} if before is None else json.loads(before)
    inward = {key: old[key] for key in _INWARD if key in old}
    whole = {**inward, **{key: value for key, value in network.items() if key not in _INWARD}}
    return json.dumps(whole) if whole else None


NETWORK_ROUTES: list[Route] = [route("PUT", "/sandboxes/{}/network", change)]
