"""A sandbox at work and its walls holding: every line printed was checked a moment before."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from cloister import CannotEnforce, CloisterError, Exhausted, Limits, Reason, Sandbox
from cloister.node import Record, list_records, open_store

SCRIPT = """\
import platform, sys
total = sum(n * n for n in range(1000))
print(f"{total} says Python {platform.python_version()}")
"""
SERVER = """\
import http.server
server = http.server.HTTPServer(("127.0.0.1", 8000), http.server.SimpleHTTPRequestHandler)
print("listening", flush=True)
server.serve_forever()
"""
CONNECT = """\
import socket, sys
try:
    socket.create_connection(("127.0.0.1", int(sys.argv[1])), 5).close()
    print("connected")
except OSError as error:
    print(error)
"""
# What is started to be killed: a sandbox with a small tree in it, in a process of its own.
OWNER = """\
import asyncio
from cloister import Limits, Sandbox
async def main():
    async with Sandbox(limits=Limits({limits})) as sandbox:
        await sandbox.start("sleep 1000 & sleep 1000 & wait")
        print("ready", flush=True)
        await asyncio.sleep(1000)
asyncio.run(main())
"""


class Story:
    """Prints each claim with what was seen, and remembers whether all were true."""

    def __init__(self) -> None:
        self.false = 0
        self._colour = sys.stdout.isatty()

    def chapter(self, title: str) -> None:
        print(f"\n{self._paint('1', title)}")

    def tell(self, claim: str, true: bool, seen: str = "") -> None:
        self.false += not true
        mark = self._paint("32", "  ok  ") if true else self._paint("31", " FALSE")
        print(f"{mark} {claim:<43} {seen}", flush=True)

    def note(self, text: str) -> None:
        print(f"  --   {text}", flush=True)

    def _paint(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._colour else text


def main() -> int:
    """Tell the story; 0 if all of it was true."""
    story = Story()
    before = descendants(os.getpid())
    asyncio.run(tell(story))
    after = settled(before)
    counts = f"{len(before)} before, {len(after)} after"
    story.tell("processes of ours, when all is done", after == before, counts)
    print(f"\n{f'{story.false} claims are FALSE' if story.false else 'every claim above held'}")
    return 1 if story.false else 0


async def tell(story: Story) -> None:
    story.chapter("A computer for an agent")
    limits = await enforceable(story)
    begun = time.perf_counter()
    async with Sandbox(limits=limits) as sandbox:
        result = await sandbox.run(["/bin/true"])
    warm_ms = (time.perf_counter() - begun) * 1e3
    story.tell("the next: started, used, ended", result.ok, f"{warm_ms:.1f} ms")
    async with Sandbox(limits=limits) as sandbox:
        await work(story, sandbox)
    await it_can_go_back(story, limits)
    await limits_hold(story, limits)
    await walls_hold(story, limits)
    await nothing_is_left(story, limits)


async def enforceable(story: Story) -> Limits:
    """Return the default limits, without those that this host cannot hold for this user."""
    limits = Limits()
    while True:
        begun = time.perf_counter()
        try:
            async with Sandbox(limits=limits) as sandbox:
                cold_ms = (time.perf_counter() - begun) * 1e3
                running = sandbox.is_running
                story.tell("a sandbox, its launcher included", running, f"{cold_ms:.1f} ms")
            return limits
        except CannotEnforce as error:
            story.note(f"going on without: {error}")
            limits = limits.replace(**{error.limit: "unlimited"})


async def work(story: Story, sandbox: Sandbox) -> None:
    await sandbox.files.write("/workspace/main.py", SCRIPT)
    result = await sandbox.run(["python3", "main.py"])
    story.tell("a script written in and run", "332833500" in result.stdout, result.stdout.strip())
    await sandbox.files.write("/workspace/server.py", SERVER)
    server = await sandbox.start(["python3", "server.py"])
    await server.stdout.read()
    reader, writer = await sandbox.dial(8000)
    writer.write(b"GET /main.py HTTP/1.0\r\n\r\n")
    answer = await reader.read()
    writer.close()
    story.tell(
        "a server inside, dialled from here", answer.endswith(SCRIPT.encode()), first(answer)
    )
    server.kill()


async def it_can_go_back(story: Story, limits: Limits) -> None:
    story.chapter("Going back")
    with tempfile.TemporaryDirectory(prefix="cloister-demo-") as state:
        os.environ["CLOISTER_STATE"] = state
        stored = limits.replace(disk="unlimited")
        async with Sandbox(storage="disk", limits=stored) as sandbox:
            await sandbox.run("echo careful > notes")
            begun = time.perf_counter()
            before = await sandbox.snapshot("before")
            took = f"{(time.perf_counter() - begun) * 1e3:.1f} ms, {before.method}"
            story.tell("a snapshot", before.name == "before", took)
            await sandbox.run("echo reckless > notes; mkdir new")
            changed = " ".join(change.display() for change in await sandbox.diff("/workspace"))
            told = "/workspace/notes" in changed and "/workspace/new" in changed
            story.tell("what changed", told, changed)
            await sandbox.rewind(before)
            notes = (await sandbox.run("cat notes; ls")).stdout.split()
            story.tell("after the rewind", notes == ["careful", "notes"], " ".join(notes))
            async with Sandbox.fork(before, count=2) as forks:
                for number, fork in enumerate(forks):
                    await fork.run(f"echo {number} >> notes")
                seen = [(await fork.run("cat notes")).stdout.split() for fork in forks]
            apart = seen == [["careful", "0"], ["careful", "1"]]
            story.tell("two forks, and neither sees the other", apart, f"{seen}")
        # What snapshots hold may belong to ids that only the store can act as.
        store = await open_store()
        for snapshot in store.snapshots.list():
            store.snapshots.remove(snapshot)
        del os.environ["CLOISTER_STATE"]


def first(data: bytes) -> str:
    return data.partition(b"\r\n")[0].decode(errors="replace")


async def limits_hold(story: Story, limits: Limits) -> None:
    story.chapter("Limits")
    eat = ["python3", "-c", "x = bytearray(300_000_000); x[::4096] = b'1' * len(x[::4096])"]
    if limits.memory is None:
        story.note("memory: not enforceable here for this user; see `cloister doctor`")
    else:
        async with Sandbox(limits=limits.replace(memory="128MiB")) as sandbox:
            result = await sandbox.run(eat)
            alive = await sandbox.run("echo alive")
        async with Sandbox(limits=limits.replace(memory="1GiB")) as sandbox:
            larger = await sandbox.run(eat)
        seen = f"{result.reason} with 128 MiB, {larger.reason} {larger.exit_code} with 1 GiB"
        story.tell("taking 300 MB", result.reason is Reason.MEMORY and larger.ok, seen)
        story.tell("  the sandbox after that", alive.ok, alive.stdout.strip())
    started = [await start_forty(limits.replace(pids=most)) for most in (16, 256)]
    seen = f"{started[0]} with pids=16, {started[1]} with pids=256"
    story.tell("40 processes at once", 0 < started[0] <= 16 and started[1] == 40, seen)
    async with Sandbox(limits=limits) as sandbox:
        idle = descendants(os.getpid())
        process = await sandbox.start("sleep 1000 & echo ready; sleep 1000", timeout=0.2)
        await process.stdout.read()
        busy = len(descendants(os.getpid()))
        result = await process.wait()
        left = len(await asyncio.to_thread(settled, idle))
    ended = result.reason is Reason.TIMEOUT and busy > len(idle) == left
    seen = f"after {result.wall_s:.2f} s, {busy - left} processes"
    story.tell("a timeout ends the whole tree", ended, seen)


async def start_forty(limits: Limits) -> int:
    """Return how many of 40 processes a sandbox could start."""
    async with Sandbox(limits=limits) as sandbox:
        started = 0
        for _ in range(40):
            try:
                await sandbox.start(["sleep", "60"])
            except Exhausted:
                break
            started += 1
        return started


async def walls_hold(story: Story, limits: Limits) -> None:
    story.chapter("Walls")
    token = secrets.token_hex(16)
    os.environ["CANARY"] = token
    with planted(token) as canary, listener() as (port, accepted), victim() as pid:
        async with Sandbox(limits=limits) as sandbox:

            async def inside(*argv: str) -> str:
                result = await sandbox.run(argv)
                return result.stdout + result.stderr

            async def here(*argv: str) -> str:
                return await asyncio.to_thread(output, argv)

            async def reaches(run: Callable[..., Awaitable[str]]) -> dict[str, bool]:
                found = {"a file of the host": token in await run("cat", str(canary))}
                found["our environment"] = token in await run("env")
                await run("python3", "-c", CONNECT, str(port))
                found["a listener on the host's loopback"] = accepted() > 0
                found["a process of the host"] = f"{pid}" in (await run("ls", "/proc")).split()
                return found

            outside = await reaches(here)
            for what, reached in (await reaches(inside)).items():
                seen = f"from here {shown(outside[what])}, from inside {shown(reached)}"
                story.tell(what, outside[what] and not reached, seen)


def shown(reached: bool) -> str:
    return "reached" if reached else "not"


def output(argv: tuple[str, ...]) -> str:
    found = subprocess.run(argv, check=False, capture_output=True, text=True)
    return found.stdout + found.stderr


@contextlib.contextmanager
def planted(token: str) -> Iterator[Path]:
    with tempfile.NamedTemporaryFile("w", prefix="canary-") as file:
        file.write(token)
        file.flush()
        yield Path(file.name)


@contextlib.contextmanager
def listener() -> Iterator[tuple[int, Callable[[], int]]]:
    """A port on the host, and how many have come to it since it was last asked."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)

        def accepted() -> int:
            count = 0
            with contextlib.suppress(BlockingIOError):
                while True:
                    server.accept()[0].close()
                    count += 1
            return count

        yield server.getsockname()[1], accepted


