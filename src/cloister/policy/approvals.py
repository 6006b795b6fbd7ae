"""How a person is asked, how long that waits, and which acts on the host wait for one too."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any
from urllib.parse import urlsplit

from cloister.errors import RequestError
from cloister.model import format_duration, parse_duration, quote
from cloister.policy.effect import Effect

_LONGEST_S = 24 * 3600.0
_PRINTABLE = re.compile(r"[!-~]{1,2000}")
_VARIABLE = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]{0,99}")
_OWN_HOSTS = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True, init=False)
class Approvals:
    """How questions are put: for how long, to which address besides, and with which token.

    `snapshot` has the disk of a sandbox that has one saved before what waits is let through.
    """

    wait_s: float
    webhook: str | None
    token: str | None
    snapshot: bool

    def __init__(
        self,
        *,
        wait: float | str = "5m",
        webhook: str | None = None,
        token: str | None = None,
        snapshot: bool = True,
    ) -> None:
        wait_s = parse_duration(wait, "wait")
        if not 0 < wait_s <= _LONGEST_S:
            raise RequestError(f"wait is {quote(wait)}; it may be up to 24h")
        if not isinstance(snapshot, bool):
            raise RequestError(f"snapshot is {quote(snapshot)}; write true or false")
        object.__setattr__(self, "wait_s", wait_s)
        object.__setattr__(self, "webhook", None if webhook is None else _parse_url(webhook))
        object.__setattr__(self, "token", None if token is None else _parse_token(token))
        object.__setattr__(self, "snapshot", snapshot)

    def as_dict(self) -> dict[str, Any]:
        """Return it as the table of a policy file; empty where it is the usual one."""
        usual = Approvals()
        return {
            **({} if self.wait_s == usual.wait_s else {"wait": format_duration(self.wait_s)}),
            **({} if self.webhook is None else {"webhook": self.webhook}),
            **({} if self.token is None else {"token": self.token}),
            **({} if self.snapshot else {"snapshot": False}),
        }


APPROVALS_KEYS = ("wait", "webhook", "token", "snapshot")


@dataclass(frozen=True, slots=True, init=False)
class Gates:
    """Which acts that take something out of a kept sandbox wait for a person."""

    apply: Effect
    export: Effect

    def __init__(
        self, *, apply: Effect | str = Effect.ALLOW, export: Effect | str = Effect.ALLOW
    ) -> None:
        for name, value in (("apply", apply), ("export", export)):
            if value not in (Effect.ALLOW.value, Effect.ASK.value, Effect.DENY.value):
                raise RequestError(f"{name} is {quote(value)}; it may be allow, ask, deny")
            object.__setattr__(self, name, Effect(value))

    def as_dict(self) -> dict[str, Any]:
        """Return it as the table of a policy file; empty where nothing waits."""
        stated = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value.value for name, value in stated.items() if value is not Effect.ALLOW}


GATE_KEYS: tuple[str, ...] = tuple(each.name for each in fields(Gates))


def _parse_url(value: object) -> str:
    parts = urlsplit(value) if isinstance(value, str) and _PRINTABLE.fullmatch(value) else None
    host = None if parts is None else parts.hostname
    if parts is None or not host or parts.username is not None or parts.fragment:
        raise RequestError(f'webhook is {quote(value)}; write "https://host/path"')
    if parts.scheme != "https" and not (parts.scheme == "http" and host in _OWN_HOSTS):
        # Whoever reads or changes what passes on the way would be the one who answers.
        raise RequestError(f"webhook is {quote(value)}; only https, or http on this host")
    return str(value)


def _parse_token(value: object) -> str:
    if not isinstance(value, str) or _VARIABLE.fullmatch(value) is None:
        # Not quoted: somebody may have written the token itself here.
        raise RequestError('token is no source; write "env:VARIABLE"')
    return value
