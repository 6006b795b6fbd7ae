"""What a client asks of a new sandbox, and what of it the client may ask for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from cloister.errors import RequestError, ScopeMissing
from cloister.model import UNLIMITED, Limits, VolumeMount, parse_volume
from cloister.policy import (
    STRENGTHS,
    TABLE_VARIABLE,
    Effect,
    Egress,
    Policy,
    parse_table,
    read_policy,
)
from cloister.policy.secrets import Source
from cloister.server.settings import Settings
from cloister.server.tenancy import OWNER, Names, TenantName
from cloister.server.tokens import Caller, Role

# What says nothing about the host. A key that is not here, such as one of a later release, is
# the owner's alone: other sources of secrets run commands here, and `mount` shows directories.
_TENANT_KEYS = frozenset(
    (
        *("trust", "runtime", "require", "profile", "hostname", "user"),
        *("storage", "history", "ledger", "root", "limits", "env", "volume", "egress", "secrets"),
    )
)
_TENANT_ROOT_KEYS = frozenset(("kind", "image"))
_TENANT_SECRET_KEYS = frozenset(("from", "hosts", "header", "query", "basic_user", "first_use"))
_TENANT_EGRESS_KEYS = frozenset(("allow", "rule", "budget", "networks", "without"))
# What a tenant may name by address where the Internet as a whole is not for tenants.
_MOST_TENANT_ADDRESSES = 2**16
_MOST_METADATA_BYTES = 16 * 1024
_USUAL_LIMITS = Limits()


_PLAIN = (
    *("env", "profile", "trust", "runtime", "require"),
    *("storage", "history", "ledger"),
)


class SandboxSpec(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A new sandbox. `policy` has the keys of a policy file; the fields below change it."""

    policy: dict[str, Any] | None = None
    limits: dict[str, Any] | None = None
    env: dict[str, str] | None = None
    image: str | None = None
    template: str | None = None
    # Hosts, or the table [egress] of a policy file.
    egress: list[str] | dict[str, Any] | None = None
    volumes: list[str] | None = None
    profile: str | None = None
    trust: str | None = None
    runtime: str | None = None
    require: str | None = None
    storage: str | None = None
    history: str | None = None
    ledger: str | None = None
    keep: str | None = None
    label: str | None = None
    # Seconds until it is ended, or kept; counted from the start or from the last change.
    timeout: float | None = None
    # What becomes of it then: it is ended, or held still until something is asked of it.
    at_timeout: Literal["end", "pause"] = "end"
    # Seconds after which it is ended if nobody asks anything of it or renews this.
    lease: float | None = None
    metadata: dict[str, str] | None = None


def sandbox_settings(
    spec: SandboxSpec, caller: Caller, settings: Settings, before: Limits | None = None
) -> dict[str, Any]:
    """Return what `Sandbox(...)` is to be given, or refuse what this caller may not ask for.

    `before` are the limits of what it stands on, a template or what was kept.
    """
    names = Names(caller.tenant)
    require_metadata(spec.metadata or {})
    _require_lease(spec.lease, settings)
    wanted: dict[str, Any] = {
        name: getattr(spec, name) for name in _PLAIN if getattr(spec, name) is not None
    }
    if spec.policy is not None:
        wanted["policy"] = _policy(spec.policy, caller, names, settings)
    if spec.egress is not None:
        wanted["egress"] = parse_egress(spec.egress, caller, settings)
    if spec.image is not None:
        wanted["image"] = spec.image
    if spec.template is not None:
        wanted["template"] = spec.template
    if spec.label is not None:
        wanted["label"] = names.label(spec.label)
    if spec.keep is not None:
        wanted["keep"] = names.stored(spec.keep, "keep")
    if spec.volumes is not None:
        wanted["volumes"] = [_volume(parse_volume(text), names) for text in spec.volumes]
    stated = wanted.get("policy")
    base = (before or _USUAL_LIMITS) if stated is None else stated.limits
    wanted["limits"] = limits_of(spec, base, caller, settings)
    return wanted


