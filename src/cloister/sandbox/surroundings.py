"""The environment variables a program starts with."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from cloister.model import Environment, SandboxId, User, parse_env, require_exec_fits
from cloister.wire.messages import encode_strings

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_NAMES = {0: "root", 1000: "user"}
_HOMES = {0: "/root", 1000: "/home/user"}


class Surroundings:
    """What every program of a sandbox finds, packed once for each user."""

    def __init__(self, id: SandboxId, image: Mapping[str, str], policy: Environment) -> None:
        self._id = id
        self._image = image
        self._policy = policy
        self._provided: Mapping[str, str] = {}
        self._known: dict[tuple[User, bool], tuple[dict[str, str], bytes]] = {}

    def provide(self, variables: Mapping[str, str]) -> None:
        """Add what the sandbox was provided with; what the policy says itself goes before it."""
        self._provided = variables
        self._known.clear()

    def of(
        self,
        argv: Sequence[bytes],
        user: User,
        *,
        terminal: bool,
        further: Mapping[str, str] | None,
    ) -> bytes:
        """Return the packed environment, with `further` variables over the usual ones."""
        if further is None:
            return self._of_user(user, terminal)[1]
        variables = {**self._of_user(user, terminal)[0], **parse_env(further)}
        require_exec_fits(argv, variables)
        return _pack(variables)

    def variables(
        self, argv: Sequence[bytes], user: User, further: Mapping[str, str] | None
    ) -> Mapping[str, str]:
        """Return the same as names and values, for what has no terminal."""
        variables = {**self._of_user(user, False)[0], **parse_env(further or {})}
        require_exec_fits(argv, variables)
        return variables

    def _of_user(self, user: User, terminal: bool) -> tuple[dict[str, str], bytes]:
        known = self._known.get((user, terminal))
        if known is None:
            variables = {
                **self._usual(user, terminal),
                **self._image,
                **self._provided,
                **self._policy,
            }
            require_exec_fits((), variables)
            known = self._known[user, terminal] = variables, _pack(variables)
        return known

    def _usual(self, user: User, terminal: bool) -> dict[str, str]:
        name = _NAMES.get(user.uid, "nobody")
        variables = {
            "PATH": _PATH,
            "HOME": _HOMES.get(user.uid, "/tmp"),  # noqa: S108
            "USER": name,
            "LOGNAME": name,
            "SHELL": "/bin/sh",
            "LANG": "C.UTF-8",
            "CLOISTER": self._id,
        }
        if terminal:
            variables["TERM"] = "xterm-256color"
        return variables


def _pack(variables: Mapping[str, str]) -> bytes:
    return encode_strings([os.fsencode(f"{name}={value}") for name, value in variables.items()])
