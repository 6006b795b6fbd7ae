"""Read a policy from TOML; what is not known is an error that says where it stands."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from cloister.errors import PolicyError
from cloister.model import (
    LIMIT_NAMES,
    Environment,
    Limits,
    Mount,
    MountMode,
    Profile,
    Trust,
    VolumeMode,
    VolumeMount,
    parse_mount_mode,
    parse_mount_source,
    parse_name,
    parse_target,
    parse_user,
    parse_volume_mode,
    quote,
)
from cloister.policy.approvals import APPROVALS_KEYS, GATE_KEYS, Approvals, Gates
from cloister.policy.fields import nearest, parse_choice, parse_hostname
from cloister.policy.locate import KeyPath, locate_keys
from cloister.policy.places import Places, dotted
from cloister.policy.policy import (
    History,
    LedgerMode,
    Policy,
    SecondLayer,
    Storage,
)
from cloister.policy.read_egress import EGRESS_SCHEMA, read_egress
from cloister.policy.read_secrets import SECRETS_SCHEMA, read_secrets
from cloister.policy.roots import DirectoryRoot, HostRoot, ImageRoot, Root
from cloister.policy.trust import Requirement, RuntimeName

MAXIMUM_POLICY_BYTES = 2**20

_PLAIN_KEYS = (
    *("trust", "runtime", "require", "profile", "hostname", "user", "second_layer"),
    *("storage", "history", "ledger"),
)
_TOP_KEYS = (*_PLAIN_KEYS, "root", "limits", "env", "mount", "volume", "egress", "secrets")
_TABLES = {"approvals": (APPROVALS_KEYS, Approvals), "gates": (GATE_KEYS, Gates)}
# The key that says more of each kind of root.
_ROOT_KINDS = {"host": "extra", "directory": "path", "image": "image"}
_ROOT_KEYS = ("kind", "path", "extra", "image")
_MOUNT_KEYS = ("source", "target", "mode")
_VOLUME_KEYS = ("name", "target", "mode")


def schema() -> tuple[str, ...]:
    """Return every key a policy file may have, in the order of its documentation."""
    return (
        *_PLAIN_KEYS,
        *(f"root.{key}" for key in _ROOT_KEYS),
        *(f"limits.{key}" for key in LIMIT_NAMES),
        "env",
        *(f"mount.{key}" for key in _MOUNT_KEYS),
        *(f"volume.{key}" for key in _VOLUME_KEYS),
        *EGRESS_SCHEMA,
        *SECRETS_SCHEMA,
        *(f"{name}.{key}" for name, (keys, _) in _TABLES.items() for key in keys),
    )


def parse_policy(text: str | bytes, where: str = "policy", directory: Path | None = None) -> Policy:
    """Return the policy that a TOML text states; `where` names the text in errors.

    Relative host paths are taken from `directory`; without one, those of mounts stay relative
    and a root must be absolute. Raises PolicyError, and nothing else, for any text.
    """
    decoded = _decode(text, where)
    lines = locate_keys(decoded, where)
    try:
        table = tomllib.loads(decoded)
    except RecursionError as error:
        raise PolicyError("nested too deeply; no policy needs that", place=where) from error
    except tomllib.TOMLDecodeError as error:
        raise _syntax_error(str(error), decoded, where) from error
    except ValueError as error:
        # What tomllib lets through from int(): more digits than Python converts.
        raise PolicyError("a number has more than 4300 digits; shorten it", place=where) from error
    return _Reader(where, lines, directory).read(table)


def read_policy(tables: Mapping[str, Any], where: str) -> Policy:
    """Return the policy that `Policy.as_dict` wrote; `where` names it in errors."""
    return _Reader(where, {}, None).read(tables)


def _decode(text: object, where: str) -> str:
    if not isinstance(text, str | bytes):
        raise PolicyError(f"policy is {quote(text)}; write TOML text", place=where)
    # Before decoding, and before encoding: text has at least as many bytes as characters.
    if len(text) > MAXIMUM_POLICY_BYTES:
        raise _too_large(len(text), where)
    try:
        data = text if isinstance(text, bytes) else text.encode("utf-8")
        decoded = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise PolicyError("not UTF-8; save it as UTF-8", place=f"{where}:{line}") from error
    except UnicodeEncodeError as error:
        line = error.object.count("\n", 0, error.start) + 1
        raise PolicyError("not Unicode text; save it as UTF-8", place=f"{where}:{line}") from error
    if len(data) > MAXIMUM_POLICY_BYTES:
        raise _too_large(len(data), where)
    return decoded


def _too_large(size_bytes: int, where: str) -> PolicyError:
    return PolicyError(
        f"policy of {size_bytes} bytes or more; the most is {MAXIMUM_POLICY_BYTES}", place=where
    )


_AT_LINE = re.compile(r" \(at (?:line ([0-9]+), column [0-9]+|end of document)\)$")


def _syntax_error(message: str, text: str, where: str) -> PolicyError:
    found = _AT_LINE.search(message)
    fact = message[: found.start()] if found else message
    if "Cannot overwrite" in fact or "twice" in fact:
        fact = "the same key is given twice; keep one of them"
    else:
        fact = f"not TOML: {fact[:1].lower()}{fact[1:200]}"
    line = found[1] if found and found[1] else text.rstrip().count("\n") + 1
    return PolicyError(fact, place=f"{where}:{line}")


_PLAIN_PARSERS: Mapping[str, Callable[[object], object]] = {
    "trust": lambda value: parse_choice("trust", Trust, value),
    "runtime": lambda value: parse_choice("runtime", RuntimeName, value),
    "require": lambda value: parse_choice("require", Requirement, value),
    "profile": lambda value: parse_choice("profile", Profile, value),
    "hostname": parse_hostname,
    "user": parse_user,
    "second_layer": lambda value: parse_choice("second_layer", SecondLayer, value),
    "storage": lambda value: parse_choice("storage", Storage, value),
    "history": lambda value: parse_choice("history", History, value),
    "ledger": lambda value: parse_choice("ledger", LedgerMode, value),
}


_Shown = TypeVar("_Shown", Mount, VolumeMount)


class _Reader:
    """One reading of a parsed table; remembers where each key was written."""

    def __init__(self, where: str, lines: Mapping[KeyPath, int], directory: Path | None) -> None:
        self._places = Places(where, lines, schema())
        self._directory = directory
        self._targets: set[str] = set()

    def read(self, table: Mapping[str, Any]) -> Policy:
        self._places.refuse_unknown((), table, (*_TOP_KEYS, *_TABLES))
        fields: dict[str, Any] = {
            "limits": self._read_limits(self._places.table((), table, "limits")),
            "env": self._read_env(self._places.table((), table, "env")),
            "mounts": self._read_shown(table, "mount", self._read_mount),
            "volumes": self._read_shown(table, "volume", self._read_volume),
        }
        if "egress" in table:
            egress = self._places.table((), table, "egress")
            fields["egress"] = read_egress(self._places, egress)
        if "secrets" in table:
            secrets = self._places.table((), table, "secrets")
            fields["secrets"] = read_secrets(self._places, secrets, self._directory)
        for name, (keys, make) in _TABLES.items():
            if name in table:
                fields[name] = self._read_flat(name, keys, make, table)
        if "root" in table:
            fields["root"] = self._read_root(self._places.table((), table, "root"))
        for name in _PLAIN_KEYS:
            if name in table:
                with self._places.at((name,)):
                    fields[name] = _PLAIN_PARSERS[name](table[name])
        try:
            return Policy(**fields)
        except PolicyError as error:
            # Each field was read by itself; what is left to go wrong is one not fitting another.
            path = tuple(error.place.removeprefix("policy ").split("."))
            raise self._places.error(path, error.message, error.nearest) from error

    def _read_flat(
        self, name: str, keys: Sequence[str], make: Callable[..., Any], whole: Mapping[str, Any]
    ) -> object:
        table = self._places.table((), whole, name)
        self._places.refuse_unknown((name,), table, keys)
        for key, value in table.items():
            with self._places.at((name, key)):
                make(**{key: value})
        return make(**table)

    def _read_limits(self, table: Mapping[str, Any]) -> Limits:
        self._places.refuse_unknown(("limits",), table, LIMIT_NAMES)
        limits = Limits()
        for name, value in table.items():
            with self._places.at(("limits", name)):
                limits = limits.replace(**{name: value})
        return limits

    def _read_env(self, table: Mapping[str, Any]) -> Environment:
        for name, value in table.items():
            with self._places.at(("env", name)):
                Environment({name: value})
        with self._places.at(("env",)):
            return Environment(table)

    def _read_root(self, table: Mapping[str, Any]) -> Root:
        self._places.refuse_unknown(("root",), table, _ROOT_KEYS)
        kind = self._places.required(("root",), table, "kind")
        if not isinstance(kind, str) or kind not in _ROOT_KINDS:
            raise self._places.error(
                ("root", "kind"),
                f"root.kind is {quote(kind)}; it may be {', '.join(_ROOT_KINDS)}",
                nearest(kind, _ROOT_KINDS) if isinstance(kind, str) else None,
            )
        for stray in table:
            if stray not in ("kind", _ROOT_KINDS[kind]):
                message = f'root.{stray} has no meaning with kind = "{kind}"; remove one of the two'
                raise self._places.error(("root", stray), message)
        if kind == "image":
            image = self._places.required(("root",), table, "image")
            with self._places.at(("root", "image")):
                return ImageRoot(image)
        if kind == "directory":
            path = self._places.required(("root",), table, "path")
            with self._places.at(("root", "path")):
                return DirectoryRoot(self._host_path(parse_mount_source(path, "root.path")))
        extra = table.get("extra", [])
        if not isinstance(extra, list):
            raise self._places.error(
                ("root", "extra"), f"root.extra is {quote(extra)}; write a list"
            )
        for index, path in enumerate(extra):
            with self._places.at(("root", "extra", index)):
                HostRoot([path])
        return HostRoot(extra)

    def _read_shown(
        self,
        whole: Mapping[str, Any],
        name: str,
        read: Callable[[KeyPath, Mapping[str, Any]], _Shown],
    ) -> tuple[_Shown, ...]:
        tables = whole.get(name, [])
        if not isinstance(tables, list):
            raise self._places.error((name,), f"{name} is not a list of tables; write [[{name}]]")
        shown: list[_Shown] = []
        for index, table in enumerate(tables):
            path: KeyPath = (name, index)
            if not isinstance(table, dict):
                message = f"{dotted(path)} is {quote(table)}; write a table, [[{name}]]"
                raise self._places.error(path, message)
            each = read(path, table)
            if each.target in self._targets:
                message = f"{quote(each.target)} is a target twice; keep one of them"
                raise self._places.error((*path, "target"), message)
            self._targets.add(each.target)
            shown.append(each)
        return tuple(shown)

    def _read_mount(self, path: KeyPath, table: Mapping[str, Any]) -> Mount:
        self._places.refuse_unknown(path, table, _MOUNT_KEYS)
        source_text = self._places.required(path, table, "source")
        target_text = self._places.required(path, table, "target")
        with self._places.at((*path, "source")):
            source = parse_mount_source(source_text)
        with self._places.at((*path, "target")):
            target = parse_target(target_text, "mount target")
        with self._places.at((*path, "mode")):
            mode = parse_mount_mode(table.get("mode", MountMode.COPY))
        return Mount(self._host_path(source), target, mode)

    def _read_volume(self, path: KeyPath, table: Mapping[str, Any]) -> VolumeMount:
        self._places.refuse_unknown(path, table, _VOLUME_KEYS)
        name_text = self._places.required(path, table, "name")
        target_text = self._places.required(path, table, "target")
        with self._places.at((*path, "name")):
            name = parse_name(name_text, "volume name")
        with self._places.at((*path, "target")):
            target = parse_target(target_text, "volume target")
        with self._places.at((*path, "mode")):
            mode = parse_volume_mode(table.get("mode", VolumeMode.WRITE))
        return VolumeMount(name, target, mode)

    def _host_path(self, path: Path) -> Path:
        return path if self._directory is None else self._directory / path
