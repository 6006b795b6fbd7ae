"""The smallest machine there is, to prove with that one stands."""

from __future__ import annotations

from cloister.policy import DirectoryRoot, Policy
from cloister.runtime.microvm.images import smallest_root
from cloister.runtime.namespace.runtime import cell_binary

_LEAST_MEMORY = "64MiB"
# A program that is in it, and needs nothing else.
COMMAND = ["/bin/cell", "steps"]


def smallest_policy(policy: Policy) -> Policy:
    """Return the policy for a machine with one program: a disk of all of a host's takes minutes."""
    root = smallest_root(cell_binary())
    limits = policy.limits.replace(memory=_LEAST_MEMORY)
    return policy.replace(root=DirectoryRoot(str(root)), limits=limits)
