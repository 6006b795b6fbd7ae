"""`cloister setup`: root gives a person the control groups that limits need."""

from __future__ import annotations

import json
import os
import pwd
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from cloister.errors import HostError, NotFound, RequestError, Unsupported
from cloister.model import quote
from cloister.runtime.namespace.cgroups import CONTROLLERS
from cloister.runtime.namespace.layout import Hierarchy, delegated_name, read_hierarchies

# What the kernel's documents name as the files of a delegated group. The limit files of the group
# itself stay root's: whoever could write those would lift the limits they are under.
_DELEGATED = ("cgroup.procs", "cgroup.threads", "cgroup.subtree_control", "tasks")
_SYSTEMD = (
    "with systemd and version 2 a user session works without this command: put Delegate=cpu memory"
    " pids into /etc/systemd/system/user@.service.d/delegate.conf under [Service], run"
    " `systemctl daemon-reload`, and log in again"
)


@dataclass(frozen=True, slots=True)
class Done:
    """One thing that was done, was done already, or is left to the reader."""

    kind: str
    what: str


@click.group(invoke_without_command=True)
@click.option("--user", metavar="NAME", help="Whom to give it to; unless named, who ran sudo.")
@click.option("--json", "as_json", is_flag=True, help="Print what was done as a JSON list.")
@click.pass_context
def setup(command: click.Context, user: str | None, as_json: bool) -> None:
    """Let a person who is not root limit the memory, processors and processes of sandboxes.

    Run it as root. In each hierarchy of control groups it makes a group that belongs to that
    person, and says what else is missing. It may be run again; the groups last until the next
    boot.
    """
    if command.invoked_subcommand is not None:
        return
    person = _person(user)
    if os.geteuid() != 0:
        raise Unsupported("setup needs root; run it with sudo")
    done = [*delegate(person, read_hierarchies()), *look_at_ids(person), Done("note", _SYSTEMD)]
    if as_json:
        click.echo(json.dumps([asdict(one) for one in done]))
    else:
        for one in done:
            click.echo(f"{one.kind}: {one.what}")


def _person(name: str | None) -> pwd.struct_passwd:
    given = name or os.environ.get("SUDO_USER")
    if given is None:
        raise RequestError("setup needs to know for whom; name a person with --user")
    try:
        person = pwd.getpwuid(int(given)) if given.isdecimal() else pwd.getpwnam(given)
    except KeyError:
        raise NotFound(f"no user {quote(given)} on this host; check the name", what=given) from None
    if person.pw_uid == 0:
        raise RequestError("root needs no setup; name an ordinary user with --user")
    return person


def delegate(person: pwd.struct_passwd, hierarchies: list[Hierarchy]) -> Iterator[Done]:
    """Make a group of the person's own in each hierarchy, and yield what was done."""
    if not hierarchies:
        yield Done("missing", "no cgroup hierarchy is mounted; mount one at /sys/fs/cgroup")
    covered: set[str] = set()
    for hierarchy in hierarchies:
        group = hierarchy.mount / delegated_name(person.pw_uid)
        try:
            if not hierarchy.controllers:
                yield from _pass_controllers(hierarchy.mount)
            there = group.is_dir()
            group.mkdir(mode=0o755, exist_ok=True)
            for path in (group, *(group / name for name in _DELEGATED)):
                if path.exists():
                    os.chown(path, person.pw_uid, person.pw_gid)
        except OSError as error:
            raise HostError(
                f"{group} cannot be made: {error.strerror}; "
                "in a container, give it a writable /sys/fs/cgroup"
            ) from error
        covered |= hierarchy.controllers or _offered(group)
        yield Done("kept" if there else "made", f"{group} for {person.pw_name}")
    for controller in CONTROLLERS:
        if controller not in covered:
            yield Done("missing", f"no hierarchy offers the {controller} controller")


def _pass_controllers(mount: Path) -> Iterator[Done]:
    """Let groups below the top of the unified hierarchy have the controllers that are in it."""
    control = mount / "cgroup.subtree_control"
    passed = set(control.read_text().split())
    for controller in CONTROLLERS:
        if controller in _offered(mount) and controller not in passed:
            control.write_text(f"+{controller}")
            yield Done("made", f"{controller} available below {mount}")


def _offered(group: Path) -> set[str]:
    return set((group / "cgroup.controllers").read_text().split())


def look_at_ids(person: pwd.struct_passwd) -> Iterator[Done]:
    """Yield whether the person has ids of their own to give to sandboxes."""
    for file, flag in (("/etc/subuid", "--add-subuids"), ("/etc/subgid", "--add-subgids")):
        if _has_range(Path(file), person):
            yield Done("kept", f"{file} has a range for {person.pw_name}")
        else:
            yield Done(
                "missing",
                f"{file} has no range for {person.pw_name}: one id inside must do; "
                f"add one with `usermod {flag} 100000-165535 {person.pw_name}`",
            )
    if shutil.which("newuidmap") and shutil.which("newgidmap"):
        yield Done("kept", "newuidmap and newgidmap are installed")
    else:
        yield Done("missing", "newuidmap is not installed; install the package uidmap")


def _has_range(file: Path, person: pwd.struct_passwd) -> bool:
    if not file.exists():
        return False
    owners = {line.partition(":")[0] for line in file.read_text(errors="replace").splitlines()}
    return bool(owners & {person.pw_name, f"{person.pw_uid}"})
