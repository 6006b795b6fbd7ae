"""What Inspect's check does not ask: limits, users, odd input, names, and what stays behind."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from inspect_ai.util import (
    OutputLimitExceededError,
    SandboxEnvironmentSpec,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
)
from inspect_ai.util._sandbox.limits import override_max_exec_output_size
from pydantic import ValidationError

from cloister import PolicyError, RequestError, Sandbox
from cloister.inspect.config import CloisterConfig
from cloister.inspect.environment import CloisterEnvironment
from cloister.node import open_store

ATTACHED = CloisterConfig(attach=True)


@contextlib.asynccontextmanager
async def sample(config: Any = None):
    """The sandbox of one sample."""
    environments = await CloisterEnvironment.sample_init("task", config, {"__sample_id__": "1"})
    try:
        yield environments["default"].as_type(CloisterEnvironment)
    finally:
        await CloisterEnvironment.sample_cleanup("task", config, environments, False)


async def test_a_timeout_kills_what_took_a_session_of_its_own(sandbox_env) -> None:
    daemon = (
        "setsid flock lock sh -c 'echo up > ready; sleep 600' & while ! [ -s ready ]; do :; done"
    )
    with pytest.raises(TimeoutError):
        await sandbox_env.exec(["sh", "-c", f"touch lock; {daemon}; sleep 600"], timeout=2)
    assert (await sandbox_env.exec(["cat", "ready"])).stdout == "up\n"
    # The lock is free once all that held it have ended.
    assert (await sandbox_env.exec(["flock", "-n", "lock", "true"])).success


async def test_a_daemon_outlives_the_command_that_started_it(sandbox_env) -> None:
    started = await sandbox_env.exec(["sh", "-c", "touch lock; flock lock sleep 600 >&- 2>&- &"])
    assert started.success
    waiting = ["sh", "-c", "while flock -n lock true; do :; done; echo held"]
    assert (await sandbox_env.exec(waiting, timeout=10)).stdout == "held\n"


async def test_what_was_printed_until_a_timeout_is_told(sandbox_env) -> None:
    with pytest.raises(TimeoutError) as raised:
        await sandbox_env.exec(["sh", "-c", "echo so far; sleep 600"], timeout=1)
    assert raised.value.truncated_output == "so far\n"


async def test_a_missing_program_is_a_result_and_not_an_error(sandbox_env) -> None:
    result = await sandbox_env.exec(["no-such-program"])
    assert (result.success, result.returncode) == (False, 127)
    assert "no-such-program" in result.stderr


@pytest.mark.parametrize(
    "cmd",
    [["echo", "a\0b"], ["echo", "x" * 200_000], [], ["echo", "\ud800"]],
    ids=["zero byte", "long", "empty", "surrogate"],
)
async def test_a_command_that_cannot_be_is_a_result(sandbox_env, cmd) -> None:
    result = await sandbox_env.exec(cmd)
    assert (result.success, result.returncode) == (False, 126)
    assert result.stderr
    assert (await sandbox_env.exec(["echo", "well"])).stdout == "well\n"


@pytest.mark.parametrize("path", ["a\0b", "x" * 5000, "", "/proc/1/mem"])
async def test_a_path_that_cannot_be_read_is_an_error_inspect_knows(sandbox_env, path) -> None:
    with pytest.raises((FileNotFoundError, PermissionError, IsADirectoryError)):
        await sandbox_env.read_file(path)


async def test_output_over_the_limit_is_told_with_its_beginning(sandbox_env) -> None:
    with override_max_exec_output_size(1000):
        with pytest.raises(OutputLimitExceededError) as raised:
            await sandbox_env.exec(["sh", "-c", "head -c 1001 /dev/zero | tr '\\0' a"])
        assert raised.value.truncated_output == "a" * 1000
        assert (await sandbox_env.exec(["printf", "a" * 1000])).stdout == "a" * 1000


async def test_a_command_ended_by_the_memory_limit_says_so() -> None:
    async with sample(CloisterConfig(memory="64MiB")) as environment:
        result = await environment.exec(["python3", "-c", "x = bytearray(512 << 20)"])
        assert not result.success
        assert "memory limit" in result.stderr


async def test_overwriting_a_file_leaves_its_mode(sandbox_env) -> None:
    await sandbox_env.write_file("tool", "#!/bin/sh\necho one\n")
    await sandbox_env.exec(["chmod", "755", "tool"])
    await sandbox_env.write_file("tool", "#!/bin/sh\necho two\n")
    assert (await sandbox_env.exec(["./tool"])).stdout == "two\n"


async def test_code_is_no_root_and_the_evaluation_may_be(sandbox_env) -> None:
    script = ["sh", "-c", "id -u; touch /etc/mine && echo wrote"]
    ordinary = await sandbox_env.exec(script)
    assert ordinary.stdout == "1000\n"
    assert (await sandbox_env.exec(script, user="root")).stdout == "0\nwrote\n"
    assert (await sandbox_env.exec(["sh", "-c", "echo $HOME"], user="root")).stdout == "/root\n"


async def test_a_user_the_policy_denies_is_unsupported() -> None:
    async with sample(CloisterConfig(profile="default")) as environment:
        with pytest.raises(SandboxUserUnsupportedError):
            await environment.exec(["id", "-u"], user="root")
        assert (await environment.exec(["id", "-u"], user="user")).stdout == "1000\n"


async def test_a_sandbox_that_has_ended_is_unavailable(sandbox_env) -> None:
    await sandbox_env.sandbox.stop()
    with pytest.raises(SandboxUnavailableError):
        await sandbox_env.exec(["true"])
    with pytest.raises(SandboxUnavailableError):
        await sandbox_env.read_file("/etc/passwd")
    with pytest.raises(SandboxUnavailableError):
        await sandbox_env.write_file("file", "text")
    with pytest.raises(ConnectionError):
        await sandbox_env.connection()


async def test_a_policy_file_is_the_whole_policy(tmp_path: Path) -> None:
    file = tmp_path / "cloister.toml"
    file.write_text('[env]\nCOLOUR = "blue"\n[limits]\nmemory = "100MiB"\n')
    async with sample(str(file)) as environment:
        assert (await environment.exec(["sh", "-c", "echo $COLOUR"])).stdout == "blue\n"
        assert environment.sandbox.policy.limits.memory == 100 * 2**20
    file.write_text('[limits]\nmemroy = "1GiB"\n')
    with pytest.raises(PolicyError, match="memory"):
        await CloisterEnvironment.sample_init("task", str(file), {})


def test_an_unknown_key_of_the_configuration_is_an_error() -> None:
    with pytest.raises(ValidationError, match="memroy"):
        CloisterEnvironment.config_deserialize({"memroy": "1GiB"})
    spec = SandboxEnvironmentSpec("cloister", CloisterConfig(memory="1GiB", allow=("example.org",)))
    assert SandboxEnvironmentSpec.model_validate(spec.model_dump()) == spec
    assert hash(spec) == hash(SandboxEnvironmentSpec.model_validate(spec.model_dump()))


async def test_a_template_and_a_policy_exclude_each_other() -> None:
    with pytest.raises(RequestError, match="template"):
        await CloisterEnvironment.sample_init("t", CloisterConfig(template="t", image="i"), {})


async def test_without_a_name_nobody_connects(sandbox_env) -> None:
    with pytest.raises(NotImplementedError, match="attach"):
        await sandbox_env.connection()


async def test_an_attached_sandbox_is_reached_by_name_and_leaves_nothing(cli) -> None:
    async with sample(ATTACHED) as environment:
        connection = await environment.connection()
        assert connection.command == f"cloister exec --tty {connection.container} -- /bin/sh"
        await environment.write_file("file", "seen")
        seen = await cli("exec", str(connection.container), "--", "cat", "file")
        assert seen == b"seen"
    assert not [kept.name for kept in (await open_store()).kept.list()]


async def test_cleaning_up_removes_what_is_left_and_not_what_lives() -> None:
    others = {"mine", "inspect-team.of-a-tenant"}
    for name in ("inspect-left", *others):
        async with Sandbox(keep=name):
            pass
    async with sample(ATTACHED) as living:
        await CloisterEnvironment.cli_cleanup(None)
        names = {kept.name for kept in (await open_store()).kept.list()}
        assert names == {*others, living.name}
        await CloisterEnvironment.cli_cleanup(living.name)
        assert not living.sandbox.is_running
    for name in others:
        with pytest.raises(RequestError):
            await CloisterEnvironment.cli_cleanup(name)
    assert {kept.name for kept in (await open_store()).kept.list()} == others
    for name in others:
        (await open_store()).kept.remove(name)
