"""What the options of a command add up to: a policy, and what is done around it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from cloister.cli.options import COUNTED_LIMITS, LIMIT_OPTIONS
from cloister.errors import PolicyError, RequestError
from cloister.model import (
    Limits,
    Mount,
    MountMode,
    VolumeMount,
    parse_absolute_path,
    parse_mount,
    parse_name,
    parse_user,
    parse_volume,
    quote,
)
from cloister.policy import DirectoryRoot, Egress, ImageRoot, Policy, Root, Storage, load_policy

Shown = TypeVar("Shown", Mount, VolumeMount)

_CHOICES = (
    "profile",
    "trust",
    "runtime",
    "require",
    "second_layer",
    "storage",
    "history",
    "ledger",
)

# What of a sandbox that runs already can still be said for one command.
_OF_ONE_COMMAND = {"variables", "user", "wall", "output", "cwd", "keep", "label", "usage"}

# Options whose values go by another name than they do.
_FLAGS = {"policy_file": "policy", "copies": "copy", "mounts": "mount", "volumes": "volume"}
_FLAGS |= {"outs": "out", "allowed": "allow"}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the options ask for; `fixed` are those that a sandbox cannot be given any more.

    With `once` the variables, the user and the limits are those of one command alone.
    """

    policy: Policy
    limits: Limits
    copies: tuple[Mount, ...]
    outs: tuple[tuple[str, Path], ...]
    cwd: str | None
    label: str | None
    usage: bool
    keep: str | None
    env: Mapping[str, str]
    user: str | None
    fixed: tuple[str, ...]
    template: str | None = None
    once: bool = False


def parse_options(
    options: Mapping[str, Any],
    kept: Policy | None = None,
    defaults: Mapping[str, str] | None = None,
) -> Wanted:
    """Return what the options ask for, on top of a policy file or of what is kept.

    `defaults` are limits for where nothing else names them.
    """
    path = options["policy_file"]
    policy = Policy() if kept is None else kept
    if path is not None:
        policy = load_policy(path)
    changes: dict[str, Any] = {name: options[name] for name in _CHOICES if options[name]}
    limits = {} if path is not None else _unnamed(policy.limits, defaults or {})
    limits |= _limits(options)
    if limits:
        changes["limits"] = policy.limits.replace(**limits)
    given = [_mount(text) for text in options["mounts"]]
    given += [parse_mount(text, MountMode.COPY) for text in options["copies"]]
    mounts = [*_without(policy.mounts, given, kept), *given]
    variables = dict(_variable(text) for text in options["variables"])
    if variables:
        changes["env"] = {**policy.env, **variables}
    if options["user"] is not None:
        changes["user"] = parse_user(options["user"], "--user")
    root = _root(options["root"], options["image"])
    if root is not None:
        changes["root"] = root
    if options["volumes"]:
        volumes = [parse_volume(text) for text in options["volumes"]]
        changes["volumes"] = [*_without(policy.volumes, volumes, kept), *volumes]
    if options["allowed"]:
        changes["egress"] = _egress(policy.egress, options["allowed"])
    keep = None if options.get("keep") is None else parse_name(options["keep"], "--keep")
    if keep is not None and not policy.storage_is_stated:
        changes.setdefault("storage", Storage.DISK)
    # Judged together, and then copies are made by us, who can show how far they are.
    whole = policy.replace(**changes, mounts=mounts)
    if keep is not None and whole.storage is not Storage.DISK:
        raise RequestError(
            f'--keep {keep} with storage "{whole.storage.value}", of which nothing is left; '
            "add --storage disk"
        )
    shown = tuple(mount for mount in whole.mounts if mount.mode is not MountMode.COPY)
    return Wanted(
        policy=whole.replace(mounts=shown),
        limits=whole.limits,
        copies=tuple(mount for mount in whole.mounts if mount.mode is MountMode.COPY),
        outs=tuple(_out(text) for text in options.get("outs", ())),
        cwd=options.get("cwd"),
        label=options["label"],
        usage=options.get("usage", False),
        keep=keep,
        env=variables,
        user=options["user"],
        fixed=tuple(_flag(name) for name, value in options.items() if _is_fixed(name, value)),
        template=options.get("template"),
    )


