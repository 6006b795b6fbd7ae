"""Puts everything the doctor looks at into one report."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from cloister.doctor.egress import look_at_egress
from cloister.doctor.finding import Finding, State, missing, ok
from cloister.doctor.kernel import look_at_kernel
from cloister.doctor.ledger import look_at_ledger
from cloister.doctor.place import look_at_binary, look_at_directory, look_at_groups, look_at_ids
from cloister.doctor.settings import look_at_settings
from cloister.doctor.storage import look_at_storage
from cloister.doctor.trial import Trial, look_at_limits, look_at_trial, try_default, try_weakest
from cloister.doctor.walls import look_at_walls


@dataclass(frozen=True, slots=True)
class Report:
    """All findings, and whether `Sandbox()` starts here as it is."""

    can_start: bool
    findings: tuple[Finding, ...]

    def count(self, state: State) -> int:
        """Return how many findings are of that state."""
        return sum(finding.state is state for finding in self.findings)


async def examine() -> Report:
    """Look at this host, and start real sandboxes on it."""
    findings = [*look_at_kernel(), look_at_binary(), look_at_directory()]
    findings += [*look_at_groups(), *look_at_ids()]
    # It waits for the disk.
    findings += await asyncio.to_thread(lambda: [*look_at_storage()])
    default = await try_default()
    seen = default if default.started else await try_weakest(default)
    findings += [*look_at_trial(seen), *look_at_limits(seen)]
    if seen.started:
        findings.append(await look_at_egress(seen.policy))
        findings += [finding async for finding in look_at_walls(seen.policy)]
    findings += [*look_at_ledger(), _verdict(default, seen)]
    return Report(default.started, (*findings, *look_at_settings()))


def _verdict(default: Trial, seen: Trial) -> Finding:
    name = "Sandbox()"
    if default.error is None:
        return ok(name, "starts with its default limits")
    if seen.started:
        return missing(name, f"does not start: {default.error}")
    return missing(name, f"does not start, nor does a weaker one: {seen.error}")
