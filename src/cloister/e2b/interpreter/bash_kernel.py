"""A session of bash: one shell that stays, each cell evaluated in it."""

from __future__ import annotations

import asyncio
import base64
import codecs
import contextlib
import secrets
import signal
import time
from collections.abc import AsyncGenerator, Mapping

from cloister.e2b.interpreter.kernel import Frame, unavailable
from cloister.e2b.people import Person
from cloister.errors import CloisterError, GuestError, NotFound
from cloister.sandbox import Process, Sandbox
from cloister.wire.streams import Incoming

# An interrupt ends what the shell waits for, not the shell.
_BEGIN = "trap : INT\n"


class BashKernel:
    """One bash session."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._count = 0
        self._mark = b""
        self._frames: asyncio.Queue[Frame | None] = asyncio.Queue(maxsize=256)
        self._reading: list[asyncio.Future[None]] = []
        for stream, kind in ((process.stdout, "stdout"), (process.stderr, "stderr")):
            if stream is not None:
                self._reading.append(asyncio.ensure_future(self._follow(stream, kind)))

    @classmethod
    async def start(
        cls, sandbox: Sandbox, person: Person, variables: Mapping[str, str], cwd: str
    ) -> BashKernel:
        """Start a session."""
        try:
            process = await sandbox.start(
                ["bash", "--norc", "--noprofile"],
                cwd=cwd,
                env={**person.variables, **variables},
                user=person.user,
                stdin=True,
            )
        except NotFound:
            raise unavailable("bash", "the image has no bash; add it") from None
        if process.stdin is not None:
            await process.stdin.write(_BEGIN.encode())
        return cls(process)

    async def execute(self, code: str, variables: Mapping[str, str]) -> AsyncGenerator[Frame, None]:
        """Run a cell; yield what comes of it."""
        self._count += 1
        yield {"type": "number_of_executions", "execution_count": self._count}
        self._mark = secrets.token_hex(16).encode()
        if self._process.stdin is None or self._process.returncode is not None:
            raise GuestError("the shell has ended; restart its session")
        await self._process.stdin.write(_cell(code, variables, self._mark.decode()))
        async for frame in self._until_end():
            yield frame
        yield {"type": "end_of_execution"}

    async def _until_end(self) -> AsyncGenerator[Frame, None]:
        left = len(self._reading)
        while left:
            frame = await self._frames.get()
            if frame is None:
                raise GuestError("the shell has ended; restart its session")
            if frame["type"] == "mark":
                left -= 1
                status = frame["status"]
                if status not in ("", "0"):
                    words = f"exit status {status}"
                    yield {
                        "type": "error",
                        "name": "ExitStatus",
                        "value": words,
                        "traceback": words,
                    }
                continue
            yield frame

    async def _follow(self, stream: Incoming, kind: str) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        held = b""
        with contextlib.suppress(CloisterError):
            async for chunk in stream:
                held += chunk
                before, found, after = (
                    held.partition(self._mark) if self._mark else (held, b"", b"")
                )
                if found and b"\n" in after:
                    line, _, held = after.partition(b"\n")
                    await self._tell(kind, decoder.decode(before))
                    status = line.decode("ascii", "replace").strip()[:8]
                    await self._frames.put({"type": "mark", "status": status})
                    continue
                if found:
                    continue
                keep = min(len(held), len(self._mark) - 1) if self._mark else 0
                now, held = held[: len(held) - keep], held[len(held) - keep :]
                # Held back only if it can be the beginning of the mark.
                if held and not any(
                    self._mark.startswith(held[-n:]) for n in range(1, len(held) + 1)
                ):
                    now, held = now + held, b""
                await self._tell(kind, decoder.decode(now))
        await self._frames.put(None)

    async def _tell(self, kind: str, text: str) -> None:
        if text:
            await self._frames.put({"type": kind, "text": text, "at": time.time()})

    async def interrupt(self) -> None:
        """Stop what runs."""
        with contextlib.suppress(CloisterError):
            self._process.signal(signal.SIGINT)

    async def settle(self, timeout_s: float) -> bool:
        """Wait for the end of what was interrupted; whether it came."""
        with contextlib.suppress(TimeoutError, GuestError):
            async with asyncio.timeout(timeout_s):
                async for _ in self._until_end():
                    continue
                return True
        return False

    async def close(self) -> None:
        """End it and everything it started."""
        for task in self._reading:
            task.cancel()
        await asyncio.gather(*self._reading, return_exceptions=True)
        await self._process.stop()


def _cell(code: str, variables: Mapping[str, str], mark: str) -> bytes:
    # As base64: whatever the cell holds, it cannot end the line it travels on.
    encoded = base64.b64encode(code.encode("utf-8", "replace")).decode()
    names = [name for name in variables if name.isidentifier() and name.isascii()]
    setting = "".join(
        f'export {name}="$(base64 -d <<< {base64.b64encode(variables[name].encode()).decode()})";'
        for name in names
    )
    saving = "".join(
        f'__{name}_was="${{{name}-}}"; __{name}_had="${{{name}+x}}";' for name in names
    )
    restoring = "".join(
        f'if [ -n "$__{name}_had" ]; then export {name}="$__{name}_was"; else unset {name}; fi;'
        for name in names
    )
    line = (
        f'{saving}{setting} eval "$(base64 -d <<< {encoded})" < /dev/null; __status=$?; {restoring}'
        f" printf '%s%s\\n' {mark} $__status; printf '%s\\n' {mark} >&2\n"
    )
    return line.encode()
