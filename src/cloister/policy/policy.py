"""The complete, frozen statement of what one sandbox is and may do."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from cloister.errors import PolicyError
from cloister.model import (
    NAMED_USERS,
    Environment,
    Limits,
    Mount,
    Profile,
    Trust,
    User,
    VolumeMount,
    parse_user,
    quote,
)
from cloister.policy.approvals import Approvals, Gates
from cloister.policy.egress import Egress
from cloister.policy.fields import instance, nearest, parse_choice, parse_hostname, placed, wrong
from cloister.policy.roots import HostRoot, ImageRoot, Root
from cloister.policy.secrets import SecretBinding, parse_secrets
from cloister.policy.trust import Requirement, RuntimeName, WallWanted


class SecondLayer(StrEnum):
    """The wall behind the wall: `landlock`, or `none` on a kernel without it."""

    LANDLOCK = "landlock"
    NONE = "none"


class Storage(StrEnum):
    """Where what is written inside lies: in `memory`, gone at the end, or on `disk`, to be kept."""

    MEMORY = "memory"
    DISK = "disk"


class History(StrEnum):
    """When snapshots are taken unasked: at `none` of the runs, or at `each-run`."""

    NONE = "none"
    EACH_RUN = "each-run"


class LedgerMode(StrEnum):
    """Whether what happens is recorded, chained and signed, in the state directory."""

    OFF = "off"
    ON = "on"


_USUAL_LIMITS = Limits()


@dataclass(frozen=True, slots=True, init=False)
class Policy:
    """What one sandbox is and may do; whatever it does not allow is denied."""

    trust: Trust
    # The wall by name, and what it must be; where neither is said, the trust alone chooses.
    runtime: RuntimeName | None
    require: Requirement | None
    profile: Profile
    limits: Limits
    mounts: tuple[Mount, ...]
    env: Environment
    root: Root
    hostname: str
    second_layer: SecondLayer
    user: User | None
    storage: Storage
    history: History
    volumes: tuple[VolumeMount, ...]
    egress: Egress | None
    secrets: tuple[SecretBinding, ...]
    approvals: Approvals
    gates: Gates
    ledger: LedgerMode
    # Whether each was asked for, or follows from the rest; the meaning is the same.
    storage_is_stated: bool = field(compare=False, repr=False)
    ledger_is_stated: bool = field(compare=False, repr=False)

    def __init__(
        self,
        *,
        trust: Trust | str = Trust.INTERNAL,
        runtime: RuntimeName | str | None = None,
        require: Requirement | str | None = None,
        profile: Profile | str = Profile.DEFAULT,
        limits: Limits | None = None,
        mounts: Iterable[Mount] = (),
        env: Mapping[str, str] | None = None,
        root: Root | None = None,
        hostname: str = "sandbox",
        second_layer: SecondLayer | str = SecondLayer.LANDLOCK,
        user: User | str | int | None = None,
        storage: Storage | str | None = None,
        history: History | str = History.NONE,
        volumes: Iterable[VolumeMount] = (),
        egress: Egress | Iterable[str] | None = None,
        secrets: Mapping[str, Any] | Iterable[SecretBinding] = (),
        approvals: Approvals | None = None,
        gates: Gates | None = None,
        ledger: LedgerMode | str | None = None,
    ) -> None:
        # A history is of snapshots, and only a disk has those.
        parsed_history = parse_choice("history", History, history)
        default = Storage.MEMORY if parsed_history is History.NONE else Storage.DISK
        values = {
            "trust": parse_choice("trust", Trust, trust),
            "runtime": None if runtime is None else parse_choice("runtime", RuntimeName, runtime),
            "require": None if require is None else parse_choice("require", Requirement, require),
            "profile": parse_choice("profile", Profile, profile),
            "limits": instance("limits", Limits, _USUAL_LIMITS if limits is None else limits),
            "mounts": _parse_shown("mounts", Mount, mounts),
            "env": env if isinstance(env, Environment) else placed("env", Environment, env),
            "root": instance("root", Root, HostRoot() if root is None else root),
            "hostname": parse_hostname(hostname),
            "second_layer": parse_choice("second_layer", SecondLayer, second_layer),
            "user": None if user is None else placed("user", parse_user, user),
            "storage": default if storage is None else parse_choice("storage", Storage, storage),
            "history": parsed_history,
            "volumes": _parse_shown("volumes", VolumeMount, volumes),
            "egress": egress
            if egress is None or isinstance(egress, Egress)
            else placed("egress.allow", Egress, egress),
            "secrets": placed("secrets", parse_secrets, secrets),
            "approvals": instance("approvals", Approvals, approvals or Approvals()),
            "gates": instance("gates", Gates, gates or Gates()),
            "ledger": _usual_ledger(egress)
            if ledger is None
            else parse_choice("ledger", LedgerMode, ledger),
            "storage_is_stated": storage is not None,
            "ledger_is_stated": ledger is not None,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        self._require_fit()

    def _require_fit(self) -> None:
        """Refuse fields that are right by themselves and not together."""
        if 0 in self.run_as and self.profile is not Profile.ROOT:
            raise wrong("user", 'is root or in its group; set profile = "root" for that')
        _require_free({mount.target for mount in self.mounts}, "volumes", self.volumes)
        self._require_secrets_fit()
        if self.storage is not Storage.MEMORY:
            return
        if self.history is not History.NONE:
            raise wrong(
                "history",
                f'is "{self.history.value}" and storage is "memory", of which there are no '
                'snapshots; set storage = "disk" or history = "none"',
            )
        if self.limits.disk is None:
            raise wrong(
                "limits.disk",
                'is "unlimited" and storage is "memory", where files could fill the memory of '
                'the host; write a size or set storage = "disk"',
            )

    def _require_secrets_fit(self) -> None:
        for secret in self.secrets:
            if secret.name in self.env:
                raise wrong(f"secrets.{secret.name}", "is also in env; keep one of them")
            for host in secret.hosts:
                if self.egress is None or not self.egress.reaches(host):
                    raise wrong(
                        f"secrets.{secret.name}.hosts",
                        f"has {host}, which egress does not let anything reach; "
                        "add it to egress.allow or to a rule",
                    )

    def needs_depth(self, host: str, port: int) -> bool:
        """Whether requests to a canonical host must be read: for a rule on them, or a secret."""
        if self.egress is None:
            return False
        return self.egress.reads_requests(host, port) or any(
            secret.is_for(host, port) for secret in self.secrets
        )

    @property
    def has_depth(self) -> bool:
        """Whether there is any host to which requests must be read."""
        rules = () if self.egress is None else self.egress.rules
        return bool(self.secrets) or any(rule.needs_depth for rule in rules)

    @property
    def run_as(self) -> User:
        """The user that processes run as unless they name another."""
        if self.user is not None:
            return self.user
        return NAMED_USERS["root" if self.profile is Profile.ROOT else "user"]

    @property
    def wall(self) -> WallWanted:
        """What it says of the wall."""
        return WallWanted(self.trust, self.runtime, self.require)

    def replace(self, **changes: Any) -> Policy:
        """Return this policy with some fields changed."""
        fields = {name: getattr(self, name) for name in _FIELDS}
        if not self.storage_is_stated:
            fields["storage"] = None
        if not self.ledger_is_stated:
            fields["ledger"] = None
        for name in changes:
            if name not in fields:
                raise PolicyError(
                    "no such field of a policy",
                    place=f"policy {name}",
                    nearest=nearest(name, fields),
                )
        return Policy(**{**fields, **changes})

    def as_dict(self) -> dict[str, Any]:
        """Return the policy as the tables of a policy file."""
        root: dict[str, Any]
        if isinstance(self.root, HostRoot):
            root = {"kind": "host", "extra": list(self.root.extra)}
        elif isinstance(self.root, ImageRoot):
            root = {"kind": "image", "image": self.root.reference}
        else:
            root = {"kind": "directory", "path": str(self.root.path)}
        return {
            "trust": self.trust.value,
            **({} if self.runtime is None else {"runtime": self.runtime.value}),
            **({} if self.require is None else {"require": self.require.value}),
            "profile": self.profile.value,
            "hostname": self.hostname,
            **({} if self.user is None else {"user": f"{self.user.uid}:{self.user.gid}"}),
            "second_layer": self.second_layer.value,
            "storage": self.storage.value,
            "history": self.history.value,
            **({} if self.ledger is _usual_ledger(self.egress) else {"ledger": self.ledger.value}),
            "root": root,
            "limits": self.limits.as_dict(),
            "env": dict(self.env),
            "mount": [
                {"source": str(m.source), "target": m.target, "mode": m.mode.value}
                for m in self.mounts
            ],
            **({} if self.egress is None else {"egress": self.egress.as_dict()}),
            **_stated("secrets", {secret.name: secret.as_dict() for secret in self.secrets}),
            **_stated("approvals", self.approvals.as_dict()),
            **_stated("gates", self.gates.as_dict()),
            "volume": [
                {"name": v.name, "target": v.target, "mode": v.mode.value} for v in self.volumes
            ],
        }

    def digest(self) -> str:
        """Return the SHA-256 of the policy in hexadecimal; equal policies have equal digests."""
        return _digest(self)


# A ledger names it twice for each sandbox, and most sandboxes of a process have one policy.
@functools.lru_cache(maxsize=64)
def _digest(policy: Policy) -> str:
    canonical = json.dumps(policy.as_dict(), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode("ascii")).hexdigest()


_FIELDS = tuple(name for name in Policy.__slots__ if not name.endswith("_stated"))


def _usual_ledger(egress: object) -> LedgerMode:
    # What crosses the wall is recorded unless somebody says otherwise.
    return LedgerMode.OFF if egress is None else LedgerMode.ON


def _stated(name: str, table: Mapping[str, Any]) -> dict[str, Any]:
    # What is as it was before there was such a table keeps the digest it had.
    return {name: table} if table else {}


_Shown = TypeVar("_Shown", Mount, VolumeMount)


def _parse_shown(field: str, kind: type[_Shown], values: object) -> tuple[_Shown, ...]:
    if not isinstance(values, Iterable):
        raise wrong(field, f"is {quote(values)}; write a list of {kind.__name__}")
    parsed = tuple(instance(field, kind, value) for value in values)
    _require_free(set(), field, parsed)
    return parsed


def _require_free(taken: set[str], field: str, shown: Iterable[Mount | VolumeMount]) -> None:
    for each in shown:
        if each.target in taken:
            raise wrong(field, f"has {quote(each.target)} as target twice; keep one of them")
        taken.add(each.target)
