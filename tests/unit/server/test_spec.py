"""What a tenant may say of its own sandbox, where nothing needs to be started to see it."""

from __future__ import annotations

import pytest

from cloister.errors import ScopeMissing
from cloister.model import Mount
from cloister.policy import TABLE_VARIABLE, Policy
from cloister.server.routes.sandboxes import shown_policy
from cloister.server.spec import SandboxSpec, require_wall
from cloister.server.tenancy import OWNER, TenantName
from cloister.server.tokens import OWNER_CALLER, SCOPES, Caller, Role

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
