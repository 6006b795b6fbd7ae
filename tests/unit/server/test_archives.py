"""What clients of E2B send for their builds, and how much of it is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloister.e2b.builds import Builds
from cloister.e2b.refusal import CallRefused
from cloister.server.quotas import Quotas
from cloister.server.settings import Settings
from cloister.server.tenancy import TenantName


def test_archives_of_one_tenant_are_held_to_a_size_together(tmp_path: Path) -> None:
    builds = Builds(tmp_path, Quotas(Settings()))
    acme, globex = TenantName("acme"), TenantName("globex")
    for tenant in (acme, globex):
        builds.make_room(tenant)
    for number in range(3):
        builds.archive(acme, f"{number:064x}").write_bytes(bytes(100))
    builds.require_room(acme, 300)
    with pytest.raises(CallRefused, match="300 bytes"):
        builds.require_room(acme, 299)
    builds.require_room(globex, 0)
