"""Run the benches: `python -m benches [--only NAME] [--quick]`."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from rich.console import Console

from benches import (
    create,
    depth,
    e2b,
    egress,
    files,
    gvisor,
    hundred,
    idle,
    ledger,
    microvm,
    report,
    run,
    server,
    soak,
    state,
    stream,
    wasm,
)
from benches.measure import NotMeasurable
from benches.peers import find_peers
from benches.row import Row
from benches.setting import Setting
from cloister.errors import CloisterError

BENCHES: dict[str, Callable[[Setting], Awaitable[list[Row]]]] = {
    "create": create.measure,
    "run": run.measure,
    "hundred": hundred.measure,
    "idle": idle.measure,
    "stream": stream.measure,
    "files": files.measure,
    "state": state.measure,
    "ledger": ledger.measure,
    "egress": egress.measure,
    "depth": depth.measure,
    "server": server.measure,
    "e2b": e2b.measure,
    "gvisor": gvisor.measure,
    "microvm": microvm.measure,
    "wasm": wasm.measure,
}
# Only when named: it takes ten minutes.
LONG = {"soak": soak.measure}
TMPFS = Path("/dev/shm")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benches", description=__doc__)
    parser.add_argument(
        "--only", choices={**BENCHES, **LONG}, action="append", help="this bench; repeatable"
    )
    parser.add_argument(
        "--quick", action="store_true", help="fewer turns: is it broken, not how fast"
    )
    parser.add_argument("--to", type=Path, default=Path("bench-results.json"))
    arguments = parser.parse_args()
    console = Console()
    chosen = arguments.only or list(BENCHES)
    with tempfile.TemporaryDirectory(prefix="cloister-bench-", dir=TMPFS) as scratch:
        rows = asyncio.run(measure_all(console, chosen, arguments.quick, Path(scratch)))
    report.show(console, rows)
    report.write(arguments.to, rows)
    console.print(f"written to {arguments.to}")
    return 1 if any(row.holds is False for row in rows) else 0


async def measure_all(console: Console, chosen: list[str], quick: bool, scratch: Path) -> list[Row]:
    # The sandbox's own ids must be able to walk through it to what lies below.
    scratch.chmod(0o755)
    peers, absent = await find_peers(scratch)
    rows: list[Row] = []
    for name in chosen:
        folder = scratch / name
        folder.mkdir()
        with console.status(f"measuring {name}"):
            try:
                rows += await {**BENCHES, **LONG}[name](Setting(quick, folder, peers, absent))
            except NotMeasurable as reason:
                rows.append(Row(name=name, unit="", why=str(reason)))
            except CloisterError as error:
                rows.append(Row(name=name, unit="", why=f"failed: {error}", failed=True))
    return rows


if __name__ == "__main__":
    sys.exit(main())
