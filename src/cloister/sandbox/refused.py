"""Says in words why a program could not be started."""

from __future__ import annotations

import errno
import os

from cloister.errors import CloisterError, Exhausted, GuestError, NotFound, RequestError
from cloister.model import quote
from cloister.wire import Failed


def explain(failed: Failed, program: bytes, cwd: bytes) -> CloisterError:
    """Return the error for a program that could not be started; its cause is the kernel's word."""
    error = _explained(failed, program, cwd)
    error.__cause__ = OSError(failed.errno, os.strerror(failed.errno))
    return error


def _explained(failed: Failed, program: bytes, cwd: bytes) -> CloisterError:
    name = errno.errorcode.get(failed.errno, str(failed.errno))
    words = os.strerror(failed.errno)
    what = os.fsdecode(program)
    shown = quote(what)
    match failed.step, name:
        case "execute", "ENOENT":
            way = "give its full path, or install it"
            if "/" in what:
                way = "copy or install it, or the interpreter that its first line names"
            return NotFound(f"no program {shown} in the sandbox; {way}", what=what)
        case "directory", _:
            place = quote(os.fsdecode(cwd))
            return RequestError(f"working directory {place} cannot be entered: {words}")
        case (
            "execute",
            "EACCES" | "EISDIR" | "ENOEXEC" | "ELOOP" | "ENOTDIR" | "E2BIG" | "EINVAL",
        ):
            return RequestError(f"program {shown} cannot be executed: {words}")
        # Where RLIMIT_NPROC counts, the kernel lets a fork of the guest's root pass, and refuses
        # when that has become the user.
        case "fork" | "execute", "EAGAIN":
            return Exhausted(
                "the sandbox has as many processes as it may have; "
                "end some, or raise Limits(pids=)",
                limit="pids",
            )
        case "fork", "ENOMEM":
            return Exhausted("the sandbox is out of memory; raise Limits(memory=)", limit="memory")
    return GuestError(f"the guest could not start {shown} at {failed.step}: {words} ({name})")
