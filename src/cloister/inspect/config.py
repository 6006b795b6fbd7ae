"""What an Inspect task may say about its sandbox, and the policy that comes of it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict

from cloister.errors import RequestError
from cloister.model import UNLIMITED, Limits, Profile
from cloister.policy import Egress, ImageRoot, LedgerMode, Policy, Storage, load_policy
from cloister.runtime.namespace.ids import find_sub_ids

# A policy file of this name beside a task is its sandbox's, unless the task names another.
POLICY_FILE = "cloister.toml"
_LIMITS = ("memory", "cpus", "disk", "pids", "wall", "lifetime")


class CloisterConfig(BaseModel):
    """The sandbox of a task or a sample: a policy file, or changes to what is usual, or both.

    With `attach` each sandbox has a name while it lives, by which `cloister exec` reaches it.
    """

    # Frozen: Inspect groups samples by their configuration, which must therefore have a hash.
    model_config = ConfigDict(frozen=True, extra="forbid")

    policy: str | None = None
    image: str | None = None
    template: str | None = None
    allow: tuple[str, ...] = ()
    profile: str | None = None
    user: str | None = None
    storage: str | None = None
    memory: int | str | None = None
    cpus: float | str | None = None
    disk: int | str | None = None
    pids: int | None = None
    wall: float | str | None = None
    lifetime: float | str | None = None
    attach: bool = False


@dataclass(frozen=True, slots=True)
class Asked:
    """What a configuration asks for. With a template, `changes` are made to its policy."""

    policy: Policy | None
    changes: dict[str, Any]
    template: str | None
    attach: bool


def read_config(config: BaseModel | str | None) -> Asked:
    """Return what is asked for by a configuration, the name of a policy file, or nothing."""
    if config is None:
        return Asked(usual_policy(), {}, None, False)
    if isinstance(config, str):
        return Asked(load_policy(config), {}, None, False)
    if not isinstance(config, CloisterConfig):
        raise RequestError(
            f"the sandbox's configuration is a {type(config).__name__}; "
            "write a CloisterConfig, or the name of a policy file"
        )
    base = usual_policy() if config.policy is None else load_policy(config.policy)
    if config.template is None:
        return Asked(base.replace(**_changes(config, base)), {}, None, config.attach)
    if config.policy is not None or config.image is not None:
        raise RequestError("a template brings its own policy and image; leave those out")
    return Asked(None, _changes(config, Policy()), config.template, config.attach)


def _changes(config: CloisterConfig, base: Policy) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    limits = {name: getattr(config, name) for name in _LIMITS if getattr(config, name) is not None}
    if limits:
        changes["limits"] = base.limits.replace(**limits)
    if config.image is not None:
        changes["root"] = ImageRoot(config.image)
    if config.allow:
        known = Egress() if base.egress is None else base.egress
        allowed = dict.fromkeys((*known.allow, *Egress(config.allow).allow))
        changes["egress"] = Egress(allowed, known.private, known.rules, known.budget)
    for name in ("profile", "user", "storage"):
        if getattr(config, name) is not None:
            changes[name] = getattr(config, name)
    if config.attach and not base.storage_is_stated:
        # Only what is on disk can have a name.
        changes.setdefault("storage", Storage.DISK)
    if config.attach and not base.ledger_is_stated and not config.allow:
        # It has a name to be reached by, not to be kept: nobody reads its ledger afterwards.
        changes["ledger"] = LedgerMode.OFF
    return changes


def usual_policy() -> Policy:
    """Return the policy of a task that says nothing.

    Code runs as an ordinary user; the evaluation itself may also act as the sandbox's root, which
    Inspect's tools and set-up scripts do. Its time is Inspect's to limit, which ends it too.
    """
    limits = Limits(wall=UNLIMITED, lifetime=UNLIMITED)
    if os.geteuid() != 0 and find_sub_ids() is None:
        # There is one id, so there is nobody else to be.
        return Policy(limits=limits)
    return Policy(limits=limits, profile=Profile.ROOT, user="user")
