"""What two who go on from the same memory draw: never the same of the kernel, and what they hold
themselves as the contract of `/dev/cloister/renewal` says.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cloister import Sandbox
from cloister.node.memory_key import SETTING

from .on_gvisor import needs_gvisor

Make = Callable[..., Sandbox]

pytestmark = needs_gvisor

FORKS = 10

# Draws from every kind of generator once a line, and says which number the line has: the kernel's;
# one in its own memory; and one in its own memory that is kept as the contract says.
DRAWING = """
import json, os, random, ssl, time

def renewal():
    with open("/dev/cloister/renewal") as file:
        return file.read()

careless = random.Random(7)
careful = random.Random(os.urandom(32))
known = renewal()

def draw(how):
    # Drawn first and looked at after: what was drawn before a renewal is not used after it.
    global known
    while True:
        drawn = how()
        now = renewal()
        if now == known:
            return drawn
        known = now
        careful.seed(os.urandom(32))
        ssl.RAND_add(os.urandom(32), 32.0)

number = 0
while True:
    number += 1
    line = {
        "number": number,
        "kernel": os.urandom(16).hex(),
        "careless": careless.getrandbits(64),
        "careful": draw(lambda: careful.getrandbits(64)),
        "openssl": draw(lambda: ssl.RAND_bytes(16).hex()),
        "renewal": known,
    }
    with open("/workspace/drawn", "a") as file:
        file.write(json.dumps(line) + "\\n")
    time.sleep(0.02)
"""


@pytest.fixture(autouse=True)
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "memory.key"
    path.write_text("ab" * 32)
    path.chmod(0o600)
    monkeypatch.setenv(SETTING, str(path))


async def _drawn(sandbox: Sandbox, is_enough: Callable[[list[dict[str, Any]]], bool]) -> Any:
    """Return what was drawn, once that is enough."""
    async with asyncio.timeout(100):
        while True:
            result = await sandbox.run(["cat", "/workspace/drawn"])
            # The last line may be half written.
            whole = result.stdout.rpartition("\n")[0].splitlines()
            found = [json.loads(line) for line in whole]
            if is_enough(found):
                return found
            await asyncio.sleep(0.02)


def _after(renewal: str) -> Callable[[list[dict[str, Any]]], bool]:
    return lambda lines: sum(line["renewal"] == renewal for line in lines) >= 4


async def test_ten_forks_count_on_and_none_draws_what_another_does(make: Make) -> None:
    async with make(trust="untrusted", keep="drawing") as sandbox:
        await sandbox.start(["python3", "-u", "-c", DRAWING])
        before = await _drawn(sandbox, lambda lines: len(lines) >= 3)
        await sandbox.snapshot("mid-run", memory=True)
        async with Sandbox.fork("drawing@mid-run", count=FORKS) as forks:
            lives = await asyncio.gather(
                *(_drawn(fork, _after(f"renewal=1\nsandbox={fork.id}\n")) for fork in forks)
            )
        lives.append(await _drawn(sandbox, lambda lines: len(lines) >= len(before) + 20))
    for lines in lives:
        assert [line["number"] for line in lines] == [*range(1, len(lines) + 1)]
    # The first of them may have been begun before memory was saved.
    renewed = [
        [line for line in lines if "renewal=1" in line["renewal"]][1:] for lines in lives[:-1]
    ]
    begun = len(lives[0]) - len(renewed[0])
    for kind in ("kernel", "careful", "openssl"):
        later = [line[kind] for lines in (*renewed, lives[-1][begun:]) for line in lines]
        assert len(set(later)) == len(later), kind
    # What nobody told it to renew is the same in all of them: this is why there is a contract. And
    # each of them was told in the same moment, before it drew anything.
    same = {tuple(line["careless"] for line in lines[:3]) for lines in renewed}
    assert len(same) == 1
    assert {lines[0]["number"] for lines in renewed} == {begun + 1}
