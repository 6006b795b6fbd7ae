"""The complete, frozen statement of what one sandbox is and may do."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from cloister.errors import PolicyError, RequestError
from cloister.model import (
    NAMED_USERS,
    Environment,
    Limits,
    Mount,
    Profile,
    Trust,
    User,
    VolumeMount,
    parse_absolute_path,
    parse_target,
    parse_user,
    quote,
)
from cloister.policy.egress import Egress
from cloister.policy.secrets import SecretBinding, parse_secrets
from cloister.policy.trust import Requirement, RuntimeName, WallWanted

# One label of a host name (RFC 1123); a dot would make programs look for a domain there is none of.
_HOSTNAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?")

# A registry, a repository, a tag and a digest are all ASCII; whether it is there is asked later.
_REFERENCE = re.compile(r"(?![-/])[!-~]{1,255}")


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


@dataclass(frozen=True, slots=True, init=False)
class HostRoot:
    """The host's own programs, read-only; `extra` names further host directories to show."""

    extra: tuple[str, ...]

    def __init__(self, extra: Iterable[str] = ()) -> None:
        if isinstance(extra, str):
            raise _wrong("root.extra", f"is {quote(extra)}; write a list of paths")
        parsed = tuple(_placed("root.extra", parse_target, path, "path") for path in extra)
        object.__setattr__(self, "extra", parsed)


@dataclass(frozen=True, slots=True, init=False)
class DirectoryRoot:
    """Any directory as root filesystem, read-only below the sandbox's own writable layer."""

    path: Path

    def __init__(self, path: str | os.PathLike[str]) -> None:
        text = _placed("root.path", parse_absolute_path, path, "path")
        # The host's own root would show its secrets, however its path is spelt.
        if ".." in text.split("/") or not text.strip("/.") or "/./" in f"{text}/":
            raise _wrong(
                "root.path",
                f'is {quote(text)}; name a directory other than / and without "." or ".."; '
                'for the host\'s own programs use kind = "host"',
            )
        object.__setattr__(self, "path", Path(text))


@dataclass(frozen=True, slots=True, init=False)
class ImageRoot:
    """An image by its name, read-only below the sandbox's own writable layer."""

    reference: str

    def __init__(self, reference: str) -> None:
        if not isinstance(reference, str) or _REFERENCE.fullmatch(reference) is None:
            raise _wrong(
                "root.image",
                f"is {quote(reference)}; write 1 to 255 printable ASCII characters "
                'without spaces, the first not "-" or "/"',
            )
        object.__setattr__(self, "reference", reference)


Root = HostRoot | DirectoryRoot | ImageRoot


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
            "limits": _instance("limits", Limits, Limits() if limits is None else limits),
            "mounts": _parse_shown("mounts", Mount, mounts),
            "env": env if isinstance(env, Environment) else _placed("env", Environment, env),
            "root": _instance("root", Root, HostRoot() if root is None else root),
            "hostname": parse_hostname(hostname),
            "second_layer": parse_choice("second_layer", SecondLayer, second_layer),
            "user": None if user is None else _placed("user", parse_user, user),
            "storage": default if storage is None else parse_choice("storage", Storage, storage),
            "history": parsed_history,
            "volumes": _parse_shown("volumes", VolumeMount, volumes),
            "egress": egress
            if egress is None or isinstance(egress, Egress)
            else _placed("egress.allow", Egress, egress),
            "secrets": _placed("secrets", parse_secrets, secrets),
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
            raise _wrong("user", 'is root or in its group; set profile = "root" for that')
        _require_free({mount.target for mount in self.mounts}, "volumes", self.volumes)
        self._require_secrets_fit()
        if self.storage is not Storage.MEMORY:
            return
        if self.history is not History.NONE:
            raise _wrong(
                "history",
                f'is "{self.history.value}" and storage is "memory", of which there are no '
                'snapshots; set storage = "disk" or history = "none"',
            )
        if self.limits.disk is None:
            raise _wrong(
                "limits.disk",
                'is "unlimited" and storage is "memory", where files could fill the memory of '
                'the host; write a size or set storage = "disk"',
            )

    def _require_secrets_fit(self) -> None:
        for secret in self.secrets:
            if secret.name in self.env:
                raise _wrong(f"secrets.{secret.name}", "is also in env; keep one of them")
            for host in secret.hosts:
                if self.egress is None or not self.egress.reaches(host):
                    raise _wrong(
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
        fields = {
            name: getattr(self, name) for name in Policy.__slots__ if not name.endswith("_stated")
        }
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
            **(
                {"secrets": {secret.name: secret.as_dict() for secret in self.secrets}}
                if self.secrets
                else {}
            ),
            "volume": [
                {"name": v.name, "target": v.target, "mode": v.mode.value} for v in self.volumes
            ],
        }

    def digest(self) -> str:
        """Return the SHA-256 of the policy in hexadecimal; equal policies have equal digests."""
        canonical = json.dumps(self.as_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode("ascii")).hexdigest()


def _usual_ledger(egress: object) -> LedgerMode:
    # What crosses the wall is recorded unless somebody says otherwise.
    return LedgerMode.OFF if egress is None else LedgerMode.ON


def nearest(name: str, valid: Iterable[str]) -> str | None:
    """Return the valid name most like the given one, if any is like it."""
    # difflib's time grows with the product of the lengths, and no valid name is long.
    found = difflib.get_close_matches(name[:64], list(valid), 1, 0.5)
    return found[0] if found else None


_Choice = TypeVar("_Choice", bound=StrEnum)
_Shown = TypeVar("_Shown", Mount, VolumeMount)


def parse_choice(field: str, kind: type[_Choice], value: object) -> _Choice:
    """Return the member of that value, or say which values there are."""
    names = [member.value for member in kind]
    if isinstance(value, str) and value in names:
        return kind(value)
    raise PolicyError(
        f"{field} is {quote(value)}; it may be {', '.join(names)}",
        place=f"policy {field}",
        nearest=nearest(value, names) if isinstance(value, str) else None,
    )


def parse_hostname(value: object) -> str:
    """Return a host name of one label."""
    if not isinstance(value, str) or _HOSTNAME.fullmatch(value) is None:
        raise _wrong(
            "hostname",
            f"is {quote(value)}; write 1 to 63 letters, digits and inner hyphens",
        )
    return value


def _parse_shown(field: str, kind: type[_Shown], values: object) -> tuple[_Shown, ...]:
    if not isinstance(values, Iterable):
        raise _wrong(field, f"is {quote(values)}; write a list of {kind.__name__}")
    parsed = tuple(_instance(field, kind, value) for value in values)
    _require_free(set(), field, parsed)
    return parsed


def _require_free(taken: set[str], field: str, shown: Iterable[Mount | VolumeMount]) -> None:
    for each in shown:
        if each.target in taken:
            raise _wrong(field, f"has {quote(each.target)} as target twice; keep one of them")
        taken.add(each.target)


def _instance(field: str, kind: Any, value: Any) -> Any:
    if not isinstance(value, kind):
        name = getattr(kind, "__name__", "HostRoot, DirectoryRoot or ImageRoot")
        raise _wrong(field, f"is {quote(value)}; write a {name}")
    return value


def _placed(field: str, parse: Any, *arguments: Any) -> Any:
    try:
        return parse(*arguments)
    except RequestError as error:
        raise PolicyError(str(error), place=f"policy {field}") from error


def _wrong(field: str, message: str) -> PolicyError:
    return PolicyError(f"{field} {message}", place=f"policy {field}")
