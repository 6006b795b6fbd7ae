"""Why a call is refused, in the words and numbers that the two kinds of client understand."""

from __future__ import annotations

from cloister.errors import (
    AlreadyExists,
    Busy,
    CannotEnforce,
    CloisterError,
    Denied,
    Exhausted,
    FileError,
    GuestGone,
    NotFound,
    RequestError,
    RuntimeGone,
    ScopeMissing,
    TokenRefused,
    Unsupported,
)
from cloister.server.discretion import as_told
from cloister.server.endpoint import new_request_id

# The codes of the Connect protocol and the HTTP status each one travels with.
STATUS = {
    "canceled": 499,
    "unknown": 500,
    "invalid_argument": 400,
    "deadline_exceeded": 504,
    "not_found": 404,
    "already_exists": 409,
    "permission_denied": 403,
    "resource_exhausted": 429,
    "failed_precondition": 400,
    "unimplemented": 501,
    "internal": 500,
    "unavailable": 503,
    "unauthenticated": 401,
}
_INVALID = frozenset({"EISDIR", "ENOTDIR", "EINVAL", "ENAMETOOLONG", "ELOOP", "ENOTEMPTY", "EXDEV"})
_FORBIDDEN = frozenset({"EACCES", "EPERM", "EROFS"})


class CallRefused(CloisterError):
    """A call over the E2B protocol cannot be answered; `code` is Connect's word for why."""

    def __init__(self, code: str, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.status = STATUS[code] if status is None else status


class SandboxOver(CallRefused):
    """The sandbox ended in the middle of a call."""

    def __init__(self) -> None:
        super().__init__("unavailable", "the sandbox has ended", 502)


def is_over(error: CloisterError) -> bool:
    """Whether an error says that the sandbox itself has ended."""
    if isinstance(error, Exhausted):
        return error.limit in ("lifetime", "idle")
    return isinstance(error, SandboxOver | GuestGone | RuntimeGone)


def refusal_of(error: CloisterError) -> CallRefused:
    """Return what a client of this protocol is told about one of our errors."""
    if isinstance(error, CallRefused):
        return error
    told = as_told(error, new_request_id())
    return CallRefused(_code_of(error), str(told), _status_of(error))


def _code_of(error: CloisterError) -> str:
    match error:
        case TokenRefused():
            return "unauthenticated"
        case ScopeMissing():
            return "permission_denied"
        case NotFound():
            return "not_found"
        case AlreadyExists():
            return "already_exists"
        case FileError(errno_name=name) if name in _INVALID:
            return "invalid_argument"
        case FileError(errno_name=name) if name in _FORBIDDEN:
            return "permission_denied"
        case Unsupported() | CannotEnforce():
            return "unimplemented"
        case Busy():
            return "failed_precondition"
        case RequestError():
            return "invalid_argument"
        case Denied():
            return "permission_denied"
        case Exhausted(limit="lifetime" | "idle"):
            return "unavailable"
        case Exhausted():
            return "resource_exhausted"
        case GuestGone() | RuntimeGone():
            return "unavailable"
    return "internal"


def _status_of(error: CloisterError) -> int | None:
    if isinstance(error, Busy):
        return 409
    # REST says of a full disk that there is no space, not that the caller should slow down.
    if isinstance(error, Exhausted) and error.limit in ("disk", "inodes"):
        return 507
    return None
