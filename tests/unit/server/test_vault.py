"""What is renewed for all sandboxes of a tenant is renewed in those that begin at that moment."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cloister.errors import NotFound
from cloister.server.records import Records
from cloister.server.tenancy import TenantName
from cloister.server.vault import Vault

ACME, GLOBEX = TenantName("acme"), TenantName("globex")


class Starting:
    """A sandbox while it opens: its tenant, or another, renews meanwhile."""

    def __init__(self, vault: Vault, meanwhile: list[TenantName], secrets: tuple[str, ...]) -> None:
        self.policy = SimpleNamespace(secrets=secrets)
        self.renewed = 0
        self._vault, self._meanwhile = vault, meanwhile

    async def open(self) -> None:
        self._renew_one()

    async def renew_secrets(self) -> None:
        self.renewed += 1
        self._renew_one()
        raise NotFound("no secret is stored", what="TOKEN")

    def _renew_one(self) -> None:
        if self._meanwhile:
            self._vault.renew(self._meanwhile.pop(0))


@pytest.mark.parametrize(
    ("meanwhile", "secrets", "times"),
    [
        ([], ("TOKEN",), 0),
        ([ACME], ("TOKEN",), 1),
        ([ACME, ACME, ACME], ("TOKEN",), 3),
        ([GLOBEX], ("TOKEN",), 0),
        ([ACME], (), 0),
    ],
)
async def test_a_sandbox_that_begins_while_secrets_are_renewed_reads_them_again(
    tmp_path: Path, meanwhile: list[TenantName], secrets: tuple[str, ...], times: int
) -> None:
    records = Records.open(f"sqlite:///{tmp_path}/server.db")
    try:
        vault = Vault(records)
        starting: Any = Starting(vault, list(meanwhile), secrets)
        await vault.open(ACME, starting)
        assert starting.renewed == times
    finally:
        records.close()
