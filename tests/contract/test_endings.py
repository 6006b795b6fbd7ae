"""How a program is ended from outside: time, cancellation and kill each take the whole tree."""

from __future__ import annotations

import asyncio

import pytest

from cloister import GuestGone, Limits, Reason, RequestError, Sandbox

# A daemon as daemons are made: forked twice, in a session of its own, deaf to polite signals.
# It and its parent hold a lock each; whoever gets both locks knows that both are gone.
DAEMON = """
import fcntl, os, signal, sys, time
def hold(path):
    held = open(path, "w"); fcntl.flock(held, fcntl.LOCK_EX); return held
ready, told = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        held = hold("/workspace/daemon")
        os.write(told, b"1")
        while True: time.sleep(1000)
    os._exit(0)
os.wait()
os.read(ready, 1)
held = hold("/workspace/program")
with open(sys.argv[1], "w") as gate: gate.write("up")
while True: time.sleep(1000)
"""
COMMAND = ["python3", "-c", DAEMON, "/workspace/gate"]


async def require_tree_gone(sandbox: Sandbox, wait_released) -> None:
    await wait_released(sandbox, "/workspace/program")
    await wait_released(sandbox, "/workspace/daemon")


async def test_a_timeout_kills_the_program_and_a_daemon_it_made(
    sandbox: Sandbox, gate, wait_released
) -> None:
    door = await gate(sandbox)
    running = asyncio.create_task(sandbox.run(COMMAND, timeout=3))
    assert await door.wait_passed() == "up"
    result = await running
    assert (result.reason, result.signal, result.ok) == (Reason.TIMEOUT, 9, False)
    await require_tree_gone(sandbox, wait_released)


async def test_a_daemon_lives_on_when_its_program_simply_ends(sandbox: Sandbox) -> None:
    result = await sandbox.run("setsid flock /workspace/daemon sleep 1000 >/dev/null 2>&1 & echo")
    assert result.reason is Reason.EXIT
    # The lock is refused as soon as the daemon has it, and it is never given up.
    taken = await sandbox.run("while flock -n /workspace/daemon true; do :; done", timeout=60)
    assert taken.ok


async def leave_daemon(sandbox: Sandbox, name: str) -> None:
    """Run a program that ends and leaves a daemon, which holds the lock `name`."""
    leave = f"setsid flock /workspace/{name} sleep 1000 >/dev/null 2>&1 & echo"
    (await sandbox.run(leave)).check()
    taken = f"while flock -n /workspace/{name} true; do :; done"
    (await sandbox.run(taken, timeout=60)).check()


async def lives(sandbox: Sandbox, name: str) -> bool:
    return not (await sandbox.run(["flock", "-n", f"/workspace/{name}", "true"])).ok


async def test_ending_a_program_leaves_the_daemons_of_earlier_ones(sandbox: Sandbox) -> None:
    await leave_daemon(sandbox, "earlier")
    assert (await sandbox.run(COMMAND, timeout=0.5)).reason is Reason.TIMEOUT
    assert await lives(sandbox, "earlier")


async def test_ending_a_program_leaves_the_daemons_of_those_run_meanwhile(
    sandbox: Sandbox, gate, wait_released
) -> None:
    door = await gate(sandbox)
    started = await sandbox.start("setsid flock /workspace/started sleep 1000 & wait")
    running = asyncio.create_task(sandbox.run(COMMAND))
    await door.wait_passed()
    await leave_daemon(sandbox, "meanwhile")
    await sandbox.files.write("/workspace/written", "meanwhile")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await require_tree_gone(sandbox, wait_released)
    assert await lives(sandbox, "meanwhile")
    assert await lives(sandbox, "started")
    started.kill()
    assert (await started.wait()).reason is Reason.CANCELLED
    await wait_released(sandbox, "/workspace/started")
    assert await lives(sandbox, "meanwhile")


async def test_ending_one_of_two_runs_leaves_the_other(sandbox: Sandbox, gate) -> None:
    door = await gate(sandbox)
    first = asyncio.create_task(sandbox.run(COMMAND))
    await door.wait_passed()
    assert (await sandbox.run(["sleep", "1000"], timeout=0.2)).reason is Reason.TIMEOUT
    assert await lives(sandbox, "program")
    assert await lives(sandbox, "daemon")
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_output_until_the_timeout_is_kept(sandbox: Sandbox) -> None:
    # An emulated machine of a busy host may not have begun a shell within the first of them.
    for timeout in (0.5, 5):
        result = await sandbox.run("echo before; sleep 1000; echo after", timeout=timeout)
        if result.stdout:
            break
    assert (result.stdout, result.reason) == ("before\n", Reason.TIMEOUT)