@contextlib.contextmanager
def victim() -> Iterator[int]:
    process = subprocess.Popen(["sleep", "1000"])
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


async def nothing_is_left(story: Story, limits: Limits) -> None:
    story.chapter("kill -9 of the owner")
    unlimited = {"memory": limits.memory, "cpus": limits.cpus}
    words = ", ".join(f"{name}='unlimited'" for name, value in unlimited.items() if value is None)
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER.format(limits=words)], stdout=subprocess.PIPE
    )
    if owner.stdout:
        await asyncio.to_thread(owner.stdout.readline)
    pids = descendants(owner.pid)
    record = await listed(owner.pid)
    groups = [Path(path) for path in record.groups] if record else []
    there = len(pids) >= 3 and record is not None
    story.tell("a sandbox of another process", there, f"{len(pids)} processes, the launcher too")
    watched = [os.pidfd_open(pid) for pid in pids]
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    if owner.stdout:
        owner.stdout.close()
    ended = await asyncio.to_thread(all_end, watched, 10.0)
    story.tell("its processes, after its owner was killed", ended, f"{len(pids)} ended")
    # The kernel ends processes, mounts and namespaces; names on disk go with the next start.
    child = "import asyncio; from cloister import Sandbox, Limits\n"
    child += (
        f"async def go():\n async with Sandbox(limits=Limits({words})): pass\nasyncio.run(go())"
    )
    await asyncio.to_thread(subprocess.run, [sys.executable, "-c", child], check=True)
    left = [path for path in groups if path.exists()]
    story.tell("its control groups, after the next start", not left, f"{len(groups)} removed")
    still = any(record.owner_pid == owner.pid for record in list_records())
    story.tell("its line in `cloister ps`", not still, "gone")


