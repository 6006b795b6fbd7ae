"""Every setting of the server: from a TOML file, then from the environment; unknown is an error."""

from __future__ import annotations

import dataclasses
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cloister.errors import NotFound, RequestError
from cloister.model import UNLIMITED, parse_bytes, parse_cpus, parse_duration, quote
from cloister.policy.fields import nearest
from cloister.runtime.namespace.instance import runtime_directory
from cloister.server.tenancy import TenantName, parse_tenant
from cloister.server.traces import parse_collector
from cloister.store.place import state_directory

PREFIX = "CLOISTER_SERVER_"
_MOST_FILE_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Quota:
    """What one tenant may have at once; sizes are sums of what its sandboxes were promised."""

    sandboxes: int = 100
    memory_bytes: int = 256 * 2**30
    cpus: float = 128.0
    disk_bytes: int = 256 * 2**30
    pids: int = 25_600
    requests_per_s: float = 1000.0


@dataclass(frozen=True, slots=True)
class Settings:
    """What a server is told at its start."""

    socket: Path = field(default_factory=lambda: runtime_directory() / "server.sock")
    listen: str | None = None
    # Names under which clients reach it; a request for another is refused (DNS rebinding).
    hosts: tuple[str, ...] = ("localhost", "127.0.0.1", "[::1]")
    certificate: Path | None = None
    key: Path | None = None
    database: str = field(default_factory=lambda: f"sqlite:///{state_directory()}/server.db")
    most_sandboxes: int = 1000
    starts_at_once: int = 16
    # Sandboxes that are started ahead, of all tenants; and how long after nobody asked for more.
    warm_sandboxes: int = 16
    warm_s: float = 300.0
    queue_s: float = 10.0
    queue_length: int = 100
    timeout_s: float = 3600.0
    longest_timeout_s: float = 24 * 3600.0
    idle_s: float | None = None
    # Whether tenants may have disks that nothing counts; some filesystems cannot count.
    unlimited_disk: bool = False
    # Whether tenants may have sandboxes that reach every public address.
    open_internet: bool = False
    drain_s: float = 10.0
    body_bytes: int = 2**20
    upload_bytes: int = 2**30
    slow_client_s: float = 30.0
    most_connections: int = 4096
    log: str = "info"
    # Where spans are sent, by OTLP over HTTP.
    traces: str | None = None
    quota: Quota = Quota()
    tenants: Mapping[TenantName, Quota] = field(default_factory=dict)

    def quota_of(self, tenant: TenantName) -> Quota:
        """Return what a tenant may have."""
        return self.tenants.get(tenant, self.quota)


