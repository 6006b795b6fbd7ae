"""Does work on trees as somebody who may: their owners are ids that the person is not.

Without root, but with sub-ids, what sandboxes keep belongs to the first slice of those. The work
is then done by a child in a user namespace that holds the person's whole range, as the launcher's
does: inside, 0 is the person, and 1 and up are the sub-ids in order. To start one takes a tenth of
a second, so it stays for the next errand.
"""

from __future__ import annotations

import atexit
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from cloister.errors import HostError
from cloister.store.place import state_directory
from cloister.store.stand_in_child import MAPPED, READY, TAKEN
from cloister.store.sub_ids import SubIds, find_sub_ids

_Result = TypeVar("_Result")


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
    return _by_child(sub_ids, function, arguments, keep)


def as_reader(
    function: Callable[..., _Result], *arguments: object, keep: Sequence[int] = ()
) -> _Result:
    """Call a function that no mode inside the store may stop, on trees that are not to be touched.

    A person with a single id owns all of it, but a sandbox may have shut files and directories
    against their owner. In a user namespace of its own the same person may pass.
    """
    if needs_no_child():
        return function(*arguments)
    return _by_child(needed_sub_ids(), function, arguments, keep)


def needs_no_child() -> bool:
    """Whether this process itself may read everything in the store."""
    return os.geteuid() == 0


def needed_sub_ids() -> SubIds | None:
    """Return the ids that trees belong to, or None where they are this process's own to touch."""
    return None if os.geteuid() == 0 else find_sub_ids()


def _by_child(
    sub_ids: SubIds | None,
    function: Callable[..., _Result],
    arguments: Sequence[object],
    keep: Sequence[int],
) -> _Result:
    # Before anybody is asked: what cannot be sent is the caller's mistake.
    request = pickle.dumps((function, arguments))
    errand = _children.begin(sub_ids, function.__module__, keep)
    succeeded, value = errand.finish(request)
    if not succeeded:
        raise value
    result: _Result = value
    return result


class _Errand:
    """One call that a child has taken on."""

    def __init__(self, handle: int, asking: int, answer: int) -> None:
        self._handle = handle
        self._asking = asking
        self._answer = answer

    def finish(self, request: bytes) -> tuple[bool, Any]:
        """Say what the call is, and return whether it succeeded, with its result or error."""
        try:
            with open(self._answer, "rb") as answers:
                with suppress(BrokenPipeError), open(self._asking, "wb") as requests:
                    requests.write(request)
                answer = answers.read()
        except BaseException:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)
            raise
        finally:
            os.close(self._handle)
        if not answer:
            raise HostError("the stand-in process ended without an answer; try again")
        # From our own code, on trees that strangers made: it sends values, never what it has read.
        succeeded, value = pickle.loads(answer)  # noqa: S301
        return succeeded, value


class _Child:
    """A stand-in that runs. It ends when its link is closed, by whatever end of this process."""

    def __init__(self, sub_ids: SubIds | None) -> None:
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # -P: nothing is imported from the directory we are in, which an agent may have filled.
        command = [sys.executable, "-P", "-c", _PROGRAM, str(theirs.fileno())]
        paths = map(os.path.abspath, filter(None, sys.path))
        with theirs:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                # Inside, the person is 0, and where state is would not be told by that.
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(paths),
                    "CLOISTER_STATE": str(state_directory()),
                },
            )
        try:
            self._map(sub_ids)
        except BaseException:
            self.close()
            raise

    def _map(self, sub_ids: SubIds | None) -> None:
        if self._link.recv(1) != READY:
            raise HostError("this host lets ordinary users make no user namespaces; see `doctor`")
        if sub_ids is None:
            _map_self(self._process.pid)
        else:
            _map(sub_ids.uid_helper, self._process.pid, os.getuid(), sub_ids.uids)
            _map(sub_ids.gid_helper, self._process.pid, os.getgid(), sub_ids.gids)
        self._link.send(MAPPED)

    def begin(self, module: str, keep: Sequence[int]) -> _Errand | None:
        """Have it take on an errand; None where it is no more, and has taken on nothing."""
        words = " ".join([module, *map(str, keep)]).encode()
        asked, asking = os.pipe2(os.O_CLOEXEC)
        answer, answering = os.pipe2(os.O_CLOEXEC)
        taken, handles = b"", list[int]()
        try:
            with suppress(BrokenPipeError, ConnectionResetError):
                socket.send_fds(self._link, [words], [asked, answering, *keep])
                taken, handles, _, _ = socket.recv_fds(self._link, 1, 1, socket.MSG_CMSG_CLOEXEC)
        finally:
            os.close(asked)
            os.close(answering)
            if taken != TAKEN:
                os.close(asking)
                os.close(answer)
        return _Errand(handles[0], asking, answer) if taken == TAKEN else None

    def close(self) -> None:
        """End it, and what it does."""
        self._link.close()
        self._process.wait()

    def abandon(self) -> None:
        """In a forked child: let go of what is the parent's."""
        self._link.close()
        # Not ours to wait for.
        self._process.returncode = 0


class _Children:
    """The one stand-in of this process, started when it is needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: _Child | None = None
        self._kind: object = None

    def begin(self, sub_ids: SubIds | None, module: str, keep: Sequence[int]) -> _Errand:
        """Have an errand taken on, by a new child if the last one has gone."""
        kind = (sub_ids, tuple(sys.path), os.getuid(), state_directory())
        with self._lock:
            if self._child is not None and self._kind == kind:
                errand = self._child.begin(module, keep)
                if errand is not None:
                    return errand
            self._end()
            self._child, self._kind = _Child(sub_ids), kind
            errand = self._child.begin(module, keep)
            if errand is None:
                self._end()
                raise HostError("the stand-in process ended before it was asked; try again")
            return errand

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.close()

    def close(self) -> None:
        """End it."""
        with self._lock:
            self._end()

    def forget(self) -> None:
        """In a forked child: it is the parent's, and so may be the lock."""
        self._lock = threading.Lock()
        child, self._child = self._child, None
        if child is not None:
            child.abandon()


_children = _Children()
atexit.register(_children.close)
os.register_at_fork(after_in_child=_children.forget)


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


_PROGRAM = "import sys; from cloister.store.stand_in_child import serve; serve(int(sys.argv[1]))"
