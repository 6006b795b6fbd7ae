"""A tool call that did not work: what was wrong, and what to do next."""

from __future__ import annotations

from cloister.errors import (
    CloisterError,
    Denied,
    Exhausted,
    FileError,
    GuestGone,
    HostError,
    NotFound,
    ProtocolViolation,
    RequestError,
)
from cloister.sandbox.host_places import told_of


class ToolFailure(RequestError):
    """The call cannot be done as it is; the text is for the model."""


def explain(error: CloisterError) -> str:
    """Return what a model is told about an error: the fact, and the next step where one helps."""
    # A model repeats what it reads, also to whoever it should not.
    said = " ".join(told_of(error).split())
    match error:
        case ToolFailure():
            return said
        case FileError(errno_name="EISDIR"):
            return f"{said}; use list for directories"
        case FileError(errno_name="EACCES" | "EPERM" | "EROFS"):
            return f"{said}; the sandbox's user may not do that, so choose another place"
        case FileError(errno_name="ENOTDIR"):
            return f"{said}; a part of the path is a file, so look with list"
        case NotFound():
            return f"{said}; look with list or search"
        case Denied():
            return f"{said}; the sandbox's owner decides that, so do without it or ask them"
        case Exhausted(limit="lifetime" | "idle") | GuestGone():
            return (
                f"the sandbox has ended: {said}; what it held is gone unless it was kept, "
                "and the next call starts it anew"
            )
        case HostError() | ProtocolViolation():
            return f"the sandbox failed: {said}; try once more, then tell the person you work for"
    return said


def has_ended(error: CloisterError) -> bool:
    """Whether the sandbox is no more after this."""
    if isinstance(error, Exhausted):
        return error.limit in ("lifetime", "idle")
    return isinstance(error, GuestGone | HostError | ProtocolViolation)
