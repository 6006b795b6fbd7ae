"""Hands a module to a server that has the sandbox, and keeps what it prints there."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cloister.errors import GuestGone, ProtocolViolation, RequestError
from cloister.model import Result, parse_bytes, parse_cwd, parse_env
from cloister.remote.client import problem_error
from cloister.sandbox.modules import MAX_MODULE_BYTES, MAX_STDIN_BYTES, Say, read_module
from cloister.sandbox.remote_process import read_result

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

    from cloister.sandbox.remote import RemoteSandbox

_PIECE_BYTES = 256 * 1024


async def run_module_there(
    sandbox: RemoteSandbox,
    module: bytes | os.PathLike[str] | None,
    arguments: Sequence[str],
    *,
    name: str = "module.wasm",
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | str | None = None,
    stdin: bytes | str | None = None,
    output: int | None = None,
    say: Say | None = None,
) -> Result:
    """Run a module to its end, as `run_module` of a sandbox that is here."""
    if isinstance(module, os.PathLike):
        name = os.path.basename(os.fspath(module))
        module = await asyncio.to_thread(read_module, module)
    data = stdin.encode() if isinstance(stdin, str) else bytes(stdin or b"")
    for what, size, most in (
        ("the module", len(module or b""), MAX_MODULE_BYTES),
        ("stdin", len(data), MAX_STDIN_BYTES),
    ):
        if size > most:
            raise RequestError(f"{what} has {size} bytes; the most is {most}")
    kept = sandbox.policy.limits.output if output is None else parse_bytes(output, "output")
    call: dict[str, Any] = {"name": name, "arguments": list(arguments)}
    call |= {"module_bytes": None if module is None else len(module), "stdin_bytes": len(data)}
    if cwd is not None:
        call["cwd"] = parse_cwd(os.fspath(cwd))
    if env is not None:
        call["env"] = dict(parse_env(env))
    if timeout is not None:
        call["timeout"] = timeout
    with sandbox.told_gone():
        socket = await sandbox.client.open_socket(f"{sandbox.place}/modules/own")
    from websockets.exceptions import ConnectionClosed

    try:
        await socket.send(json.dumps(call))
        for part in (module or b"", data):
            for at in range(0, len(part), _PIECE_BYTES):
                await socket.send(part[at : at + _PIECE_BYTES])
        return await _heard(socket, kept, say)
    except ConnectionClosed:
        raise GuestGone("the connection to the server is gone", reason="lost") from None
    finally:
        await socket.close()


async def _heard(socket: ClientConnection, kept_bytes: int, say: Say | None) -> Result:
    kept = {1: bytearray(), 2: bytearray()}
    async for message in socket:
        if isinstance(message, bytes):
            stream, data = message[0] if message else 0, message[1:]
            if stream not in kept:
                raise ProtocolViolation(f"the server speaks of stream {stream}")
            kept[stream] += data[: max(0, kept_bytes - len(kept[stream]))]
            if say is not None:
                await say(stream, data)
            continue
        said = json.loads(message)
        if "error" in said:
            raise problem_error(said["error"])
        return _with_output(read_result(said["ended"]), bytes(kept[1]), bytes(kept[2]))
    raise GuestGone("the server ended the call", reason="ended")


def _with_output(result: Result, out: bytes, err: bytes) -> Result:
    return Result(
        exit_code=result.exit_code,
        signal=result.signal,
        reason=result.reason,
        stdout_bytes=out,
        stderr_bytes=err,
        stdout_truncated=result.stdout_total > len(out),
        stderr_truncated=result.stderr_total > len(err),
        stdout_total=result.stdout_total,
        stderr_total=result.stderr_total,
        wall_s=result.wall_s,
        usage=result.usage,
    )
