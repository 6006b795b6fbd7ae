"""A reader that stops makes the writer wait: memory stays bounded, and nothing is lost."""

from __future__ import annotations

import asyncio

import pytest

from cloister import Limits, Sandbox

CHUNK = 64 * 1024
CHUNKS = 1024
# Far more than pipes, windows and queues hold together, far less than what is written.
MOST_IN_FLIGHT = 16 << 20

# Writes CHUNKS chunks to the descriptor in argv[1] and keeps count where others can read it.
WRITER = f"""
import os, sys
count = os.open("/workspace/count", os.O_CREAT | os.O_WRONLY)
for n in range({CHUNKS}):
    os.pwrite(count, b"%d\\n" % n, 0)
    left = memoryview(b"x" * {CHUNK})
    while left: left = left[os.write(int(sys.argv[1]), left):]
os.pwrite(count, b"done\\n", 0)
"""

# Looks at a process until it sleeps in write(2) with the count unchanged, and says the count.
WATCHER = """
import sys
pid = sys.argv[1]
def look():
    with open(f"/proc/{pid}/stat") as stat: state = stat.read().rpartition(")")[2].split()[0]
    with open("/workspace/count") as count: return state, count.read()
same, before = 0, None
while same < 2000:
    now = look()
    same = same + 1 if now == before and now[0] == "S" else 0
    before = now
print(before[1])
"""


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
async def test_a_writer_waits_for_a_reader_that_does_not_read(make, stream: str) -> None:
    async with make(limits=Limits(cpus="unlimited")) as sandbox:
        number = {"stdout": "1", "stderr": "2"}[stream]
        process = await sandbox.start(["python3", "-c", WRITER, number])
        output = getattr(process, stream)
        # One chunk first: the stream has begun, and its reader then goes away for a while.
        received = len(await output.read())
        seen = await sandbox.run(["python3", "-c", WATCHER, str(process.pid)], timeout=100)
        written = int(seen.check().stdout) * CHUNK
        assert 0 < written < MOST_IN_FLIGHT
        async for chunk in output:
            received += len(chunk)
        assert received == CHUNK * CHUNKS
        assert (await process.wait()).ok


async def test_one_slow_reader_does_not_hold_up_another(sandbox: Sandbox) -> None:
    slow = await sandbox.start(["python3", "-c", WRITER, "1"])
    assert await slow.stdout.read()
    quick = await sandbox.run("head -c 10000000 /dev/zero", output=1)
    assert quick.stdout_total == 10_000_000
    assert (await sandbox.files.read_text("/workspace/count")).strip() != "done"
    slow.kill()
    await slow.wait()


async def test_a_program_that_does_not_read_makes_its_caller_wait(sandbox: Sandbox) -> None:
    (await sandbox.run(["mkfifo", "/workspace/go"])).check()
    process = await sandbox.start("read go < /workspace/go; wc -c", stdin=True)
    assert process.stdin is not None
    writing = asyncio.create_task(process.stdin.write(bytes(8 << 20)))
    # Another whole run has come and gone meanwhile, and the write is still under way.
    assert (await sandbox.run(["true"])).ok
    assert not writing.done()
    (await sandbox.run("echo go > /workspace/go")).check()
    await writing
    process.stdin.close()
    assert await process.stdout.read() == b"%d\n" % (8 << 20)
    assert (await process.wait()).ok
