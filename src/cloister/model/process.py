"""Read what a caller wants run: command, environment and working directory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

from cloister.errors import RequestError
from cloister.model.paths import parse_absolute_path
from cloister.model.quote import quote

# Linux gives arguments and environment together a quarter of an 8 MiB stack, and one string of
# them 32 pages with its closing zero byte (execve(2), "Limits on size of arguments").
MAXIMUM_EXEC_BYTES = 2 * 2**20
MAXIMUM_STRING_BYTES = 32 * 4096 - 1
_POINTER_BYTES = 8

Command = str | os.PathLike[str] | Sequence[str | bytes | os.PathLike[str]]


class Environment(Mapping[str, str]):
    """Environment variables that cannot change: a mapping that hashes, compares and pickles."""

    __slots__ = ("_pairs",)

    def __init__(self, variables: Mapping[str, str] | None = None) -> None:
        parsed = parse_env({} if variables is None else variables)
        self._pairs = tuple(sorted(parsed.items()))

    def __getitem__(self, name: str) -> str:
        return dict(self._pairs)[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self._pairs)

    def __len__(self) -> int:
        return len(self._pairs)

    def __hash__(self) -> int:
        return hash(self._pairs)

    # Values may be private; a repr ends up in logs and tracebacks.
    def __repr__(self) -> str:
        return f"Environment({', '.join(self)})"


def parse_command(command: object) -> tuple[bytes, ...]:
    """Return the argv of a command: text runs in a shell, a list is an argv, a path a program."""
    if isinstance(command, str):
        if not command.strip():
            raise RequestError("command is empty; write what to run")
        return _fitting((b"/bin/sh", b"-c", _encode(command, "command")))
    # What nearly everybody gives is told first: an abstract class takes as long as all the rest.
    if not isinstance(command, list | tuple):
        if isinstance(command, os.PathLike):
            return _fitting((_encode(command, "command"),))
        if isinstance(command, bytes | bytearray | memoryview) or not isinstance(command, Sequence):
            raise RequestError(
                f"command is {quote(command)}; write text for a shell or a list of arguments"
            )
    if not command:
        raise RequestError("command is an empty list; write at least the program to run")
    # Each takes at least its closing zero byte: a count past that need not be looked at.
    if len(command) > MAXIMUM_EXEC_BYTES:
        raise RequestError(
            f"command has {len(command)} arguments; "
            f"all of it may take {MAXIMUM_EXEC_BYTES} bytes, so pass a file instead"
        )
    argv = tuple([_encode(part, "argument", index) for index, part in enumerate(command)])
    if not argv[0]:
        raise RequestError("argument 0 is empty; write the program to run")
    return _fitting(argv)


def parse_env(variables: object) -> dict[str, str]:
    """Return environment variables that the kernel will take as they are."""
    if not isinstance(variables, Mapping):
        raise RequestError(f"env is {quote(variables)}; write a mapping of names to text")
    parsed: dict[str, str] = {}
    for name, value in variables.items():
        if not isinstance(name, str) or not name or "=" in name or "\0" in name:
            raise RequestError(
                f'env has the name {quote(name)}; a name is text, not empty, without "=" '
                "and without a zero byte"
            )
        if not isinstance(value, str):
            raise RequestError(f"env {quote(name)} is {quote(value)}; write the value as text")
        # Checked as the one string the kernel counts.
        _encode(f"{name}={value}", f"env {quote(name)}")
        parsed[name] = value
    require_exec_fits((), parsed)
    return parsed


def parse_cwd(value: object) -> str:
    """Return a working directory inside the sandbox."""
    return parse_absolute_path(value, "cwd")


def require_exec_fits(argv: Sequence[bytes], env: Mapping[str, str]) -> None:
    """Refuse a command and environment that are too large together for one process."""
    total_bytes = sum(map(len, argv)) + (len(argv) + len(env)) * (1 + _POINTER_BYTES)
    for name, value in env.items():
        total_bytes += len(f"{name}={value}".encode("utf-8", "surrogateescape"))
    if total_bytes > MAXIMUM_EXEC_BYTES:
        raise RequestError(
            f"command and environment take {total_bytes} bytes; together they may take "
            f"{MAXIMUM_EXEC_BYTES}, so write them to a file inside or to standard input"
        )


def _fitting(argv: tuple[bytes, ...]) -> tuple[bytes, ...]:
    require_exec_fits(argv, {})
    return argv


def _encode(value: object, field: str, index: int | None = None) -> bytes:
    # Short and plain, as nearly every argument is: nothing is left to refuse but a zero byte.
    if isinstance(value, str) and value.isascii() and len(value) <= MAXIMUM_STRING_BYTES:
        encoded = value.encode()
        if b"\0" not in encoded:
            return encoded
    return _encode_any(value, field if index is None else f"{field} {index}")


def _encode_any(value: object, field: str) -> bytes:
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(text, str | bytes):
        raise RequestError(f"{field} is {quote(value)}; write it as text")
    # Text has at least as many bytes as characters: a huge one is refused before it is copied.
    if len(text) > MAXIMUM_STRING_BYTES:
        raise _too_long(field, len(text))
    try:
        encoded = text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise RequestError(f"{field}: character {error.start} has no bytes in UTF-8") from error
    if len(encoded) > MAXIMUM_STRING_BYTES:
        raise _too_long(field, len(encoded))
    if b"\0" in encoded:
        raise RequestError(f"{field} holds a zero byte, which no process can be given; remove it")
    return encoded


def _too_long(field: str, length: int) -> RequestError:
    return RequestError(
        f"{field} has {length} bytes; Linux takes {MAXIMUM_STRING_BYTES} in one, "
        "so write it to a file inside or to standard input"
    )
