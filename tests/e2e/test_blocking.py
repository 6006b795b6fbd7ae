"""The facade without `await`, for real: threads, a running loop, a fork, an interrupt."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cloister import Limits, NotFound, RequestError
from cloister.blocking import Sandbox
from cloister.verify.ends import wait_all_ended

LIMITS = Limits(memory="unlimited", cpus="unlimited")


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(limits=LIMITS) as started:
        yield started


def test_a_program_runs_and_says_how_it_ended(sandbox: Sandbox) -> None:
    result = sandbox.run("echo out; exit 3")
    assert (result.stdout, result.exit_code) == ("out\n", 3)
    with pytest.raises(NotFound):
        sandbox.run(["no-such-program"])


def test_streams_are_iterated_and_written(sandbox: Sandbox) -> None:
    process = sandbox.start("cat; echo end >&2", stdin=True)
    assert process.stdin is not None and process.stderr is not None
    process.stdin.write(b"hello")
    process.stdin.close()
    assert b"".join(process.stdout) == b"hello"
    assert b"".join(process.stderr) == b"end\n"
    assert process.wait().ok
    assert process.returncode == 0


def test_a_process_is_signalled_from_any_thread(sandbox: Sandbox) -> None:
    process = sandbox.start(["sleep", "1000"])
    timer = threading.Thread(target=lambda: process.signal(signal.SIGTERM))
    timer.start()
    assert process.wait().signal == signal.SIGTERM
    timer.join()


def test_files_go_in_and_out(sandbox: Sandbox, tmp_path: Path) -> None:
    sandbox.files.write("/workspace/a", b"x" * 1_000_000)
    assert sum(len(chunk) for chunk in sandbox.files.stream("/workspace/a")) == 1_000_000
    # The caller's iterator calls the sandbox again while it is being read.
    sandbox.files.write("/workspace/b", sandbox.files.stream("/workspace/a"))
    assert sandbox.files.stat("/workspace/b").size == 1_000_000
    sandbox.files.copy_out("/workspace/a", tmp_path / "a")
    assert (tmp_path / "a").stat().st_size == 1_000_000


def test_a_stream_left_in_the_middle_is_closed(sandbox: Sandbox) -> None:
    sandbox.files.write("/workspace/a", b"x" * 5_000_000)
    chunks = sandbox.files.stream("/workspace/a")
    next(chunks)
    del chunks
    gc.collect()
    assert sandbox.run("true").ok


def test_changes_are_watched_from_another_thread(sandbox: Sandbox) -> None:
    ready, seen = threading.Event(), []

    def watch() -> None:
        for change in sandbox.files.watch("/workspace", ready=ready):
            seen.append(change.path)
            if change.path.endswith("/last"):
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    assert ready.wait(30)
    sandbox.run("touch /workspace/last")
    watcher.join(30)
    assert not watcher.is_alive() and seen[-1] == "/workspace/last"


def test_a_port_inside_is_an_ordinary_socket(sandbox: Sandbox) -> None:
    source = (
        "import socket\n"
        "server = socket.create_server(('127.0.0.1', 8000))\n"
        "print('ready', flush=True)\n"
        "end, _ = server.accept()\n"
        "end.sendall(b'banner'); data = end.makefile('rb').read()\n"
        "end.sendall(data[::-1]); end.close()\n"
    )
    server = sandbox.start(["python3", "-c", source])
    assert server.stdout.read() == b"ready\n"
    with sandbox.dial(8000) as connection:
        assert isinstance(connection, socket.socket)
        connection.settimeout(30)
        assert connection.recv(6) == b"banner"
        connection.sendall(b"abc")
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(6) == b"cba"
        assert connection.recv(6) == b""
    with pytest.raises(NotFound):
        sandbox.dial(9)


def test_many_threads_share_one_sandbox(sandbox: Sandbox) -> None:
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda n: sandbox.run(["echo", f"{n}"]).stdout, range(24)))
    assert results == [f"{n}\n" for n in range(24)]


async def test_it_works_where_a_loop_is_running_already() -> None:
    assert asyncio.get_running_loop().is_running()
    with Sandbox(limits=LIMITS) as started:
        assert started.run("echo hi").stdout == "hi\n"


def test_a_call_from_a_callback_is_refused_instead_of_waiting_for_itself(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    (tmp_path / "file").write_bytes(b"x")

    def progress(files: int, size_bytes: int) -> None:
        sandbox.run("true")

    with pytest.raises(RequestError, match="another thread"):
        sandbox.files.copy_in(tmp_path / "file", "/workspace/file", progress=progress)


def test_a_fork_keeps_the_parents_sandbox_and_can_make_its_own() -> None:
    # In a process of its own: a test run has threads that a fork would not like.
    source = f"""
import os
from cloister import Limits, RequestError
from cloister.blocking import Sandbox
limits = Limits({"memory='unlimited', cpus='unlimited'"})
with Sandbox(limits=limits) as sandbox:
    sandbox.run("true")
    child = os.fork()
    if child == 0:
        try:
            sandbox.run("true")
        except RequestError as error:
            assert "after a fork" in str(error)
            with Sandbox(limits=limits) as own:
                os._exit(own.run("exit 7").exit_code)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert sandbox.run("echo still").stdout == "still\\n"
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", source], check=True, timeout=60)


def test_an_interrupt_ends_what_was_being_done(sandbox: Sandbox) -> None:
    main = threading.main_thread().ident
    assert main is not None
    (guest,) = sandbox.host_pids

    def interrupt() -> None:
        # Inside, so that it is the program that waits: only then there is something to end.
        sandbox.run("until [ -e /workspace/begun ]; do sleep 0.01; done")
        signal.pthread_kill(main, signal.SIGINT)

    helper = threading.Thread(target=interrupt)
    helper.start()
    with pytest.raises(KeyboardInterrupt):
        sandbox.run("touch /workspace/begun; sleep 1000 & sleep 1000")
    helper.join()
    # What was killed leaves in its own time, and so does what watched over it.
    while others := [pid for pid in sandbox.host_pids if pid != guest]:
        asyncio.run(asyncio.wait_for(wait_all_ended(others), 30))
    assert sandbox.run("true").ok


def test_a_sandbox_left_open_ends_with_the_process() -> None:
    source = (
        "from cloister import Limits\n"
        "from cloister.blocking import Sandbox\n"
        "s = Sandbox(limits=Limits(memory='unlimited', cpus='unlimited')).open()\n"
        "print(*s.host_pids)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", source], check=True, capture_output=True, timeout=60
    )
    assert done.stderr == b""
    assert not any(Path(f"/proc/{pid}").exists() for pid in done.stdout.decode().split())
