"""Sandboxes through `cloister serve` on a unix socket, beside the same without a server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from benches.measure import NotMeasurable, take_turns, timed_ms
from benches.row import Bar, Row
from benches.setting import Setting
from cloister import Sandbox
from cloister.remote.client import Client
from cloister.remote.place import parse_place

CYCLE_MS_BAR, CYCLE_RATIO_BAR, RUN_MS_BAR, COMMANDS_BAR = 15.0, 3.0, 4.0, 400.0
CLIENTS = 64
TRUE: dict[str, Any] = {"command": ["/bin/true"]}
_START_S = 60.0


async def measure(setting: Setting) -> list[Row]:
    async with _server() as client:

        async def cycle() -> None:
            made = await client.ask("POST", "/v1/sandboxes", {})
            one = f"/v1/sandboxes/{made['id']}"
            await client.ask("POST", f"{one}/run", TRUE)
            await client.ask("DELETE", one)

        async def embedded() -> None:
            async with Sandbox() as sandbox:
                await sandbox.run(["/bin/true"])

        contenders = {"ours": timed_ms(cycle), "embedded": timed_ms(embedded)}
        contest = await take_turns(contenders, setting.rounds(100))
        ours, peer = contest.summaries["ours"], contest.summaries["embedded"]
        spread = {"ours": ours, "embedded": peer}
        name = "server: create, first result, delete"
        rows = [
            Row(name, "ms", ours.median, kind=Bar.OURS_AT_MOST, bar=CYCLE_MS_BAR, spread=spread),
            Row(
                f"{name}, beside embedded",
                "ms",
                ours.median,
                "embedded",
                peer.median,
                Bar.RATIO_AT_MOST,
                CYCLE_RATIO_BAR,
            ),
        ]
        living = (await client.ask("POST", "/v1/sandboxes", {}))["id"]

        async def run() -> None:
            await client.ask("POST", f"/v1/sandboxes/{living}/run", TRUE)

        alone = await take_turns({"ours": timed_ms(run)}, setting.rounds(300))
        summary = alone.summaries["ours"]
        rows.append(
            Row(
                "server: run in a live sandbox",
                "ms",
                summary.median,
                kind=Bar.OURS_AT_MOST,
                bar=RUN_MS_BAR,
                spread={"ours": summary},
            )
        )
        rows.append(await _many(client, setting.rounds(2000)))
    return rows


async def _many(client: Client, count: int) -> Row:
    """Run many commands by many clients, each in a sandbox of its own."""
    made = [await client.ask("POST", "/v1/sandboxes", {}) for _ in range(CLIENTS)]
    left = iter(range(count))

    async def work(id: str) -> None:
        for _ in left:
            result = await client.ask("POST", f"/v1/sandboxes/{id}/run", TRUE)
            if result["exit_code"] != 0:
                raise NotMeasurable("a command failed")

    began = time.perf_counter()
    await asyncio.gather(*(work(each["id"]) for each in made))
    took_s = time.perf_counter() - began
    return Row(
        f"server: commands a second, {CLIENTS} clients",
        "1/s",
        count / took_s,
        kind=Bar.OURS_AT_LEAST,
        bar=COMMANDS_BAR,
    )


@contextlib.asynccontextmanager
async def _server() -> AsyncIterator[Client]:
    with tempfile.TemporaryDirectory(prefix="clo-bench-") as directory:
        place = Path(directory)
        (place / "server.toml").write_text('log = "warning"\n[quota]\nrequests_per_s = 100000\n')
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "cloister", "serve"),
            *("--config", str(place / "server.toml"), "--socket", str(place / "socket")),
            env={**os.environ, "CLOISTER_STATE": str(place / "state")},
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(_START_S):
                line = await process.stdout.readline() if process.stdout else b""
            if not line:
                raise NotMeasurable("the server did not start")
            yield Client.of(parse_place(f"unix:{place / 'socket'}", None))
        finally:
            process.terminate()
            await process.wait()
