"""Does work on trees as somebody who may: their owners are ids that the person is not.

Without root, but with sub-ids, what sandboxes keep belongs to the first slice of those. The work
is then done by a child in a user namespace that holds the person's whole range, as the launcher's
does: inside, 0 is the person, and 1 and up are the sub-ids in order.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

from cloister.errors import HostError
from cloister.store.sub_ids import SubIds, find_sub_ids

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")

_CLONE_NEWUSER = 0x10000000
_READY = b"r"
_MAPPED = b"m"


def as_owner(
    function: Callable[..., _Result], *arguments: object, keep: Sequence[int] = ()
) -> _Result:
    """Call a function that may touch everything in the store, and return what it returns.

    `function` must be found by its name in its module, and arguments and result must be picklable.
    The descriptors in `keep` have the same numbers there.
    """
    sub_ids = needed_sub_ids()
    if sub_ids is None:
        return function(*arguments)
    succeeded, value = _ask_child(sub_ids, pickle.dumps((function, arguments)), keep)
    if not succeeded:
        raise value
    result: _Result = value
    return result


def as_reader(
    function: Callable[..., _Result], *arguments: object, keep: Sequence[int] = ()
) -> _Result:
    """Call a function that no mode inside the store may stop, on trees that are not to be touched.

    A person with a single id owns all of it, but a sandbox may have shut files and directories
    against their owner. In a user namespace of its own the same person may pass.
    """
    if needs_no_child():
        return function(*arguments)
    request = pickle.dumps((function, arguments))
    succeeded, value = _ask_child(needed_sub_ids(), request, keep)
    if not succeeded:
        raise value
    result: _Result = value
    return result


def needs_no_child() -> bool:
    """Whether this process itself may read everything in the store."""
    return os.geteuid() == 0


def needed_sub_ids() -> SubIds | None:
    """Return the ids that trees belong to, or None where they are this process's own to touch."""
    return None if os.geteuid() == 0 else find_sub_ids()


def _ask_child(sub_ids: SubIds | None, request: bytes, keep: Sequence[int]) -> tuple[bool, Any]:
    answer, answering = os.pipe2(os.O_CLOEXEC)
    # -P: nothing is imported from the directory we are in, which an agent may have filled.
    command = [sys.executable, "-P", "-c", _PROGRAM, str(answering)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(answering, *keep),
            env=environment,
        )
    finally:
        os.close(answering)
    with open(answer, "rb") as answers, child:
        try:
            return _converse(child, sub_ids, request, answers.read)
        except BaseException:
            child.kill()
            raise


def _converse(
    child: subprocess.Popen[bytes],
    sub_ids: SubIds | None,
    request: bytes,
    read: Callable[[], bytes],
) -> tuple[bool, Any]:
    if child.stdin is None or child.stdout is None:
        raise HostError("the stand-in process has no pipes; report this")
    if child.stdout.read(1) != _READY:
        raise HostError("this host lets ordinary users make no user namespaces; see `doctor`")
    if sub_ids is None:
        _map_self(child.pid)
    else:
        _map(sub_ids.uid_helper, child.pid, os.getuid(), sub_ids.uids)
        _map(sub_ids.gid_helper, child.pid, os.getgid(), sub_ids.gids)
    child.stdin.write(_MAPPED + request)
    child.stdin.close()
    answer = read()
    if not answer:
        raise HostError(f"the stand-in process ended with {child.wait()} and no answer")
    # From our own code, on trees that strangers made: it sends values, never what it has read.
    succeeded, value = pickle.loads(answer)  # noqa: S301
    return succeeded, value


def _map_self(pid: int) -> None:
    """Let the child be who we are, under the same number."""
    for file, words in (
        ("setgroups", "deny"),
        ("uid_map", f"{os.getuid()} {os.getuid()} 1"),
        ("gid_map", f"{os.getgid()} {os.getgid()} 1"),
    ):
        with open(f"/proc/{pid}/{file}", "w") as opened:
            opened.write(words)


def _map(helper: str, pid: int, own: int, ranges: Sequence[tuple[int, int]]) -> None:
    arguments = [str(pid), "0", str(own), "1"]
    following = 1
    for first, count in ranges:
        arguments += [str(following), str(first), str(count)]
        following += count
    done = subprocess.run([helper, *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise HostError(
            f"{helper} refused the ranges of /etc/subuid and /etc/subgid: {done.stderr.strip()}"
        )


_PROGRAM = "import sys; from cloister.store.stand_in import serve; serve(int(sys.argv[1]))"


def serve(answering: int) -> None:
    """Enter the namespace, do the one thing that is asked for, answer, and end."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWUSER) != 0:
        raise SystemExit(1)
    with open(sys.stdout.fileno(), "wb", closefd=False) as ready:
        ready.write(_READY)
    with open(sys.stdin.fileno(), "rb", closefd=False) as requests:
        if requests.read(1) != _MAPPED:
            raise SystemExit(1)
        # Written by the parent that started this process, over a pipe nobody else has.
        function, arguments = pickle.loads(requests.read())  # noqa: S301
    # Denied where the namespace holds one id alone: then there are none to be rid of.
    with suppress(PermissionError):
        os.setgroups([])
    answer: tuple[bool, object]
    try:
        answer = (True, function(*arguments))
    except Exception as error:
        answer = (False, error)
    with open(answering, "wb") as answers:
        pickle.dump(answer, answers)