async def test_the_wall_limit_is_the_timeout_of_every_run(make) -> None:
    async with make(limits=Limits(wall="500ms")) as sandbox:
        assert (await sandbox.run("sleep 1000")).reason is Reason.TIMEOUT
        late = (sandbox.run("sleep 0.7; echo late", timeout=each) for each in ("1m", "unlimited"))
        assert [result.stdout for result in await asyncio.gather(*late)] == ["late\n"] * 2


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), "soon", True])
async def test_an_impossible_timeout_is_the_callers_error(
    sandbox: Sandbox, timeout: object
) -> None:
    with pytest.raises(RequestError):
        await sandbox.run("true", timeout=timeout)  # type: ignore[arg-type]
    assert (await sandbox.run("true", timeout=60)).ok


async def test_a_cancelled_run_leaves_no_process(sandbox: Sandbox, gate, wait_released) -> None:
    door = await gate(sandbox)
    running = asyncio.create_task(sandbox.run(COMMAND))
    await door.wait_passed()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await require_tree_gone(sandbox, wait_released)
    assert (await sandbox.run("echo still here")).stdout == "still here\n"


async def test_a_run_cancelled_before_it_began_leaves_no_process(
    sandbox: Sandbox, transport: str
) -> None:
    for _ in range(20):
        running = asyncio.create_task(sandbox.run(["sleep", "1000"]))
        await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    if transport == "server":
        # There it is noticed a moment later that a client has gone.
        await sandbox.run("while grep -l sleep /proc/[0-9]*/comm; do :; done", timeout=60)
    listed = await sandbox.run("grep -l sleep /proc/[0-9]*/comm || true")
    assert listed.stdout == ""


async def test_kill_ends_the_tree_and_says_cancelled(sandbox: Sandbox, gate, wait_released) -> None:
    door = await gate(sandbox)
    process = await sandbox.start(COMMAND)
    await door.wait_passed()
    process.kill()
    result = await process.wait()
    assert (result.reason, result.signal) == (Reason.CANCELLED, 9)
    await require_tree_gone(sandbox, wait_released)


async def test_kill_takes_one_tree_and_leaves_the_other(sandbox: Sandbox) -> None:
    first = await sandbox.start(["cat"], stdin=True)
    second = await sandbox.start(["cat"], stdin=True)
    first.kill()
    assert (await first.wait()).reason is Reason.CANCELLED
    assert second.stdin is not None
    await second.stdin.write(b"alive")
    assert await second.stdout.read() == b"alive"
    second.stdin.close()
    assert (await second.wait()).ok


async def test_whoever_is_just_being_forked_is_ended_too(sandbox: Sandbox, wait_released) -> None:
    # Killed at a different moment each time, some of them in the middle of a fork; the second
    # time round something else runs beside, so that there is a keeper.
    await sandbox.files.write("/workspace/daemon.py", DAEMON)
    beside = None
    for number in range(60):
        if number == 30:
            beside = asyncio.create_task(sandbox.run(["sleep", "1000"]))
            await asyncio.sleep(0)
        command = ["python3", "/workspace/daemon.py", "/dev/null"]
        running = asyncio.create_task(sandbox.run(command))
        await asyncio.sleep(0.005 + number % 30 / 1000)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await require_tree_gone(sandbox, wait_released)
    assert beside is not None and not beside.done()
    beside.cancel()
    with pytest.raises(asyncio.CancelledError):
        await beside


async def test_a_forking_tree_is_ended_by_its_timeout(make) -> None:
    bomb = "import os\nwhile True:\n try: os.fork()\n except OSError: pass"
    async with make(limits=Limits(pids=48, cpus=1)) as sandbox:
        result = await sandbox.run(["python3", "-c", bomb], timeout=2)
        assert result.reason is Reason.TIMEOUT
        assert (await sandbox.run("echo well")).stdout == "well\n"


async def test_a_guest_that_was_lost_unheard_is_told_to_who_asks_it_next(make) -> None:
    async with make() as sandbox:
        link = sandbox._running().link
        # As one that is killed in the middle of its start: whom to tell is not known yet.
        link.on_lost = lambda error: None
        link.fail(GuestGone("the guest closed its end", reason="gone"))
        async with asyncio.timeout(30):
            for ask in (sandbox.run, sandbox.start):
                with pytest.raises(GuestGone):
                    await ask(["true"])
            with pytest.raises(GuestGone):
                await sandbox.files.read("/etc/passwd")
