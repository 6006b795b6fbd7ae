"""What a fleet remembers, and what that costs."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest

from cloister.errors import Exhausted
from cloister.server.fleet import Fleet
from cloister.server.records import Records
from cloister.server.settings import Settings
from cloister.server.tenancy import TenantName


def test_being_asked_again_why_a_sandbox_ended_holds_nothing_of_who_asked(tmp_path: Path) -> None:
    records = Records.open(f"sqlite:///{tmp_path}/server.db")
    try:
        fleet = Fleet(records, Settings())
        why = Exhausted("it reached its lifetime", limit="lifetime")
        acme = TenantName("acme")
        fleet._exhausted[acme, "sb_x"] = why
        for _ in range(50):
            with pytest.raises(Exhausted):
                fleet.find(acme, "sb_x")
        assert len(traceback.extract_tb(why.__traceback__)) < 5
    finally:
        records.close()
