"""`cloister start` and `cloister stop`: a process in the background that runs a kept sandbox."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cloister.cli import session
from cloister.cli.kept import find_kept, find_running, parse_with_kept, require_running, told_busy
from cloister.cli.neutral import neutralise
from cloister.cli.options import holding_options
from cloister.cli.progress import Waiting
from cloister.errors import CloisterError, HostError, RequestError
from cloister.model import UNLIMITED, parse_name, quote
from cloister.node import open_store
from cloister.node.control_channel import describe_error, error_from
from cloister.node.control_place import log_of
from cloister.sandbox import Sandbox

if TYPE_CHECKING:
    from cloister.store import Store

_LOG_SHOWN = 400


@click.command()
@holding_options
@click.option("--json", "as_json", is_flag=True, help="Print what was started as one JSON object.")
@click.argument("name")
def start(name: str, as_json: bool, **options: Any) -> int:
    """Run the kept sandbox NAME in the background until `cloister stop`.

    It is made if there is none of that name. Other commands reach it by its name while it runs.
    Its lifetime is unlimited unless one is named.

    For example: `cloister start task-42 && cloister exec task-42 -- make test`
    """
    parse_name(name, "the name of a kept sandbox")
    return session.run_until_signal(lambda: _start(name, options, as_json))


async def _start(name: str, options: dict[str, Any], as_json: bool) -> int:
    remote = await find_running(name)
    if remote is not None:
        pid = (await remote.describe()).pid
        raise RequestError(f"{quote(name)} is running already, in process {pid}")
    # Wrong options are told here and now, not in the log of a process that did not start.
    await parse_with_kept({**options, "keep": name}, {"lifetime": UNLIMITED})
    store = await open_store()
    log = await asyncio.to_thread(log_of, store.directory, name)
    with Waiting(f"starting {name}"):
        described = await _hold_in_background(_arguments(name, options), log)
    if as_json:
        click.echo(json.dumps({"name": name, **described, "log": str(log)}))
    else:
        click.echo(f"{name} is running in process {described['pid']}")
    return 0


async def resume_in_background(store: Store, name: str) -> None:
    """Have a process hold the kept sandbox of that name, going on from its saved memory."""
    log = await asyncio.to_thread(log_of, store.directory, name)
    await _hold_in_background(["--from-memory", "--", name], log)


def _arguments(name: str, options: dict[str, Any]) -> list[str]:
    """Return the options as they were written, for the process that holds the sandbox."""
    known = {each.name: each for each in start.params if isinstance(each, click.Option)}
    words: list[str] = []
    for key, value in options.items():
        option = known[key]
        for each in value if isinstance(value, tuple) else (value,):
            if each is None:
                continue
            if option.secondary_opts:
                is_on = each in (True, "on")
                words.append((option.opts if is_on else option.secondary_opts)[0])
            else:
                words += [option.opts[0], str(each)]
    return [*words, "--", name]


async def _hold_in_background(arguments: Sequence[str], log: Path) -> dict[str, Any]:
    ready, telling = os.pipe2(os.O_CLOEXEC)
    try:
        with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as output:
            # -P: nothing is imported from the directory we are in, which an agent may have filled.
            python = [sys.executable, "-P", "-m", "cloister"]
            command = [*python, "hold", "--ready-fd", str(telling)]
            holder = subprocess.Popen(
                [*command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(telling,),
                # Away from our terminal and its signals: it outlives both.
                start_new_session=True,
            )
    finally:
        os.close(telling)
    try:
        said = await asyncio.to_thread(_read_all, ready)
    except asyncio.CancelledError:
        holder.terminate()
        raise
    if not said:
        holder.wait()
        raise HostError(
            f"the process that was to run it ended with {holder.returncode}: {_end_of(log)}"
        )
    answer = json.loads(said)
    if "error" in answer:
        holder.wait()
        raise error_from(answer["error"])
    return {"pid": holder.pid, **answer["ok"]}


def _read_all(ready: int) -> bytes:
    with open(ready, "rb") as file:
        return file.read()


def _end_of(log: Path) -> str:
    text = " ".join(log.read_text(errors="replace").split())
    return neutralise(text[-_LOG_SHOWN:]) if text else f"it said nothing in {log}"


@click.command(hidden=True)
@holding_options
@click.option("--ready-fd", type=int, help="Where to say that it runs, or why it does not.")
@click.option("--from-memory", is_flag=True, help="Go on from where it was paused on the disk.")
@click.argument("name")
def hold(name: str, ready_fd: int | None, from_memory: bool, **options: Any) -> int:
    """Run the kept sandbox NAME until it is stopped; what `start` leaves in the background."""
    options["keep"] = name
    return session.run_until_signal(lambda: _hold(name, ready_fd, from_memory, options))


async def _hold(name: str, ready_fd: int | None, from_memory: bool, options: dict[str, Any]) -> int:
    try:
        wanted = await parse_with_kept(options, {"lifetime": UNLIMITED})
        label = wanted.label or name
        with told_busy(name):
            if from_memory:
                sandbox = await Sandbox.resumed(name, label=label)
            else:
                sandbox = Sandbox(wanted.policy, label=label, keep=name, template=wanted.template)
                await sandbox.open()
    except CloisterError as error:
        _tell(ready_fd, {"error": describe_error(error)})
        return 1
    try:
        try:
            if not from_memory:
                await session.fill(sandbox, wanted)
        except CloisterError as error:
            _tell(ready_fd, {"error": describe_error(error)})
            return 1
        # The directory it was started in may be removed, or be on a disk to be unmounted.
        os.chdir("/")
        _tell(ready_fd, {"ok": {"sandbox": sandbox.id}})
        await sandbox.wait_ended()
    finally:
        await sandbox.stop()
    return 0


def _tell(ready_fd: int | None, message: dict[str, Any]) -> None:
    if ready_fd is not None:
        with open(ready_fd, "wb") as file:
            file.write(json.dumps(message).encode())


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print what was stopped as one JSON object.")
@click.argument("name")
def stop(name: str, as_json: bool) -> int:
    """End the kept sandbox NAME, whichever process runs it; its disk stays.

    For example: `cloister stop task-42`
    """
    return session.run_until_signal(lambda: _stop(name, as_json))


async def _stop(name: str, as_json: bool) -> int:
    pid = await stop_running(name)
    if as_json:
        click.echo(json.dumps({"name": name, "pid": pid}))
    else:
        click.echo(f"{name} is stopped")
    return 0


async def stop_running(name: str) -> int:
    """End a kept sandbox that runs, and return which process ran it."""
    await find_kept(name)
    remote = await require_running(name)
    pid = (await remote.describe()).pid
    with Waiting(f"stopping {name}"):
        await remote.stop()
    return pid
