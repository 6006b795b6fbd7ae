"""What a tenant may say of its own sandbox, where nothing needs to be started to see it."""

from __future__ import annotations

from typing import Any

import pytest

from cloister.errors import ScopeMissing
from cloister.model import Mount
from cloister.policy import TABLE_VARIABLE, Policy, read_policy
from cloister.server.routes.sandboxes import shown_policy
from cloister.server.spec import SandboxSpec, require_may_change_egress, require_wall
from cloister.server.tenancy import OWNER, TenantName
from cloister.server.tokens import OWNER_CALLER, SCOPES, USUAL_SCOPES, Caller, Role

ACME = Caller(TenantName("acme"), Role.TENANT, frozenset(SCOPES), "t")


@pytest.mark.parametrize(
    "spec", [SandboxSpec(runtime="namespace"), SandboxSpec(policy={"runtime": "namespace"})]
)
def test_a_tenant_names_no_weaker_wall_than_the_owner_has(
    monkeypatch: pytest.MonkeyPatch, spec: SandboxSpec
) -> None:
    policy = Policy(runtime="namespace")
    require_wall(spec, policy, ACME)
    monkeypatch.setenv(TABLE_VARIABLE, "internal=gvisor")
    with pytest.raises(ScopeMissing, match="weaker"):
        require_wall(spec, policy, ACME)
    require_wall(spec, policy, OWNER_CALLER)
    require_wall(SandboxSpec(runtime="microvm"), Policy(runtime="microvm"), ACME)
    require_wall(SandboxSpec(), Policy(), ACME)


def test_what_a_template_shows_of_the_host_is_told_to_the_owner_alone() -> None:
    policy = Policy(mounts=[Mount("/srv/data", "/data", "read")])
    assert "/srv/data" in str(shown_policy(policy, OWNER))
    assert "/srv/data" not in str(shown_policy(policy, ACME.tenant))


@pytest.mark.parametrize(
    "asks",
    [
        {"egress": {"rule": [{"name": "r", "host": "a.example", "effect": "ask"}]}},
        {"egress": {"allow": ["a.example"], "budget": {"requests": 1, "over": "ask"}}},
    ],
)
def test_who_answers_no_questions_does_not_take_them_away(asks: dict[str, Any]) -> None:
    usual = Caller(TenantName("acme"), Role.TENANT, frozenset(USUAL_SCOPES), "token")
    answering = Caller(TenantName("acme"), Role.TENANT, frozenset(SCOPES), "token")
    policy = read_policy(asks, "policy")
    with pytest.raises(ScopeMissing, match="approvals:write"):
        require_may_change_egress(policy, usual)
    require_may_change_egress(policy, answering)
    require_may_change_egress(read_policy({"egress": {"allow": ["a.example"]}}, "policy"), usual)


def test_a_tenant_does_not_change_the_way_out_of_what_uses_the_owners_secrets() -> None:
    def lending(source: str) -> Policy:
        secret = {"from": source, "hosts": ["a.example"], "header": "authorization"}
        return read_policy({"egress": {"allow": ["a.example"]}, "secrets": {"T": secret}}, "policy")

    with pytest.raises(ScopeMissing, match="owner"):
        require_may_change_egress(lending("env:TOKEN"), ACME)
    require_may_change_egress(lending("tenant:TOKEN"), ACME)
    require_may_change_egress(lending("env:TOKEN"), OWNER_CALLER)
