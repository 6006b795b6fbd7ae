"""The options that `run` and `shell` share, and the policy they add up to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from cloister.errors import PolicyError, RequestError
from cloister.model import (
    Limits,
    Mount,
    MountMode,
    Profile,
    Trust,
    parse_absolute_path,
    parse_mount,
    parse_name,
    parse_user,
    parse_volume,
    quote,
)
from cloister.policy import (
    DirectoryRoot,
    History,
    ImageRoot,
    Policy,
    Root,
    SecondLayer,
    Storage,
    load_policy,
)

F = TypeVar("F", bound=Callable[..., Any])

# (option, limit, metavar, help); the order is that of `--help` and of the documents.
_LIMITS = (
    ("--memory", "memory", "SIZE", 'Memory of everything inside, or "unlimited".'),
    ("--pids", "pids", "COUNT", "Processes and threads at once."),
    ("--cpus", "cpus", "NUMBER", 'Processors, such as 0.5, or "unlimited".'),
    (
        "--disk",
        "disk",
        "SIZE",
        'Bytes of the writable filesystem (they count as memory unless on disk), or "unlimited".',
    ),
    ("--inodes", "inodes", "COUNT", "Files and directories of the writable filesystem."),
    ("--open-files", "open_files", "COUNT", "Open files of each process."),
    ("--shm", "shm", "SIZE", "Bytes of /dev/shm."),
    ("--output", "output", "SIZE", "Output kept of each stream, with --json."),
    ("--timeout", "wall", "TIME", 'Wall time of the command, such as 60s, or "unlimited".'),
    ("--lifetime", "lifetime", "TIME", 'Wall time of the sandbox, or "unlimited".'),
)
_COUNTS = {"pids", "inodes", "open_files"}


def sandbox_options(function: F) -> F:
    """Add every option that says what the sandbox is."""
    options: list[Callable[[Any], Any]] = [
        click.option(
            "--policy",
            "policy_file",
            metavar="FILE",
            type=click.Path(dir_okay=False),
            help="Policy file; the other options change what it says.",
        ),
        click.option(
            "--copy",
            "copies",
            metavar="SRC:DST",
            multiple=True,
            help="Copy a host file or directory in before the start. Repeatable.",
        ),
        click.option(
            "--mount",
            "mounts",
            metavar="SRC:DST[:read|write]",
            multiple=True,
            help="Show a host directory inside; read-only unless it says write. Repeatable.",
        ),
        click.option(
            "--volume",
            "volumes",
            metavar="NAME:/TARGET[:read]",
            multiple=True,
            help="Show a volume inside, to be written to unless it says read. Repeatable.",
        ),
        click.option("--cwd", metavar="DIR", help="Working directory inside."),
        click.option(
            "--env",
            "variables",
            metavar="NAME=VALUE",
            multiple=True,
            help="Set a variable inside. Nothing of the caller's environment is. Repeatable.",
        ),
        *(
            click.option(flag, name, metavar=metavar, help=text)
            for flag, name, metavar, text in _LIMITS
        ),
        click.option(
            "--profile",
            type=click.Choice([profile.value for profile in Profile]),
            help="What the code inside may do to its own sandbox.",
        ),
        click.option("--user", metavar="USER", help="User inside: user, root, nobody, 1000:1000."),
        click.option(
            "--trust",
            type=click.Choice([trust.value for trust in Trust]),
            help="How far the code is trusted; picks the wall, or refuses.",
        ),
        click.option(
            "--root",
            "root",
            metavar="DIR",
            type=click.Path(),
            help="Use a host directory as root filesystem; it is not written to.",
        ),
        click.option(
            "--image",
            metavar="NAME",
            help="Use an image as root filesystem; it is not written to.",
        ),
        click.option(
            "--storage",
            type=click.Choice([storage.value for storage in Storage]),
            help="Where what is written inside lies; only on disk can it be snapshotted.",
        ),
        click.option(
            "--history",
            type=click.Choice([history.value for history in History]),
            help="When to take a snapshot unasked; each-run puts the storage on disk.",
        ),
        click.option(
            "--keep",
            metavar="NAME",
            help="Keep the sandbox's disk under a name, or go on with the one kept so.",
        ),
        click.option(
            "--second-layer",
            type=click.Choice([layer.value for layer in SecondLayer]),
            help="The wall behind the wall.",
        ),
        click.option("--label", metavar="TEXT", help="A name for `cloister ps`."),
        click.option(
            "--out",
            "outs",
            metavar="SRC:DST",
            multiple=True,
            help="Copy a file or directory out to the host afterwards. Repeatable.",
        ),
        click.option(
            "--usage", is_flag=True, help="Say on standard error what was used, at the end."
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return function


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the options ask for."""

    policy: Policy
    copies: tuple[Mount, ...]
    outs: tuple[tuple[str, Path], ...]
    cwd: str
    label: str | None
    usage: bool
    keep: str | None


def parse_options(options: dict[str, Any], **defaults: str) -> Wanted:
    """Return what the options ask for; `defaults` are limits for where nothing else names them."""
    path = options["policy_file"]
    policy = Policy() if path is None else load_policy(path)
    changes: dict[str, Any] = {
        name: options[name]
        for name in ("profile", "trust", "second_layer", "storage", "history")
        if options[name] is not None
    }
    limits = {} if path is not None else dict(defaults)
    limits |= _limits(options)
    if limits:
        changes["limits"] = policy.limits.replace(**limits)
    mounts = [*policy.mounts, *(_mount(text) for text in options["mounts"])]
    mounts += [parse_mount(text, MountMode.COPY) for text in options["copies"]]
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
        changes["volumes"] = [*policy.volumes, *volumes]
    keep = None if options["keep"] is None else parse_name(options["keep"], "--keep")
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
        copies=tuple(mount for mount in whole.mounts if mount.mode is MountMode.COPY),
        outs=tuple(_out(text) for text in options["outs"]),
        cwd="/workspace" if options["cwd"] is None else options["cwd"],
        label=options["label"],
        usage=options["usage"],
        keep=keep,
    )


def _limits(options: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for flag, name, _, _ in _LIMITS:
        text = options[name]
        if text is None:
            continue
        if name in _COUNTS:
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


def _out(text: str) -> tuple[str, Path]:
    # Read from the left: SRC is inside and holds no colon, DST on the host may.
    source, colon, target = text.partition(":")
    if not colon or not target:
        raise RequestError(f"--out is {quote(text)}; write it as SRC:DST, SRC being inside")
    return parse_absolute_path(source, "--out source"), Path(target)


def limit_flag(limit: str) -> str:
    """Return the option that raises a limit."""
    return next((flag for flag, name, _, _ in _LIMITS if name == limit), f"--{limit}")


def command_words(command: Sequence[str]) -> str | None:
    """Return advice for a whole shell line given as one word, which no program is called."""
    if len(command) == 1 and any(character in command[0] for character in " |&;<>$"):
        return "for a shell line, use: sh -c '...'"
    return None