async def listed(owner_pid: int) -> Record | None:
    """Return the line that other processes see of a sandbox; it is there a moment after it is."""
    for _ in range(500):
        found = [record for record in list_records() if record.owner_pid == owner_pid]
        if found:
            return found[0]
        await asyncio.sleep(0.01)
    return None


def all_end(pidfds: list[int], seconds: float) -> bool:
    """Whether every process ends in time; a pidfd becomes readable at its end."""
    deadline = time.monotonic() + seconds
    ended = True
    for pidfd in pidfds:
        ready, _, _ = select.select([pidfd], [], [], max(0.0, deadline - time.monotonic()))
        ended = ended and bool(ready)
        os.close(pidfd)
    return ended


def settled(wanted: set[int]) -> set[int]:
    """Return the processes below this one when they are those, or after fifteen seconds."""
    # What was ended takes a moment to be gone, and the kernel tells only its parent. Without root
    # a helper that reads what sandboxes keep stays for ten seconds, for the next that needs it.
    deadline = time.monotonic() + 15
    while (seen := descendants(os.getpid())) - wanted and time.monotonic() < deadline:
        time.sleep(0.005)
    return seen


def descendants(top: int) -> set[int]:
    """Return every process below one, by its parent."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # The name, in parentheses, may hold anything; what follows it is fixed.
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            # What has ended and is not yet forgotten runs no more.
            if fields[0] != "Z":
                parents[int(path.name)] = int(fields[1])
    found = {top}
    while grown := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= grown
    return found - {top}


if __name__ == "__main__":
    try:
        sys.exit(main())
    except CloisterError as problem:
        print(f"demo: {problem}", file=sys.stderr)
        sys.exit(1)
