"""What of an error may be read by whoever asked: by the machine's owner all, by others no host."""

from __future__ import annotations

import logging
from contextvars import ContextVar

from cloister.errors import (
    Busy,
    CannotEnforce,
    CloisterError,
    HostError,
    LaunchFailed,
    RuntimeGone,
)
from cloister.sandbox.host_places import without_places

log = logging.getLogger("cloister.server")

# Of the request that is being answered. Whoever was not found out is nobody's owner.
_is_owners: ContextVar[bool] = ContextVar("cloister.server.is_owners", default=False)


def answer_owner(is_owner: bool) -> None:
    """Say of the request that is being answered whether the machine's owner makes it."""
    _is_owners.set(is_owner)


def as_told(error: CloisterError, request: str) -> CloisterError:
    """Return an error as whoever asked may read it; the log has all of it, by the request's name.

    What failed on the host's side is the owner's to know: its paths, its programs and what they
    said. Everything else is about what was asked, and loses only the places of our own in it.
    """
    if _is_owners.get():
        return error
    if isinstance(error, HostError):
        log.error("a request failed", extra={"request": request}, exc_info=error)
        return _of_host(error, request)
    told = {
        name: without_places(value) if isinstance(value, str) else value
        for name, value in vars(error).items()
    }
    if isinstance(error, Busy):
        # The number of a process of the host's.
        told["holder"] = "unknown"
    if told == vars(error):
        return error
    words = told["message"]
    changed = type(error).__new__(type(error), words)
    changed.__dict__.update(told)
    changed.__cause__ = error.__cause__
    log.warning("a refusal named the host", extra={"request": request, "error": str(error)})
    return changed


def _of_host(error: HostError, request: str) -> HostError:
    why = f"the server's log has the reason under {request}"
    match error:
        case CannotEnforce():
            return CannotEnforce(
                without_places(error.message, everything=True),
                limit=error.limit,
                why=without_places(error.why, everything=True),
                enable=without_places(error.enable, everything=True),
            )
        case LaunchFailed():
            words = f"the sandbox could not be built, at the step {error.step}; {why}"
            return LaunchFailed(words, step=error.step, errno=error.errno)
        case RuntimeGone():
            return RuntimeGone(f"what held the sandbox has ended, and all in it; {why}")
    return HostError(f"the server failed; {why}")
