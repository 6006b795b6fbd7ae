"""What a request for a new sandbox comes to: a template, a snapshot, or one of our own two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cloister.e2b import fields
from cloister.e2b.box import Terms
from cloister.e2b.interpreter.library import installed_library
from cloister.e2b.network_rules import NetworkRules, read_network
from cloister.e2b.refusal import CallRefused
from cloister.e2b.tags import plain_reference
from cloister.errors import NotFound, RequestError
from cloister.model import UNLIMITED, Limits, quote
from cloister.node import open_store
from cloister.policy import HostRoot, Policy
from cloister.server.fleet import Fleet
from cloister.server.spec import SandboxSpec, require_tenants_egress
from cloister.server.tokens import Caller
from cloister.store import Snapshot

BASE = "base"
INTERPRETER = "code-interpreter-v1"
OWN_TEMPLATES = (BASE, INTERPRETER)
DEFAULT_TIMEOUT_S = 300
_UNCOUNTED: dict[str, Any] = {"disk": UNLIMITED}
_NOT_HERE = {
    "mcp": "the MCP gateway is not supported; use `cloister mcp`",
    "iam": "identity tokens are not supported",
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be started: from a snapshot where there is one, else as the spec says."""

    spec: SandboxSpec
    terms: Terms
    snapshot: Snapshot | None
    is_own: bool


async def read_wanted(fleet: Fleet, caller: Caller, body: Mapping[str, Any]) -> Wanted:
    """Return what the body of a create asks for, or say why it cannot be had."""
    for name, why in _NOT_HERE.items():
        if body.get(name):
            raise CallRefused("unimplemented", why)
    network = read_network(body, is_open=fleet.settings.open_internet)
    if network.egress is not None:
        # Here, and not of the policy of our own templates, which nobody looks through.
        require_tenants_egress(network.egress, caller, fleet.settings)
    terms = _terms(body, network)
    base = plain_reference(terms.template)
    spec = SandboxSpec(
        env=fields.text_table(body, "envVars") or None,
        metadata=fields.text_table(body, "metadata"),
        timeout=timeout_in(body),
        volumes=_volumes(body) or None,
        egress=None if network.egress is None else network.egress.as_dict(),
    )
    template = await _has_template(fleet, caller, base)
    if template:
        spec.template = base
        return Wanted(spec, terms, None, is_own=False)
    if base in OWN_TEMPLATES:
        own = await _own(fleet, spec, network)
        if terms.forgets_memory and (own.policy or {}).get("storage") == "memory":
            raise CallRefused(
                "failed_precondition",
                "autoPauseMemory is false, and files are in memory here; the server's owner can "
                "give it disks (`cloister setup storage`)",
            )
        return Wanted(own, terms, None, is_own=True)
    try:
        snapshot = await fleet.shelves.snapshot(caller.tenant, base)
    except (NotFound, RequestError):
        raise CallRefused("not_found", f"template {quote(terms.template)} not found") from None
    return Wanted(spec, terms, snapshot, is_own=False)


def _terms(body: Mapping[str, Any], network: NetworkRules) -> Terms:
    pauses = fields.flag(body, "autoPause")
    resumes = fields.flag(fields.table(body, "autoResume"), "enabled")
    forgets = fields.optional_flag(body, "autoPauseMemory") is False
    if forgets and (resumes or not pauses):
        raise CallRefused(
            "invalid_argument", "autoPauseMemory is false; that needs autoPause and no autoResume"
        )
    return Terms(
        template=fields.text(body, "templateID") or BASE,
        is_paused_at_end=pauses,
        forgets_memory=forgets,
        is_resumed_by_traffic=resumes,
        is_open_to_traffic=network.is_open_to_traffic,
        masked_host=network.masked_host,
        network=network.asked,
        internet=network.internet,
    )


def timeout_in(body: Mapping[str, Any], default_s: int = DEFAULT_TIMEOUT_S) -> float:
    """Return the seconds that a request gives a sandbox."""
    timeout_s = fields.integer(body, "timeout", default_s)
    if timeout_s <= 0:
        raise CallRefused("invalid_argument", f"timeout is {timeout_s}; it must be above 0")
    return float(timeout_s)


def _volumes(body: Mapping[str, Any]) -> list[str]:
    mounts = body.get("volumeMounts") or []
    if not isinstance(mounts, list) or not all(isinstance(each, dict) for each in mounts):
        raise CallRefused("invalid_argument", "volumeMounts is not a list of objects")
    return [f"{fields.text(each, 'name')}:{fields.text(each, 'path')}" for each in mounts]


async def _has_template(fleet: Fleet, caller: Caller, reference: str) -> bool:
    try:
        await fleet.shelves.template(caller.tenant, reference)
    except (NotFound, RequestError):
        return False
    return True


async def _own(fleet: Fleet, spec: SandboxSpec, network: NetworkRules) -> SandboxSpec:
    """Fill in what the two templates are that need not be built: this host's own programs."""
    library = installed_library()
    store = await open_store()
    # A snapshot needs a disk; and a disk a driver that can stop a writer, or one who does not mind.
    is_counted = store.driver.holds_quota
    is_on_disk = is_counted or fleet.settings.unlimited_disk
    limits = Limits(lifetime=UNLIMITED, **({} if is_counted or not is_on_disk else _UNCOUNTED))
    policy = Policy(
        profile="root",
        user="user",
        root=HostRoot(() if library is None else (str(library),)),
        storage="disk" if is_on_disk else "memory",
        env=spec.env,
        limits=limits,
        # With a way out even if nothing may be reached yet: it cannot be made later.
        egress=network.egress if network.is_asked_for else None,
    )
    spec.policy = policy.as_dict()
    spec.env = spec.egress = None
    return spec
