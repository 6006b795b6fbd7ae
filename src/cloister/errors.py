"""Every error Cloister raises, as one tree that says whose move it is.

CloisterError
├── RequestError           the caller: fix the call
│   ├── NotFound           no such path, sandbox or command; .what names it
│   ├── AlreadyExists      the name is taken; .what names it
│   ├── Busy               somebody else has it; .holder is their process
│   ├── PolicyError        policy text is wrong; .place says where, .nearest what was meant
│   ├── ImageRefused       an image is damaged, too large or lies; nothing of it was kept
│   ├── TokenRefused       a server does not know the token, or not any more
│   ├── ScopeMissing       the token does not allow it; .scope is what would
│   └── Unsupported        this runtime or host cannot do it
├── Denied                 the policy said no; .verdict and .rule. Retrying is pointless
├── Exhausted              a limit was reached; .limit names it
├── GuestError             code inside failed or lied; never blame the host
│   ├── ProtocolViolation  the guest broke the wire's rules
│   ├── GuestGone          the sandbox ended; .reason says why
│   ├── FileError          a file operation was refused inside; .path and .errno_name
│   └── ProcessFailed      a checked process did not succeed; .result holds all of it
└── HostError              ours: the wall was not built or could not be kept
    ├── LaunchFailed       a launch step did not apply; .step, .errno, .hint
    ├── CannotEnforce      a limit or wall cannot be applied here; .limit, .why, .enable
    └── RuntimeGone        the launcher died
"""

from __future__ import annotations

from typing import Any, Literal, Protocol

LimitName = Literal[
    "memory",
    "pids",
    "cpus",
    "disk",
    "inodes",
    "lifetime",
    "idle",
    "ids",
    "output",
    "open_files",
    "sandboxes",
    "requests",
    "queue",
    "body",
    "wait",
]


class CloisterError(Exception):
    """The root of the tree; catch it to catch everything Cloister raises on purpose."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    # Exception's own way of pickling calls the class with `args` alone and would lose (or, where
    # they are required, trip over) the keyword attributes.
    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, dict(self.__dict__))


def _rebuild(
    kind: type[CloisterError], args: tuple[object, ...], state: dict[str, object]
) -> CloisterError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


class RequestError(CloisterError):
    """The call is wrong; the same call will fail again until it is changed."""


class NotFound(RequestError):
    """A path, sandbox or command that does not exist was named; `what` is that name."""

    def __init__(self, message: str, *, what: str) -> None:
        super().__init__(message)
        self.what = what


class AlreadyExists(RequestError):
    """Something of that name is there already and was not replaced; `what` is the name."""

    def __init__(self, message: str, *, what: str) -> None:
        super().__init__(message)
        self.what = what


class Busy(RequestError):
    """Another process has what was asked for; `holder` is its id, or "unknown"."""

    def __init__(self, message: str, *, holder: str) -> None:
        super().__init__(message)
        self.holder = holder


class PolicyError(RequestError):
    """A policy is wrong; `place` is where ("cloister.toml:3 limits.memroy").

    `nearest` is the valid name that was probably meant, or None.
    """

    def __init__(self, message: str, *, place: str, nearest: str | None = None) -> None:
        super().__init__(message)
        self.place = place
        self.nearest = nearest

    def __str__(self) -> str:
        meant = f'; did you mean "{self.nearest}"?' if self.nearest is not None else ""
        return f"{self.place}: {self.message}{meant}"


class ImageRefused(RequestError):
    """An image is damaged, too large, or not what it says it is; nothing of it was kept."""


class TokenRefused(RequestError):
    """A server was given no token, or one that it does not know, or not any more."""


class ScopeMissing(RequestError):
    """The token is valid and does not allow this; `scope` is what would."""

    def __init__(self, message: str, *, scope: str) -> None:
        super().__init__(message)
        self.scope = scope


class Unsupported(RequestError):
    """This runtime or this host cannot do what was asked."""


class Ruling(Protocol):
    """What `Denied` needs of a verdict; `cloister.policy.Verdict` is one."""

    @property
    def effect(self) -> str: ...
    @property
    def rule(self) -> str: ...
    @property
    def reason(self) -> str: ...


class Denied(CloisterError):
    """The policy said no; `verdict` is its whole answer and `rule` the rule that gave it."""

    def __init__(self, message: str, *, verdict: Ruling) -> None:
        super().__init__(message)
        self.verdict = verdict
        self.rule = verdict.rule


class Exhausted(CloisterError):
    """A limit was reached; `limit` names it."""

    def __init__(self, message: str, *, limit: LimitName) -> None:
        super().__init__(message)
        self.limit: LimitName = limit


class GuestError(CloisterError):
    """Something inside the sandbox failed or lied; the host is well."""


class ProtocolViolation(GuestError):
    """The guest sent bytes the wire does not allow."""


class GuestGone(GuestError):
    """The sandbox has ended; `reason` says how."""

    def __init__(self, message: str, *, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class FileError(GuestError):
    """A file operation was refused inside; `errno_name` is the kernel's word ("EISDIR")."""

    def __init__(self, message: str, *, path: str, errno_name: str) -> None:
        super().__init__(message)
        self.path = path
        self.errno_name = errno_name


class Outcome(Protocol):
    """What `ProcessFailed` promises of its result; `cloister.model.Result` is one."""

    @property
    def exit_code(self) -> int | None: ...
    @property
    def signal(self) -> int | None: ...
    @property
    def stdout(self) -> str: ...
    @property
    def stderr(self) -> str: ...
    def describe(self) -> str: ...


class ProcessFailed(GuestError):
    """A process whose success was required did not succeed; `result` is all that is known."""

    def __init__(self, message: str, *, result: Outcome) -> None:
        super().__init__(message)
        self.result = result


class HostError(CloisterError):
    """The fault is on the host's side; nothing ran unconfined."""


class LaunchFailed(HostError):
    """A step of building the wall did not apply, so nothing ran.

    `step` is the step's name, `errno` the kernel's number where there was one, `hint` what to do.
    """

    def __init__(
        self, message: str, *, step: str, errno: int | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message)
        self.step = step
        self.errno = errno
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message}; {self.hint}"


class CannotEnforce(HostError):
    """A limit or wall cannot be applied on this host: `why` not, and how to `enable` it."""

    def __init__(self, message: str, *, limit: str, why: str, enable: str) -> None:
        super().__init__(message)
        self.limit = limit
        self.why = why
        self.enable = enable

    def __str__(self) -> str:
        return f"{self.message}: {self.why}; {self.enable}"


class RuntimeGone(HostError):
    """The launcher died; every sandbox it held has ended with it."""
