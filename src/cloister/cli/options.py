"""The options that say what a sandbox is, shared by all commands that start one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from cloister.model import Profile, Trust
from cloister.policy import History, Requirement, RuntimeName, SecondLayer, Storage

F = TypeVar("F", bound=Callable[..., Any])

# (option, limit, metavar, help); the order is that of `--help` and of the documents.
LIMIT_OPTIONS = (
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
COUNTED_LIMITS = {"pids", "inodes", "open_files"}


Option = Callable[[Any], Any]


def sandbox_options(function: F) -> F:
    """Add the options of a command that runs something in a sandbox of its own."""
    return _add((*_of_the_sandbox(), *_of_the_session()), function)


def holding_options(function: F) -> F:
    """Add the options of a command that only makes the sandbox."""
    return _add(_of_the_sandbox(), function)


def _add(options: Sequence[Option], function: F) -> F:
    for option in reversed(options):
        function = option(function)
    return function


def _of_the_session() -> list[Option]:
    return [
        click.option("--cwd", metavar="DIR", help="Working directory inside."),
        click.option(
            "--keep",
            metavar="NAME",
            help="Keep the sandbox's disk under a name, or go on with the one kept so.",
        ),
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


def _of_the_sandbox() -> list[Option]:
    return [
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
        click.option(
            "--allow",
            "allowed",
            metavar="HOST[:PORT]",
            multiple=True,
            help="Let it reach a host; without a port, 443 and 80. Repeatable.",
        ),
        click.option(
            "--env",
            "variables",
            metavar="NAME=VALUE",
            multiple=True,
            help="Set a variable inside. Nothing of the caller's environment is. Repeatable.",
        ),
        *(
            click.option(flag, name, metavar=metavar, help=text)
            for flag, name, metavar, text in LIMIT_OPTIONS
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
            "--runtime",
            type=click.Choice([name.value for name in RuntimeName]),
            help="The wall by name; refused where it is weaker than the trust asks for.",
        ),
        click.option(
            "--require",
            type=click.Choice([each.value for each in Requirement]),
            help="What the wall must be; own-kernel is a kernel other than the host's.",
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
            "--template",
            metavar="NAME[:VERSION]",
            help="Start from a template: its image, its policy, its program.",
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
            "--ledger/--no-ledger",
            "ledger",
            default=None,
            callback=_ledger_mode,
            help="Record what happens, or do not; unless named, what is kept or has a way out.",
        ),
        click.option(
            "--second-layer",
            type=click.Choice([layer.value for layer in SecondLayer]),
            help="The wall behind the wall.",
        ),
        click.option("--label", metavar="TEXT", help="A name for `cloister ps`."),
    ]


def _ledger_mode(command: click.Context, option: click.Parameter, on: bool | None) -> str | None:
    return None if on is None else "on" if on else "off"


def limit_flag(limit: str) -> str:
    """Return the option that raises a limit."""
    return next((flag for flag, name, _, _ in LIMIT_OPTIONS if name == limit), f"--{limit}")
