"""What options change of the policy of a sandbox that a server keeps, and does not run."""

from __future__ import annotations

from typing import Any

from cloister.cli.wanted import Wanted
from cloister.errors import RequestError
from cloister.model import quote
from cloister.policy import Policy
from cloister.sandbox.remote_spec import FIELDS, egress_table

# What the server changes of a kept policy by a word of its own; the rest is as it was made.
_WORDS = {"limits", "env", "egress", *FIELDS}


def changes_of(wanted: Wanted, kept: Policy) -> dict[str, Any]:
    """Return what the server is asked to change, or refuse what it cannot."""
    before, after = kept.as_dict(), wanted.policy.as_dict()
    differing = [key for key in (before | after) if before.get(key) != after.get(key)]
    fixed = [key for key in differing if key not in _WORDS]
    if fixed:
        raise RequestError(
            f"{quote(wanted.keep)} is kept on the server, where its {fixed[0]} cannot be changed; "
            "leave that out, or use another name"
        )
    changes: dict[str, Any] = {
        key: after[key] for key in differing if key in FIELDS and key in after
    }
    if "limits" in differing:
        limits = before["limits"]
        changes["limits"] = {
            key: value for key, value in after["limits"].items() if value != limits.get(key)
        }
    if "env" in differing:
        changes["env"] = after["env"]
    if "egress" in differing and wanted.policy.egress is not None:
        changes["egress"] = egress_table(wanted.policy.egress)
    return changes
