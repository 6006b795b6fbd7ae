"""What the gateway is told of a policy, as text: how it is written, and how it is read."""

from __future__ import annotations

import functools
import json

from cloister.policy import Egress, Policy, SecretBinding


@functools.lru_cache(maxsize=64)
def write_terms(egress: Egress | None, secrets: tuple[SecretBinding, ...]) -> str:
    """Return what the gateway is told: the same text for every sandbox of a policy."""
    tables = Policy(egress=egress, secrets=secrets).as_dict()
    return json.dumps({"egress": tables["egress"], "secrets": tables.get("secrets", {})})


@functools.lru_cache(maxsize=64)
def read_terms(terms: str) -> Policy:
    """Return what a sandbox may reach. Many are told the same."""
    tables = json.loads(terms)
    return Policy(egress=Egress.from_dict(tables["egress"]), secrets=tables["secrets"])
