"""`--allow` on the command line."""

from __future__ import annotations

import asyncio
import subprocess
import sys


async def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cloister", "run", "--no-ledger", *arguments]
    return await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=60
    )


async def test_a_host_is_allowed_and_another_is_not() -> None:
    look_up = ("--", "sh", "-c", "getent ahostsv4 a.test; getent ahostsv4 b.test || echo none")
    both = await run("--allow", "a.test", "--allow", "c.test:22", *look_up)
    neither = await run(*look_up)
    assert both.stdout.split()[0] == "198.18.0.2"
    assert both.stdout.split()[-1] == "none"
    assert neither.stdout == "none\n"


async def test_what_is_no_host_is_refused_with_the_options_name() -> None:
    refused = await run("--allow", "https://a.test/", "--", "true")
    assert refused.returncode == 2
    assert "--allow" in refused.stderr


async def test_a_program_that_failed_is_told_what_was_refused_on_its_way_out() -> None:
    ask = ("--", "sh", "-c", "getent ahostsv4 b.test; getent ahostsv4 a.test >/dev/null; exit 4")
    told = await run("--allow", "a.test", *ask)
    assert told.returncode == 4
    assert 'refused on the way out: "b.test"' in told.stderr
    assert "a.test" not in told.stderr
    silent = await run("--allow", "a.test", "--", "sh", "-c", "getent ahostsv4 b.test; exit 0")
    assert (silent.returncode, silent.stderr) == (0, "")