def parse_egress(value: list[str] | dict[str, Any], caller: Caller, settings: Settings) -> Egress:
    """Return what may be reached, or refuse what this caller may not ask for."""
    given = value if isinstance(value, dict) else {"allow": value}
    # What is empty says nothing, and so anybody may say it.
    table = {"allow": [], **{key: each for key, each in given.items() if each or key == "allow"}}
    if caller.role is not Role.ADMIN:
        _require_tenants({"egress": table})
    egress = read_policy({"egress": table}, "policy").egress or Egress()
    require_tenants_egress(egress, caller, settings)
    return egress


def require_tenants_egress(egress: Egress, caller: Caller, settings: Settings) -> None:
    """Refuse a way out that is not for tenants, however it is written."""
    if caller.role is Role.ADMIN:
        return
    if any(rule.private for rule in egress.rules):
        raise _not_theirs("egress.rule.private")
    if is_too_wide(egress, settings):
        raise ScopeMissing(
            f"policy egress.networks has {_size(egress)} addresses; the most is "
            f"{_MOST_TENANT_ADDRESSES} unless the server's owner sets open_internet: name hosts in "
            "egress.allow",
            scope="admin",
        )


def is_too_wide(egress: Egress, settings: Settings) -> bool:
    """Whether it reaches more by address than tenants may, where the Internet is not open."""
    return _size(egress) > _MOST_TENANT_ADDRESSES and not settings.open_internet


def _size(egress: Egress) -> int:
    return sum(network.num_addresses for network in egress.networks)


def require_may_change_egress(policy: Policy, caller: Caller) -> None:
    """Refuse whoever may be held to a way out, or to a person's answers, to replace it."""
    # A token for one sandbox may be inside it.
    caller.require_any_sandbox()
    require_nothing_lent(policy, caller.tenant)
    egress = policy.egress
    effects = [each.first_use for each in policy.secrets]
    if egress is not None:
        effects += [rule.effect for rule in egress.rules]
        effects += [] if egress.budget is None else [egress.budget.over]
    if Effect.ASK in effects:
        caller.require("approvals:write")


def require_nothing_lent(policy: Policy, tenant: TenantName) -> None:
    """Refuse a tenant another way out than that with which the owner lends a secret of the host."""
    if tenant != OWNER and any(each.source is not Source.TENANT for each in policy.secrets):
        raise ScopeMissing(
            "it uses secrets of the server's owner, who says by its rules what they are for; "
            "leave egress as it is",
            scope="admin",
        )


def _policy(tables: dict[str, Any], caller: Caller, names: Names, settings: Settings) -> Policy:
    if caller.role is not Role.ADMIN:
        _require_tenants(tables)
    policy = read_policy(tables, "policy")
    if policy.egress is not None:
        require_tenants_egress(policy.egress, caller, settings)
    if policy.volumes:
        policy = policy.replace(volumes=[_volume(volume, names) for volume in policy.volumes])
    return policy


def _require_tenants(tables: dict[str, Any]) -> None:
    places: tuple[tuple[str, object, frozenset[str]], ...] = (
        ("", tables, _TENANT_KEYS),
        ("root.", tables.get("root"), _TENANT_ROOT_KEYS),
        ("egress.", tables.get("egress"), _TENANT_EGRESS_KEYS),
    )
    for place, table, known in (*places, *_places_of_secrets(tables.get("secrets"))):
        for key in table if isinstance(table, dict) else ():
            if key not in known:
                raise _not_theirs(place + key)


def _places_of_secrets(tables: object) -> Iterator[tuple[str, object, frozenset[str]]]:
    for name, table in tables.items() if isinstance(tables, dict) else ():
        place = f"secrets.{str(name)[:64]}."
        yield place, table, _TENANT_SECRET_KEYS
        if isinstance(table, dict) and not str(table.get("from")).startswith("tenant:"):
            raise ScopeMissing(
                f"policy {place}from is about the host; store the secret with PUT /v1/secrets/NAME "
                'and write "tenant:NAME"',
                scope="admin",
            )


