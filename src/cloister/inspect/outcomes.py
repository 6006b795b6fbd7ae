"""Translates how Cloister says that something failed into how Inspect wants to hear it."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxEnvironmentLimits,
    SandboxUnavailableError,
)

from cloister.errors import (
    AlreadyExists,
    CloisterError,
    Exhausted,
    FileError,
    GuestGone,
    HostError,
    NotFound,
    ProtocolViolation,
    RequestError,
)
from cloister.model import Reason, Result

_CANNOT_EXECUTE = 126
_NOT_FOUND = 127
_ENDED_BY_LIMIT = (Reason.MEMORY, Reason.PIDS, Reason.DISK)


def exec_result(result: Result, timeout_s: float | None) -> ExecResult[str]:
    """Return the end of a command, or raise what Inspect wants raised instead."""
    if result.reason is Reason.TIMEOUT:
        limit = "the policy's wall time" if timeout_s is None else f"{timeout_s:g} seconds"
        error = TimeoutError(f"command timed out after {limit}")
        # Inspect shows what there was until then under this name.
        error.truncated_output = result.stdout + result.stderr  # type: ignore[attr-defined]
        raise error
    if result.stdout_truncated or result.stderr_truncated:
        raise OutputLimitExceededError(
            limit_str=SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR,
            truncated_output=result.stdout + result.stderr,
        )
    stderr = result.stderr
    if result.reason in _ENDED_BY_LIMIT:
        # Otherwise a model sees a program that died for no reason.
        stderr = f"{stderr.rstrip()}\ncloister: {result.describe()}\n".lstrip()
    code = _CANNOT_EXECUTE if result.exit_code is None else result.exit_code
    return ExecResult(result.ok, code, result.stdout, stderr)


def exec_failure(error: CloisterError) -> ExecResult[str]:
    """Return the result of a command that could not be started, or raise whose fault it is."""
    cause = error.__cause__
    if isinstance(cause, PermissionError):
        raise PermissionError(cause.errno, str(error)) from error
    _raise_if_gone(error)
    if isinstance(error, RequestError | Exhausted):
        code = _NOT_FOUND if isinstance(error, NotFound) else _CANNOT_EXECUTE
        return ExecResult(False, code, "", f"{error}\n")
    raise error


@contextlib.contextmanager
def file_errors(path: str) -> Iterator[None]:
    """Raise the errors of the operating system for those of the sandbox's files."""
    try:
        yield
    except CloisterError as error:
        _raise_if_gone(error)
        raise _as_os_error(error, path) from error


def _as_os_error(error: CloisterError, path: str) -> Exception:
    match error:
        case Exhausted(limit="output"):
            return OutputLimitExceededError(
                limit_str=SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, truncated_output=None
            )
        case Exhausted():
            return OSError(errno.ENOSPC, str(error), path)
        case FileError():
            # Built from its number, it is of the class that number has.
            number = getattr(errno, error.errno_name, errno.EIO)
            return OSError(number, str(error), path)
        case AlreadyExists():
            return FileExistsError(errno.EEXIST, str(error), path)
        case NotFound() | RequestError():
            # A path that cannot be is not there either; a model can name another.
            return FileNotFoundError(errno.ENOENT, str(error), path)
    return error


def _raise_if_gone(error: CloisterError) -> None:
    gone = isinstance(error, GuestGone | HostError | ProtocolViolation)
    if gone or (isinstance(error, Exhausted) and error.limit in ("lifetime", "idle")):
        raise SandboxUnavailableError(f"the sandbox is not running: {error}") from error
