"""How an error leaves the command line: one line for a person or one object, and an exit code."""

from __future__ import annotations

import errno
import json
import sys
from collections.abc import Sequence

import click

from cloister.cli.neutral import neutralise
from cloister.errors import CloisterError, Exhausted, ProcessFailed, RequestError, Unsupported

USAGE = 2
TIMEOUT = 124
OURS = 125
CANNOT_EXECUTE = 126
NOT_FOUND = 127
INTERRUPTED = 130

# Attributes of our errors that say more than their text.
_DETAILS = ("what", "place", "nearest", "rule", "limit", "reason", "path", "step", "hint", "enable")


# What a host can be short of in any place, and what helps.
_ADVICE = {
    errno.EMFILE: "raise the number of open files, `ulimit -n`",
    errno.ENFILE: "raise the number of open files, sysctl fs.file-max",
    errno.EFBIG: "raise the size of a file that this process may write, `ulimit -f`",
    errno.ENOSPC: "make room there",
    errno.EDQUOT: "make room there, or have the quota raised",
    errno.EROFS: "have it mounted to be written to, or name another place with CLOISTER_STATE",
    errno.ENOMEM: "end something, or raise `ulimit -v`",
}


class Leave(CloisterError):
    """Leaves with an exit code that the error alone does not tell."""

    def __init__(self, cause: CloisterError, code: int, advice: str | None = None) -> None:
        super().__init__(str(cause) if advice is None else f"{cause}; {advice}")
        self.cause = cause
        self.code = code


def report(error: Exception, arguments: Sequence[str]) -> int:
    """Say what went wrong on standard error, as the caller asked for it; return the exit code."""
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    code, message = exit_code(error), _message(error)
    if wants_json(arguments):
        cause = error.cause if isinstance(error, Leave) else error
        described: dict[str, object] = {
            "kind": _kind(cause),
            "message": message,
            "exit_code": code,
        }
        for name in _DETAILS:
            value = getattr(cause, name, None)
            if isinstance(value, str | int):
                described[name] = value
        line = json.dumps({"error": described})
    else:
        # Errors quote what strangers wrote: whoever forgets to escape it does no harm here.
        line = f"cloister: {neutralise(message)}"
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:
        # Nobody reads standard error any more; the exit code still says it.
        return code
    return code


def exit_code(error: BaseException) -> int:
    """Return the code for an error: whose fault it is decides."""
    match error:
        case Leave():
            return error.code
        case click.Abort():
            return INTERRUPTED
        case click.ClickException():
            return error.exit_code
        case Unsupported():
            return OURS
        case RequestError():
            return USAGE
        case Exhausted(limit="lifetime" | "idle"):
            return TIMEOUT
        case ProcessFailed() if error.result.exit_code:
            return error.result.exit_code
    return OURS


def wants_json(arguments: Sequence[str]) -> bool:
    """Whether `--json` was asked for, also where the rest of the line could not be read."""
    for argument in arguments:
        if argument == "--":
            return False
        if argument == "--json":
            return True
    return False


def _kind(error: BaseException) -> str:
    return "UsageError" if isinstance(error, click.UsageError) else type(error).__name__


def _message(error: BaseException) -> str:
    if isinstance(error, click.UsageError):
        # Click writes sentences; ours is one line that begins small, like every other error.
        text = " ".join(error.format_message().split()).removesuffix(".")
        text = text.replace(". Did you mean", "; did you mean")
        place = "cloister" if error.ctx is None else error.ctx.command_path
        return f"{text[:1].lower()}{text[1:]}; see `{place} --help`"
    if isinstance(error, click.ClickException):
        return " ".join(error.format_message().split())
    if isinstance(error, CloisterError):
        return " ".join(str(error).split())
    if isinstance(error, OSError) and error.errno in _ADVICE:
        place = "" if error.filename is None else f"{error.filename}: "
        words = " ".join(str(error.strerror).split()).lower()
        return f"{place}{words}; {_ADVICE[error.errno]}"
    return (
        f"unexpected {type(error).__name__}: {' '.join(str(error).split())}; "
        "set CLOISTER_DEBUG=1 to see where"
    )