def _not_theirs(key: str) -> ScopeMissing:
    return ScopeMissing(
        f"policy {key} is about the host; only a token of the role admin may set it",
        scope="admin",
    )


def _volume(mount: VolumeMount, names: Names) -> VolumeMount:
    return VolumeMount(names.stored(mount.name, "volume name"), mount.target, mount.mode)


_COUNTED = (
    "the owner has bytes counted with `cloister setup storage`, or lets tenants write without a "
    "limit with unlimited_disk = true in the server's settings"
)


def limits_of(spec: SandboxSpec, before: Limits, caller: Caller, settings: Settings) -> Limits:
    """Return the limits that a new sandbox has."""
    named = dict(spec.limits or {})
    stated = set(named) | set((spec.policy or {}).get("limits", {}))
    if "lifetime" not in stated:
        # The server's own clock ends it, because that can be set again while it runs.
        named["lifetime"] = UNLIMITED
    if "idle" not in stated and settings.idle_s is not None:
        named["idle"] = settings.idle_s
    limits = before.replace(**named)
    if caller.tenant != OWNER:
        if not settings.unlimited_disk and limits.disk is not None:
            # Named, so that it is refused where nothing could hold a tenant to it.
            limits = limits.replace(disk=limits.disk)
        needed = ("memory", "cpus") if settings.unlimited_disk else ("memory", "cpus", "disk")
        for name in needed:
            if getattr(limits, name) is None:
                move = "name a number" if name != "disk" else _COUNTED
                raise ScopeMissing(
                    f"limits.{name} is unlimited, which only the server's owner may have; {move}",
                    scope="admin",
                )
    return limits


def timeout_of(spec: SandboxSpec, limits: Limits, settings: Settings) -> float:
    """Return after how many seconds a sandbox is to end: what it says, or its own lifetime."""
    stated = {**(spec.policy or {}).get("limits", {}), **(spec.limits or {})}
    if spec.timeout is None and "lifetime" in stated:
        lifetime = limits.lifetime or settings.longest_timeout_s
        return min(lifetime, settings.longest_timeout_s)
    return parse_timeout(spec.timeout, settings)


def require_wall(spec: SandboxSpec, policy: Policy, caller: Caller) -> None:
    """Refuse a tenant who names a weaker wall than the host's owner has for that trust."""
    named = spec.runtime or (spec.policy or {}).get("runtime")
    table = parse_table(os.environ.get(TABLE_VARIABLE, ""))
    wanted = table.get(policy.trust)
    if named is None or wanted is None or caller.tenant == OWNER:
        return
    if named not in STRENGTHS or not STRENGTHS[named].covers(STRENGTHS[wanted]):
        raise ScopeMissing(
            f'runtime "{named}" is weaker than "{wanted}", which this server has for trust = '
            f'"{policy.trust.value}"; leave it out',
            scope="admin",
        )


def parse_timeout(value: float | None, settings: Settings) -> float:
    """Return a number of seconds that a sandbox may have."""
    if value is None:
        return settings.timeout_s
    if not 0 < value <= settings.longest_timeout_s:
        raise RequestError(
            f"timeout is {value:g} s; it may be above 0 and up to {settings.longest_timeout_s:g} s"
        )
    return value


def _require_lease(value: float | None, settings: Settings) -> None:
    if value is not None and not 1 <= value <= settings.longest_timeout_s:
        raise RequestError(f"lease is {value:g} s; it may be 1 to {settings.longest_timeout_s:g} s")


def require_metadata(metadata: dict[str, str]) -> None:
    """Refuse more metadata than is sensible to remember."""
    size = sum(len(key.encode()) + len(value.encode()) for key, value in metadata.items())
    if size > _MOST_METADATA_BYTES:
        raise RequestError(f"metadata has {size} bytes; the limit is {_MOST_METADATA_BYTES}")