def load_settings(
    path: Path | None = None, environment: Mapping[str, str] | None = None, **options: Any
) -> Settings:
    """Return the settings of a file, changed by CLOISTER_SERVER_* and then by options."""
    values = {} if path is None else _read(path)
    for name, text in (os.environ if environment is None else environment).items():
        if name.startswith(PREFIX):
            key = name.removeprefix(PREFIX).lower()
            where = f"environment variable {name}"
            _require_known(where, key, [known for known in _READERS if known not in _TABLES])
            values[key] = _READERS[key](where, text)
    values |= {key: value for key, value in options.items() if value is not None}
    settings = Settings(**values)
    if (settings.certificate is None) != (settings.key is None):
        raise RequestError("certificate and key belong together; name both or none")
    return settings


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_FILE_BYTES + 1)
    except FileNotFoundError:
        raise NotFound(f"no settings file {quote(str(path))}", what=str(path)) from None
    except OSError as error:
        raise RequestError(f"cannot read {quote(str(path))}: {error.strerror}") from error
    if len(data) > _MOST_FILE_BYTES:
        raise RequestError(f"{quote(str(path))} is larger than {_MOST_FILE_BYTES} bytes")
    try:
        table = tomllib.loads(data.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise RequestError(f"{quote(str(path))} is not TOML: {error}") from error
    values = {}
    for key, value in table.items():
        _require_known(str(path), key, _READERS)
        values[key] = _READERS[key](f"{path}: {key}", value)
    quota = values.get("quota", Quota())
    if "tenants" in values:
        values["tenants"] = {
            name: dataclasses.replace(quota, **changes)
            for name, changes in values["tenants"].items()
        }
    return values


def _require_known(where: str, key: str, known: Any) -> None:
    if key not in known:
        meant = nearest(key, known)
        hint = f"; did you mean {quote(meant)}?" if meant else ""
        raise RequestError(f"{where}: unknown setting {quote(key)}{hint}")


def _text(where: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise RequestError(f"{where} is {quote(value)}; write text")
    return value


def _path(where: str, value: object) -> Path:
    return Path(_text(where, value)).absolute()


def _listen(where: str, value: object) -> str:
    text = _text(where, value)
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise RequestError(f"{where} is {quote(text)}; write HOST:PORT")
    return text


def _words(where: str, value: object) -> tuple[str, ...]:
    words = value.split(",") if isinstance(value, str) else value
    if not isinstance(words, list) or not all(isinstance(word, str) and word for word in words):
        raise RequestError(f"{where} is {quote(value)}; write a list of names")
    return tuple(word.strip().lower() for word in words)


def _count(where: str, value: object) -> int:
    number = int(value) if isinstance(value, str) and value.isdecimal() else value
    if not isinstance(number, int) or isinstance(number, bool) or not 0 < number < 2**31:
        raise RequestError(f"{where} is {quote(value)}; write a whole number above 0")
    return number


def _count_or_none(where: str, value: object) -> int:
    return 0 if value in (0, "0") and value is not False else _count(where, value)


def _seconds(where: str, value: object) -> float:
    seconds = parse_duration(value, where)
    if seconds <= 0:
        raise RequestError(f"{where} is {quote(value)}; write a time above 0")
    return seconds


def _seconds_or_none(where: str, value: object) -> float | None:
    return None if value == UNLIMITED else _seconds(where, value)


def _bytes(where: str, value: object) -> int:
    size_bytes = parse_bytes(value, where)
    if size_bytes <= 0:
        raise RequestError(f"{where} is {quote(value)}; write a size above 0")
    return size_bytes


def _rate(where: str, value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e9:
        raise RequestError(f"{where} is {quote(value)}; write a number above 0")
    return float(value)


def _switch(where: str, value: object) -> bool:
    if value in (True, "true"):
        return True
    if value in (False, "false"):
        return False
    raise RequestError(f"{where} is {quote(value)}; write true or false")


def _level(where: str, value: object) -> str:
    if value not in ("error", "warning", "info", "debug"):
        raise RequestError(f"{where} is {quote(value)}; it may be error, warning, info or debug")
    return str(value)


_QUOTA_READERS: Mapping[str, Any] = {
    "sandboxes": _count,
    "memory": _bytes,
    "cpus": lambda where, value: parse_cpus(value),
    "disk": _bytes,
    "pids": _count,
    "requests_per_s": _rate,
}
_QUOTA_FIELDS = {"memory": "memory_bytes", "disk": "disk_bytes"}


def _quota_changes(where: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RequestError(f"{where} is {quote(value)}; write a table")
    for key in value:
        _require_known(where, key, _QUOTA_READERS)
    return {
        str(_QUOTA_FIELDS.get(key, key)): _QUOTA_READERS[key](f"{where}.{key}", each)
        for key, each in value.items()
    }


def _quota(where: str, value: object) -> Quota:
    return Quota(**_quota_changes(where, value))


def _tenants(where: str, value: object) -> dict[TenantName, dict[str, Any]]:
    if not isinstance(value, dict):
        raise RequestError(f"{where} is {quote(value)}; write tables, [tenants.NAME]")
    return {
        parse_tenant(name): _quota_changes(f"{where}.{name}", each) for name, each in value.items()
    }


_TABLES = ("quota", "tenants")
_READERS: Mapping[str, Any] = {
    "socket": _path,
    "listen": _listen,
    "hosts": _words,
    "certificate": _path,
    "key": _path,
    "database": _text,
    "most_sandboxes": _count,
    "starts_at_once": _count,
    "warm_sandboxes": _count_or_none,
    "warm_s": _seconds,
    "queue_s": _seconds,
    "queue_length": _count,
    "timeout_s": _seconds,
    "longest_timeout_s": _seconds,
    "idle_s": _seconds_or_none,
    "unlimited_disk": _switch,
    "open_internet": _switch,
    "drain_s": _seconds,
    "body_bytes": _bytes,
    "upload_bytes": _bytes,
    "slow_client_s": _seconds,
    "most_connections": _count,
    "log": _level,
    "traces": parse_collector,
    "quota": _quota,
    "tenants": _tenants,
}


def setting_names() -> tuple[str, ...]:
    """Return every setting, for the test that each is documented."""
    plain = [name for name in _READERS if name not in _TABLES]
    return (*plain, *(f"quota.{name}" for name in _QUOTA_READERS))
