"""What the way out costs: a connection, a gibibyte, a start, and many sandboxes at once."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial

from benches.measure import NotMeasurable, Turn, take_turns, timed_ms
from benches.row import Bar, Row, row_against
from benches.setting import Setting
from cloister import Sandbox
from cloister.node import Node
from cloister.policy import Egress

MIB = 1024 * 1024
NAME = "bench.test"
PYTHON = "/usr/bin/python3"
STARTS_AT_ONCE = 16
ADDED_MS_BAR, START_ADDED_MS_BAR, THROUGHPUT_BAR = 1.5, 1.0, 0.5

# Sends as many bytes as the first line says.
SERVER = """
import socket, threading
block = bytes(1 << 20)
def serve(sock):
    with sock:
        left = int(sock.makefile("rb").readline())
        while left > 0:
            left -= sock.send(block[:left])
listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
print(listener.getsockname()[1], flush=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""

# Prints the seconds that so many exchanges of so many bytes took.
CLIENT = """
import socket, sys, time
place, size, count = (sys.argv[1], int(sys.argv[2])), int(sys.argv[3]), int(sys.argv[4])
buffer = bytearray(1 << 20)
began = time.perf_counter()
for _ in range(count):
    with socket.create_connection(place) as sock:
        sock.sendall(b"%d\\n" % size)
        left = size
        while left:
            got = sock.recv_into(buffer)
            if not got:
                sys.exit("cut off")
            left -= got
print(time.perf_counter() - began)
"""


async def measure(setting: Setting) -> list[Row]:
    async with server() as port:
        Node.current().gateway.answers = {NAME: ["127.0.0.1"]}
        egress = Egress([f"{NAME}:{port}"], [NAME])
        async with Sandbox(egress=egress) as living:
            found = (await living.run(["/usr/bin/getent", "ahostsv4", NAME])).check()
            address = found.stdout.split()[0]
            rows = [
                await latency(setting, living, address, port),
                await throughput(setting, living, address, port),
            ]
        rows.append(await start(setting, egress))
        rows.append(await many(50 if setting.quick else 500, egress, port))
    return rows


@contextlib.asynccontextmanager
async def server() -> AsyncIterator[int]:
    """A server of its own process: what it costs is not ours."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVER, stdout=asyncio.subprocess.PIPE
    )
    try:
        if process.stdout is None:
            raise NotMeasurable("the server has no pipe")
        yield int(await process.stdout.readline())
    finally:
        process.kill()
        await process.wait()


async def inside(living: Sandbox, *arguments: str) -> float:
    result = await living.run([PYTHON, "-c", CLIENT, *arguments])
    if not result.ok:
        raise NotMeasurable(f"inside: {result.describe()}: {result.stderr.strip()}")
    return float(result.stdout)


async def outside(*arguments: str) -> float:
    process = await asyncio.create_subprocess_exec(
        PYTHON, "-c", CLIENT, *arguments, stdout=asyncio.subprocess.PIPE
    )
    printed, _ = await process.communicate()
    if process.returncode != 0:
        raise NotMeasurable("the client failed on the host")
    return float(printed)


async def latency(setting: Setting, living: Sandbox, address: str, port: int) -> Row:
    count = 50

    async def ours() -> float:
        return await inside(living, address, str(port), "10", str(count)) * 1000 / count

    async def direct() -> float:
        return await outside("127.0.0.1", str(port), "10", str(count)) * 1000 / count

    contest = await take_turns({"ours": ours, "direct": direct}, setting.rounds(20))
    took = {name: summary.median for name, summary in contest.summaries.items()}
    return Row(
        name="connect and a small request, added by the gateway",
        unit="ms",
        ours=took["ours"] - took["direct"],
        kind=Bar.OURS_AT_MOST,
        bar=ADDED_MS_BAR,
        spread=contest.summaries,
        facts={"direct, in ms": round(took["direct"], 3)},
    )


async def throughput(setting: Setting, living: Sandbox, address: str, port: int) -> Row:
    size = (128 if setting.quick else 1024) * MIB

    async def ours() -> float:
        return size / MIB / await inside(living, address, str(port), str(size), "1")

    async def direct() -> float:
        return size / MIB / await outside("127.0.0.1", str(port), str(size), "1")

    turns: dict[str, Turn] = {"ours": ours, "direct": direct}
    contest = await take_turns(turns, setting.rounds(10))
    name = f"fetching {size // MIB:,} MiB through the gateway"
    kind, bar = Bar.RATIO_AT_LEAST, THROUGHPUT_BAR
    return row_against(name, "MiB/s", contest, "direct", kind, bar, {})


async def start(setting: Setting, egress: Egress) -> Row:
    # The ledger, which comes with egress unless it is declined, has rows of its own.
    async def one(given: Egress | None) -> None:
        async with Sandbox(egress=given, ledger="off"):
            return

    turns = {"ours": timed_ms(partial(one, egress)), "without": timed_ms(partial(one, None))}
    contest = await take_turns(turns, setting.rounds(100))
    took = {name: summary.median for name, summary in contest.summaries.items()}
    return Row(
        name="start and stop with egress, added",
        unit="ms",
        ours=took["ours"] - took["without"],
        kind=Bar.OURS_AT_MOST,
        bar=START_ADDED_MS_BAR,
        spread=contest.summaries,
        facts={"without, in ms": round(took["without"], 3)},
    )


async def many(count: int, egress: Egress, port: int) -> Row:
    """Each asks for a size of its own: an answer that was crossed has another length."""
    turnstile = asyncio.Semaphore(STARTS_AT_ONCE)
    async with AsyncExitStack() as stack:

        async def begin() -> Sandbox:
            async with turnstile:
                return await stack.enter_async_context(Sandbox(egress=egress))

        living = await asyncio.gather(*(begin() for _ in range(count)))

        async def ask(sandbox: Sandbox, number: int) -> bool:
            # A shell's own redirection would need bash; this is the smallest client there is.
            text = f"printf '%d\\n' {number + 1} | curl -sm 60 telnet://{NAME}:{port} | wc -c"
            result = await sandbox.run(text)
            return result.stdout.strip() == str(number + 1)

        began = time.perf_counter()
        answers = await asyncio.gather(
            *(ask(sandbox, number) for number, sandbox in enumerate(living))
        )
        took_s = time.perf_counter() - began
    return Row(
        name=f"{count:,} sandboxes asking at once, answered rightly",
        unit="sandboxes",
        ours=float(sum(answers)),
        kind=Bar.OURS_AT_LEAST,
        bar=float(count),
        facts={"in seconds": round(took_s, 2)},
    )
