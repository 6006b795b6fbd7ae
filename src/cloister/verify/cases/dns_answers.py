"""DNS: answers of a real name server that change between two questions, or lead elsewhere."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import cloister
from cloister.verify.arena import Arena
from cloister.verify.case import NotApplicable, case
from cloister.verify.cases.started import in_time
from cloister.verify.name_trial import EVIL, GOOD, PUBLIC

_PACKAGE = str(Path(cloister.__file__).parents[1])
_MAIN = (
    "import sys; sys.path.append(sys.argv[1]); from cloister.verify.name_trial import main; main()"
)


async def _tried() -> tuple[list[dict[str, Any]], list[str]]:
    """Return what became of each name, and the addresses at which something arrived."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-c", _MAIN, _PACKAGE),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    stdout, stderr = await in_time("the trial of names", process.communicate())
    if process.returncode != 0:
        words = stderr.decode("utf-8", "replace").strip().splitlines()
        raise NotApplicable(f"no name server can be put in the resolver's way: {words[-1:]}")
    told = json.loads(stdout)
    return told["outcomes"], told["arrived"]


@case("DNS-04", "an answer that changes between the check and the connection", "critical")
async def flipping(arena: Arena) -> None:
    outcomes, arrived = await _tried()
    first, second, opens, closes, *_ = outcomes
    for each in outcomes:
        # A second question in between would be answered otherwise, which is the attack.
        arena.expect(each["asked"] == 1, f"{each['name']} was asked for {each['asked']} times")
    # The twins: both addresses can be reached, and each connection went where its answer said.
    arena.expect(first.get("reached") == GOOD and first["checked"] == [GOOD], f"{first}")
    arena.expect(second.get("reached") == EVIL and second["checked"] == [EVIL], f"{second}")
    arena.expect(opens.get("checked") == [PUBLIC] and "unreachable" in opens, f"{opens}")
    arena.expect(EVIL in closes.get("refused", ""), f"not refused: {closes}")
    arena.expect(arrived.count(GOOD) == 1, f"connections came to {arrived}")


@case("DNS-07", "an allowed name that is another name's, and leads to a private address", "high")
async def chained(arena: Arena) -> None:
    outcomes, arrived = await _tried()
    public, private, keys = outcomes[-3:]
    arena.expect(EVIL in public.get("refused", ""), f"the end of the chain is dialled: {public}")
    arena.expect("keys are given out" in keys.get("refused", ""), f"keys can be asked for: {keys}")
    # The twin: by a policy that says so, the same chain leads there.
    arena.expect(private.get("reached") == EVIL, f"the chain does not lead anywhere: {private}")
    arena.expect(arrived.count(EVIL) == 2, f"connections came to {arrived}")
