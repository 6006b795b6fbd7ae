"""Sandboxes as the control API shows them."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import Any

import msgspec

from cloister.e2b.asleep import Sleeper
from cloister.e2b.box import Box, Terms, public_id
from cloister.e2b.boxes import terms_of
from cloister.e2b.control import Visit
from cloister.e2b.derived import ACCESS
from cloister.e2b.envd import VERSION
from cloister.e2b.measured import cpu_count
from cloister.model import Limits
from cloister.policy import Policy, read_policy
from cloister.server.resident import Resident
from cloister.server.spec import SandboxSpec

_FAR_S = 365 * 24 * 3600.0


def connection(visit: Visit, resident: Resident) -> dict[str, Any]:
    """Return what a client needs to use a sandbox, its token among it."""
    box = visit.desk.boxes.of(resident)
    return {
        "templateID": box.terms.template,
        "sandboxID": box.id,
        "clientID": "cloister",
        "alias": box.terms.template,
        "envdVersion": VERSION,
        "envdAccessToken": box.token_for(visit.caller.token),
        "trafficAccessToken": box.traffic_token_for(visit.caller.token),
        "domain": visit.domain,
    }


def listed(visit: Visit, resident: Resident) -> dict[str, Any]:
    """Return a live sandbox as lists show it."""
    box = visit.desk.boxes.of(resident)
    sandbox = resident.sandbox
    ends_at = resident.deadline_at or resident.created_at + _FAR_S
    return {
        **_listed(box.id, box.terms, sandbox.policy.limits, dict(resident.metadata)),
        "cpuCount": cpu_count(sandbox),
        "startedAt": when(resident.created_at),
        "endAt": when(ends_at),
        "state": "paused" if sandbox.is_paused else "running",
        "volumeMounts": [
            {"name": volume.name, "path": volume.target} for volume in sandbox.policy.volumes
        ],
    }


def detailed(visit: Visit, resident: Resident) -> dict[str, Any]:
    """Return all that is told of a live sandbox."""
    box = visit.desk.boxes.of(resident)
    return {**listed(visit, resident), **_details(visit, box), "pauseMode": "full"}


def listed_asleep(sleeper: Sleeper) -> dict[str, Any]:
    """Return a sandbox that is paused without its memory, as lists show it."""
    row = sleeper.row
    spec = msgspec.json.decode(row.spec, type=SandboxSpec)
    policy = Policy() if spec.policy is None else read_policy(spec.policy, "spec")
    shown = _listed(public_id(row.id), terms_of(dict(row.notes)), policy.limits, dict(row.metadata))
    at = row.ended_at or time.time()
    return {
        **shown,
        "cpuCount": max(1, round(policy.limits.cpus or 1)),
        "startedAt": when(row.created_at),
        "endAt": when(at),
        "state": "paused",
    }


def detailed_asleep(visit: Visit, sleeper: Sleeper) -> dict[str, Any]:
    """Return all that is told of a sandbox that is paused without its memory."""
    id = public_id(sleeper.row.id)
    terms = terms_of(dict(sleeper.row.notes))
    token = visit.desk.boxes.derived.make(visit.caller.token, id, ACCESS)
    shown = _further(terms, token if _may_be_told(visit) else None, visit.domain)
    return {**listed_asleep(sleeper), **shown, "pauseMode": "filesystem"}


def when(time_at: float) -> str:
    """Return a time as RFC 3339 writes it."""
    return datetime.fromtimestamp(time_at, UTC).isoformat(timespec="milliseconds")


def _listed(id: str, terms: Terms, limits: Limits, metadata: dict[str, str]) -> dict[str, Any]:
    return {
        "templateID": terms.template,
        "alias": terms.template,
        "sandboxID": id,
        "clientID": "cloister",
        "memoryMB": (limits.memory or 0) // 2**20,
        "diskSizeMB": (limits.disk or 0) // 2**20,
        "envdVersion": VERSION,
        "metadata": metadata,
    }


def _details(visit: Visit, box: Box) -> dict[str, Any]:
    token = box.token_for(visit.caller.token) if _may_be_told(visit) else None
    return _further(box.terms, token, visit.domain)


def _may_be_told(visit: Visit) -> bool:
    # It runs programs and writes files, which whoever may only look may not.
    return visit.caller.allows("sandboxes:write")


def _further(terms: Terms, token: str | None, domain: str) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "envdAccessToken": token,
        "domain": domain,
        "allowInternetAccess": terms.internet,
        "lifecycle": {
            "autoResume": terms.is_resumed_by_traffic,
            "onTimeout": "pause" if terms.is_paused_at_end else "kill",
        },
    }
    if terms.network is not None:
        shown["network"] = json.loads(terms.network)
    return shown
