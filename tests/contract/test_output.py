"""What goes in and comes out of a run: exact bytes, in any amount, kept up to a limit."""

from __future__ import annotations

import hashlib
import random

import pytest

from cloister import Limits, RequestError, Sandbox

MEBIBYTE = 1 << 20


def noise(size: int) -> bytes:
    return random.Random(size).randbytes(size)


async def test_output_is_exact_to_the_byte(sandbox: Sandbox) -> None:
    source = "import sys; sys.stdout.buffer.write(bytes(range(256)) * 3)"
    result = await sandbox.run(["python3", "-c", source])
    assert result.stdout_bytes == bytes(range(256)) * 3
    assert (result.stdout_total, result.stdout_truncated) == (768, False)


async def test_the_two_outputs_stay_apart(sandbox: Sandbox) -> None:
    result = await sandbox.run("echo out; echo error >&2; printf more")
    assert (result.stdout, result.stderr) == ("out\nmore", "error\n")


async def test_text_that_is_not_utf8_is_shown_with_replacements(sandbox: Sandbox) -> None:
    result = await sandbox.run(r"printf 'a\377b'")
    assert result.stdout == "a\ufffdb"
    assert result.stdout_bytes == b"a\xffb"


async def test_output_past_the_limit_is_counted_but_not_kept(sandbox: Sandbox) -> None:
    source = "import sys; sys.stdout.write('o' * 5000); sys.stderr.write('e' * 3000)"
    result = await sandbox.run(["python3", "-c", source], output=4000)
    assert result.stdout_bytes == b"o" * 4000
    assert (result.stdout_total, result.stdout_truncated) == (5000, True)
    assert result.stderr_bytes == b"e" * 3000
    assert (result.stderr_total, result.stderr_truncated) == (3000, False)


async def test_output_of_exactly_the_limit_is_whole(sandbox: Sandbox) -> None:
    result = await sandbox.run("printf 12345", output=5)
    assert (result.stdout, result.stdout_truncated) == ("12345", False)


async def test_the_limit_of_the_policy_holds_for_every_run(make) -> None:
    async with make(limits=Limits(output=1000)) as sandbox:
        result = await sandbox.run("head -c 2000 /dev/zero")
        assert (len(result.stdout_bytes), result.stdout_total) == (1000, 2000)
        assert len((await sandbox.run("head -c 2000 /dev/zero", output=3000)).stdout_bytes) == 2000


async def test_a_flood_on_both_outputs_is_read_to_its_end(sandbox: Sandbox) -> None:
    flood = "head -c 20000000 /dev/zero & head -c 10000000 /dev/zero >&2; wait"
    result = await sandbox.run(flood, output=MEBIBYTE)
    assert (result.stdout_total, result.stderr_total) == (20_000_000, 10_000_000)
    assert len(result.stdout_bytes) == len(result.stderr_bytes) == MEBIBYTE
    assert result.ok


@pytest.mark.parametrize("size", [0, 1, 65_536, MEBIBYTE, 9 * MEBIBYTE + 1])
async def test_input_comes_back_whole_through_cat(sandbox: Sandbox, size: int) -> None:
    data = noise(size)
    result = await sandbox.run(["cat"], stdin=data, output=16 * MEBIBYTE)
    assert result.stdout_total == size
    assert hashlib.sha256(result.stdout_bytes).digest() == hashlib.sha256(data).digest()


async def test_input_may_be_text(sandbox: Sandbox) -> None:
    assert (await sandbox.run(["cat"], stdin="grüße\n")).stdout == "grüße\n"


async def test_without_input_a_program_finds_the_end_at_once(sandbox: Sandbox) -> None:
    assert (await sandbox.run(["cat"])).stdout == ""
    assert (await sandbox.run(["cat"], stdin=b"")).stdout == ""


async def test_a_program_need_not_read_its_input(sandbox: Sandbox) -> None:
    result = await sandbox.run("head -c 3; exec <&-; echo done", stdin=noise(4 * MEBIBYTE))
    assert result.stdout_bytes == noise(4 * MEBIBYTE)[:3] + b"done\n"
    assert (await sandbox.run(["true"], stdin=bytes(4 * MEBIBYTE))).ok
    assert (await sandbox.run(["cat"], stdin=b"next")).stdout == "next"


@pytest.mark.parametrize("output", [-1, "many", True])
async def test_an_impossible_output_limit_is_the_callers_error(
    sandbox: Sandbox, output: object
) -> None:
    with pytest.raises(RequestError):
        await sandbox.run("echo one", output=output)  # type: ignore[arg-type]
    assert (await sandbox.run("echo one", output=1)).stdout == "o"
