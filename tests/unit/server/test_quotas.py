"""Who shares what a tenant may ask: its tokens do, strangers who know an address do not."""

from __future__ import annotations

import pytest

from cloister.errors import Exhausted
from cloister.server.quotas import Quotas
from cloister.server.settings import Settings
from cloister.server.tenancy import TenantName

ACME = TenantName("acme")


@pytest.fixture
def quotas() -> Quotas:
    return Quotas(Settings(most_connections=16))


@pytest.mark.parametrize("strangers", [True, False])
def test_neither_the_tenant_nor_strangers_use_up_the_rate_of_the_other(
    quotas: Quotas, strangers: bool
) -> None:
    with pytest.raises(Exhausted):
        for _ in range(1_000_000):
            quotas.count_request(ACME, visits=strangers)
    quotas.count_request(ACME, visits=not strangers)


def test_connections_that_strangers_hold_open_are_not_the_tenants(quotas: Quotas) -> None:
    with pytest.raises(Exhausted):
        for _ in range(16):
            quotas.enter(ACME, visits=True)
    for _ in range(4):
        quotas.enter(ACME)
    with pytest.raises(Exhausted):
        quotas.enter(ACME)
    quotas.leave(ACME, visits=True)
    quotas.enter(ACME, visits=True)
    quotas.leave(ACME)
    quotas.enter(ACME)
