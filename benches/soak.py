"""Five hundred sandboxes of four tenants alive on one server, sixty-four clients, ten minutes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import secrets
import statistics
import sys
import tempfile
import time
from base64 import b64decode
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benches.measure import NotMeasurable
from benches.row import Bar, Row
from benches.setting import Setting
from cloister.remote.client import Client
from cloister.remote.place import parse_place
from cloister.server.records import Records
from cloister.server.tokens import Wish, create_token

SANDBOXES, CLIENTS, TENANTS, SECONDS = 500, 64, 4, 600
SPREAD_BAR, GROWTH_BAR = 10.0, 1.1
# Of a hundred requests, so many end a sandbox and start another in its place.
_REPLACED = 3
_START_S = 60.0
_SETTINGS = """
log = "warning"
[quota]
sandboxes = 500
memory = "4096GiB"
disk = "4096GiB"
cpus = 4096
pids = 1000000
requests_per_s = 100000
"""


@dataclass(slots=True)
class Found:
    """What the clients saw."""

    runs_ms: list[float] = field(default_factory=list)
    starts_ms: list[float] = field(default_factory=list)
    resident_bytes: list[int] = field(default_factory=list)
    lost: int = 0
    crossed: int = 0


async def measure(setting: Setting) -> list[Row]:
    seconds = float(os.environ.get("CLOISTER_SOAK_SECONDS", setting.rounds(SECONDS)))
    async with _server() as (pid, clients):
        homes: list[tuple[Client, str, str]] = []
        for begin in range(0, SANDBOXES, CLIENTS):
            count = min(CLIENTS, SANDBOXES - begin)
            some = [clients[number % TENANTS] for number in range(begin, begin + count)]
            homes += await asyncio.gather(*(_settle(client) for client in some))
        found = Found()
        watching = asyncio.create_task(_watch(pid, found))
        until = time.monotonic() + seconds
        shares = [homes[number::CLIENTS] for number in range(CLIENTS)]
        await asyncio.gather(*(_work(share, until, found) for share in shares))
        watching.cancel()
    return _rows(found, seconds)


async def _settle(client: Client) -> tuple[Client, str, str]:
    """Start a sandbox and leave in it what nobody else knows."""
    mark = secrets.token_hex(16)
    id = (await client.ask("POST", "/v1/sandboxes", {"limits": {"memory": "256MiB"}}))["id"]
    command = f"echo {mark} > /workspace/mark"
    await client.ask("POST", f"/v1/sandboxes/{id}/run", {"command": command})
    return client, id, mark


async def _work(share: list[tuple[Client, str, str]], until: float, found: Found) -> None:
    chance = random.Random(len(share))
    while time.monotonic() < until:
        number = chance.randrange(len(share))
        client, id, mark = share[number]
        if chance.randrange(100) < _REPLACED:
            await client.ask("DELETE", f"/v1/sandboxes/{id}")
            began = time.perf_counter()
            share[number] = await _settle(client)
            found.starts_ms.append((time.perf_counter() - began) * 1000)
            continue
        began = time.perf_counter()
        result = await client.ask(
            "POST", f"/v1/sandboxes/{id}/run", {"command": ["/bin/cat", "/workspace/mark"]}
        )
        found.runs_ms.append((time.perf_counter() - began) * 1000)
        said = b64decode(result["stdout"]).decode().strip()
        found.lost += said == ""
        found.crossed += said not in ("", mark)


async def _watch(pid: int, found: Found) -> None:
    while True:
        found.resident_bytes.append(_resident_bytes(pid))
        await asyncio.sleep(1)


def _resident_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise NotMeasurable("the kernel does not say what memory the server has")


def _rows(found: Found, seconds: float) -> list[Row]:
    cuts = statistics.quantiles(found.runs_ms, n=100)
    fifth = max(1, len(found.resident_bytes) // 5)
    early = statistics.median(found.resident_bytes[fifth : 2 * fifth])
    late = statistics.median(found.resident_bytes[-fifth:])
    name = f"server: {SANDBOXES} alive, {CLIENTS} clients, {seconds:g} s"
    facts: dict[str, Any] = {
        "p50_ms": cuts[49],
        "p99_ms": cuts[98],
        "requests": len(found.runs_ms),
        "start_p50_ms": statistics.median(found.starts_ms or [0.0]),
    }
    return [
        Row(
            f"{name}: p99 beside p50",
            "ms",
            cuts[98],
            "p50",
            cuts[49],
            Bar.RATIO_AT_MOST,
            SPREAD_BAR,
            facts=facts,
        ),
        Row(
            f"{name}: memory at the end beside the beginning",
            "MiB",
            late / 2**20,
            "beginning",
            early / 2**20,
            Bar.RATIO_AT_MOST,
            GROWTH_BAR,
        ),
        Row(
            f"{name}: lost or crossed",
            "",
            float(found.lost + found.crossed),
            kind=Bar.OURS_AT_MOST,
            bar=0.0,
            facts={"lost": found.lost, "crossed": found.crossed},
        ),
    ]


@contextlib.asynccontextmanager
async def _server() -> AsyncIterator[tuple[int, list[Client]]]:
    with tempfile.TemporaryDirectory(prefix="clo-soak-") as directory:
        place = Path(directory)
        (place / "server.toml").write_text(_SETTINGS)
        records = Records.open(f"sqlite:///{place}/state/server.db")
        tokens = [create_token(records, Wish(f"tenant{n}"))[0] for n in range(TENANTS)]
        records.close()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "cloister", "serve", "--listen", "127.0.0.1:0"),
            *("--config", str(place / "server.toml"), "--socket", str(place / "socket")),
            env={**os.environ, "CLOISTER_STATE": str(place / "state")},
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(_START_S):
                lines = [await process.stdout.readline() for _ in "12"] if process.stdout else []
            if not all(lines):
                raise NotMeasurable("the server did not start")
            url = lines[1].decode().split()[-1]
            yield process.pid, [Client.of(parse_place(url, token)) for token in tokens]
        finally:
            process.terminate()
            await process.wait()