def _flag(name: str) -> str:
    return "--" + _FLAGS.get(name, name).replace("_", "-")


def _is_fixed(name: str, value: object) -> bool:
    return name not in _OF_ONE_COMMAND and value not in (None, (), False)


def _unnamed(limits: Limits, defaults: Mapping[str, str]) -> dict[str, Any]:
    """Return the defaults for limits that nobody has set, here or when it was kept."""
    usual = Limits()
    return {
        name: value
        for name, value in defaults.items()
        if getattr(limits, name) == getattr(usual, name)
    }


def _without(old: Sequence[Shown], new: Sequence[Shown], kept: Policy | None) -> list[Shown]:
    # On top of what is kept, the same target means the new one; in a file it is a mistake.
    targets = set() if kept is None else {each.target for each in new}
    return [each for each in old if each.target not in targets]


def _limits(options: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for flag, name, _, _ in LIMIT_OPTIONS:
        text = options[name]
        if text is None:
            continue
        if name in COUNTED_LIMITS:
            if not text.isdecimal() or not text.isascii():
                raise RequestError(f"{flag} is {quote(text)}; write a whole number")
            found[name] = int(text)
        else:
            found[name] = text
        try:
            Limits(**{name: found[name]})
        except RequestError as error:
            # The same words, about the option instead of the field.
            raise RequestError(flag + str(error).removeprefix(name)) from error
    return found


def _mount(text: str) -> Mount:
    # Read-only where no mode is named: a copy has an option of its own.
    if text.rpartition(":")[2].startswith("/"):
        return parse_mount(text, MountMode.READ)
    return parse_mount(text)


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise RequestError(f"--env is {quote(text)}; write it as NAME=VALUE")
    return name, value


def _root(directory: str | None, image: str | None) -> Root | None:
    if directory is not None and image is not None:
        raise RequestError("--root and --image each name a root filesystem; keep one of them")
    if image is not None:
        try:
            return ImageRoot(image)
        except PolicyError as error:
            raise RequestError("--image" + error.message.removeprefix("root.image")) from error
    if directory is None:
        return None
    path = Path(directory).resolve()
    if not path.is_dir():
        raise RequestError(f"--root {quote(directory)} is not a directory; name one")
    return DirectoryRoot(path)


def _egress(before: Egress | None, allowed: Sequence[str]) -> Egress:
    """Return what may be reached: what the policy says, and what was added to it."""
    known, private = ((), ()) if before is None else (before.allow, before.private)
    try:
        added = Egress(allowed).allow
    except RequestError as error:
        # The same words, about the option instead of the field.
        raise RequestError("--allow" + str(error).removeprefix("egress.allow")) from error
    rules, budget = ((), None) if before is None else (before.rules, before.budget)
    return Egress(tuple(dict.fromkeys((*known, *added))), private, rules, budget)


def _out(text: str) -> tuple[str, Path]:
    # Read from the left: SRC is inside and holds no colon, DST on the host may.
    source, colon, target = text.partition(":")
    if not colon or not target:
        raise RequestError(f"--out is {quote(text)}; write it as SRC:DST, SRC being inside")
    return parse_absolute_path(source, "--out source"), Path(target)


def limit_flag(limit: str) -> str:
    """Return the option that raises a limit."""
    return next((flag for flag, name, _, _ in LIMIT_OPTIONS if name == limit), f"--{limit}")


def command_words(command: Sequence[str]) -> str | None:
    """Return advice for what is often meant by a program that is not there."""
    if len(command) == 1 and any(character in command[0] for character in " |&;<>$"):
        return "for a shell line, use: sh -c '...'"
    if command and "/" in command[0] and os.path.isfile(command[0]):
        within = os.getcwd() != "/" and not os.path.relpath(command[0]).startswith("..")
        way = "--copy .:/workspace has this directory there" if within else "copy it in with --copy"
        return f"the host's {quote(command[0])} is not shown inside: {way}"
    return None
