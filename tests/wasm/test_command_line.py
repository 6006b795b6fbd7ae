"""`cloister run --wasm`: streams, exit codes and refusals, as a shell sees them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Module = Callable[[str], bytes]


@pytest.fixture
def cloister(tmp_path: Path, module: Module) -> Callable[..., subprocess.CompletedProcess[bytes]]:
    """Runs `cloister run` with a module of ours, by its name."""

    def run(name: str, *words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        path = tmp_path / f"{name}.wasm"
        path.write_bytes(module(name))
        command = [sys.executable, "-m", "cloister", "run", "--wasm", str(path), *words]
        return subprocess.run(command, input=stdin, capture_output=True, timeout=60, check=False)

    return run


def test_arguments_variables_and_exit_code_are_the_modules(
    cloister: Callable[..., subprocess.CompletedProcess[bytes]],
) -> None:
    done = cloister("echo", "--env", "COLOUR=green", "--", "--flag", "word")
    assert done.returncode == 3 and done.stdout == b"echo.wasm\0--flag\0word\0"
    assert b"COLOUR=green\0" in done.stderr


def test_standard_input_goes_in_and_output_comes_out_byte_for_byte(
    cloister: Callable[..., subprocess.CompletedProcess[bytes]],
) -> None:
    data = bytes(range(256)) * 500
    assert cloister("cat", stdin=data).stdout == data


def test_the_end_at_a_limit_has_its_own_code_and_a_line_that_says_so(
    cloister: Callable[..., subprocess.CompletedProcess[bytes]],
) -> None:
    done = cloister("loop", "--timeout", "1s")
    assert done.returncode == 124 and b"--timeout" in done.stderr


def test_as_json_it_is_one_object(
    cloister: Callable[..., subprocess.CompletedProcess[bytes]],
) -> None:
    done = cloister("cat", "--json", stdin=b"hello")
    assert json.loads(done.stdout)["stdout"] == "hello"


def test_another_runtime_beside_a_module_is_a_wrong_option(
    cloister: Callable[..., subprocess.CompletedProcess[bytes]],
) -> None:
    done = cloister("echo", "--runtime", "namespace")
    assert done.returncode == 2 and b"--wasm" in done.stderr and not done.stdout
