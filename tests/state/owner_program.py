"""A process that owns sandboxes and does with them what each line of its input says."""

from __future__ import annotations

import asyncio
import atexit
import importlib
import json
import os
import socket
import sys
import traceback
from typing import Any

from cloister import Limits, Sandbox
from cloister.node import open_store

SANDBOXES: dict[str, Sandbox] = {}


async def main() -> None:
    reader = asyncio.StreamReader(limit=2**24)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    try:
        while line := await reader.readline():
            action, arguments, settings = json.loads(line)
            try:
                answer = {"value": await ACTIONS[action](*arguments, **settings)}
            except Exception as error:
                answer = {"error": [type(error).__name__, str(error)]}
            print(json.dumps(answer), flush=True)
    finally:
        await asyncio.gather(*(sandbox.stop() for sandbox in SANDBOXES.values()))


async def open_one(handle: str, **settings: Any) -> str:
    """Open a sandbox under a handle; `limits` as a table."""
    SANDBOXES[handle] = await Sandbox(**with_limits(settings)).open()
    return SANDBOXES[handle].id


def with_limits(settings: dict[str, Any]) -> dict[str, Any]:
    limits = settings.pop("limits", None)
    return settings if limits is None else {**settings, "limits": Limits(**limits)}


async def fork(snapshot: str, *handles: str, **settings: Any) -> None:
    """Fork a snapshot into as many sandboxes as there are handles."""
    forks = await Sandbox.fork(snapshot, len(handles), **with_limits(settings))
    SANDBOXES.update(zip(handles, forks, strict=True))


async def stop(handle: str) -> None:
    await SANDBOXES.pop(handle).stop()


async def run(handle: str, command: Any, **settings: Any) -> list[Any]:
    result = await SANDBOXES[handle].run(command, **settings)
    return [result.exit_code, result.stdout, result.stderr, result.reason.value]


async def start(handle: str, command: Any, **settings: Any) -> None:
    """Start a program and return when it has said something."""
    process = await SANDBOXES[handle].start(command, **settings)
    await anext(aiter(process.stdout))


async def snapshot(handle: str, name: str | None = None) -> list[Any]:
    taken = await SANDBOXES[handle].snapshot(name)
    return [taken.id, taken.method]


async def rewind(handle: str, to: str | int) -> str:
    return (await SANDBOXES[handle].rewind(to)).id


async def snapshots(handle: str) -> list[Any]:
    return [[each.id, each.name, each.step] for each in await SANDBOXES[handle].snapshots()]


async def diff(handle: str, below: str) -> list[str]:
    changes = await SANDBOXES[handle].diff(below)
    return [f"{change.kind.value} {change.path.decode()}" for change in changes]


async def pause(handle: str) -> None:
    await SANDBOXES[handle].pause()


async def resume(handle: str) -> None:
    await SANDBOXES[handle].resume()


async def collect() -> list[str]:
    store = await open_store()
    return list((await asyncio.to_thread(store.collect)).trees)


ACTIONS = {
    "open": open_one,
    **{
        action.__name__: action
        for action in (
            *(fork, stop, run, start, snapshot, rewind, snapshots, diff, pause, resume, collect),
        )
    },
}


def serve_nursery(number: int) -> None:
    """Fork owners that have everything loaded, each with the two descriptors that are sent.

    To start a program and load it takes longer than most of what it is then told to do.
    """
    for name in LOADED:
        importlib.import_module(name)
    link = socket.socket(fileno=number)
    while True:
        message, descriptors, _, _ = socket.recv_fds(link, 32, 2, socket.MSG_CMSG_CLOEXEC)
        if not message:
            return
        if not descriptors:
            _, status = os.waitpid(int(message), 0)
            link.send(str(os.waitstatus_to_exitcode(status)).encode())
            continue
        pid = os.fork()
        if pid == 0:
            link.close()
            os._exit(be_owner(*descriptors))
        for each in descriptors:
            os.close(each)
        link.send(str(pid).encode())


def be_owner(reading: int, writing: int) -> int:
    os.dup2(reading, 0)
    os.dup2(writing, 1)
    os.close(reading)
    os.close(writing)
    try:
        asyncio.run(main())
        # What an end of the program would do, and os._exit does not.
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


LOADED = (
    "cloister.store.store",
    "cloister.node.workspace",
    "cloister.node.control_listener",
    "cloister.sandbox.recording",
    "cloister.sandbox.state",
)

if __name__ == "__main__":
    if len(sys.argv) > 1:
        serve_nursery(int(sys.argv[1]))
    else:
        asyncio.run(main())
