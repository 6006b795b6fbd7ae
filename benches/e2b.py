"""E2B's own Python client against `cloister serve`: create, run, a file there and back, code."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

from benches.measure import NotMeasurable, Summary, take_turns, timed_ms
from benches.row import Bar, Row
from benches.setting import Setting

MEBIBYTE = b"x" * 2**20
KERNEL = Path(__file__).parents[1] / ".venv" / "state" / "kernel"
_START_S = 60.0


async def measure(setting: Setting) -> list[Row]:
    try:
        from e2b_code_interpreter import AsyncSandbox
    except ImportError:
        raise NotMeasurable("E2B's client is not installed") from None
    rows = []
    async with _server(setting.scratch) as (url, key):
        options: dict[str, Any] = {"api_key": key, "api_url": url, "sandbox_url": url}
        made: list[Any] = []

        async def create() -> None:
            made.append(await AsyncSandbox.create(template="base", **options))

        box = await AsyncSandbox.create(template="base", timeout=3600, **options)

        async def there_and_back() -> None:
            await box.files.write("file", MEBIBYTE)
            await box.files.read("file", format="bytes")

        async def session() -> None:
            context = await box.create_code_context()
            await box.run_code("1", context=context)
            await box.remove_code_context(context)

        rows.append(await _row("E2B client: create", 40, create, setting.rounds(50)))
        for one in made:
            await one.kill()
        run = partial(box.commands.run, "true")
        rows.append(await _row("E2B client: run", 10, run, setting.rounds(200)))
        rows.append(
            await _row("E2B client: write and read 1 MiB", 20, there_and_back, setting.rounds(100))
        )
        if KERNEL.is_dir():
            name = "E2B client: new code session to first result, warm"
            rows.append(await _row(name, 100, session, setting.rounds(50)))
        await box.kill()
    return rows


async def _row(name: str, bar_ms: float, work: Any, rounds: int) -> Row:
    contest = await take_turns({"ours": timed_ms(work)}, rounds)
    summary: Summary = contest.summaries["ours"]
    return Row(
        name, "ms", summary.median, kind=Bar.OURS_AT_MOST, bar=bar_ms, spread={"ours": summary}
    )


@contextlib.asynccontextmanager
async def _server(scratch: Path) -> AsyncIterator[tuple[str, str]]:
    """A server of its own, and a key for it."""
    # Not below /tmp or /dev: the state holds what is shown inside under its own path.
    state = KERNEL.parents[1] / f"bench-{os.getpid()}"
    state.mkdir(mode=0o700)
    if KERNEL.is_dir():
        shutil.copytree(KERNEL, state / "kernel", copy_function=os.link)
    config = scratch / "server.toml"
    config.write_text("unlimited_disk = true\n")
    environment = {**os.environ, "CLOISTER_STATE": str(state)}
    place = ["--socket", str(scratch / "socket"), "--listen", "127.0.0.1:0"]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "cloister", "serve", "--config", str(config), *place),
        env=environment,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(_START_S):
            lines = [await process.stdout.readline() for _ in range(2)] if process.stdout else []
        if not all(lines):
            raise NotMeasurable("the server did not start")
        token = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "cloister", "token", "create", "--tenant", "bench", "--e2b"),
            *("--config", str(config)),
            env=environment,
            stdout=asyncio.subprocess.PIPE,
        )
        said, _ = await token.communicate()
        yield lines[1].decode().split()[-1], said.decode().strip()
    finally:
        process.terminate()
        await process.wait()
        shutil.rmtree(state, ignore_errors=True)
