"""The sandbox a user holds, without `await`."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from cloister.blocking.dial import dial
from cloister.blocking.files import Files
from cloister.blocking.forks import Forks
from cloister.blocking.loop import as_coroutine, current_loop
from cloister.blocking.process import Process
from cloister.blocking.turn import waits
from cloister.model import UNLIMITED, Limits, Mount, Profile, SandboxId, Trust, User, VolumeMount
from cloister.policy import Egress, History, LedgerMode, Policy, Root, SecretBinding, Storage
from cloister.runtime.base import Posture
from cloister.runtime.plan import Plan
from cloister.sandbox import sandbox as asynchronous

if TYPE_CHECKING:
    from cloister.model.changes import Change
    from cloister.sandbox.approving import Approve
    from cloister.store import Snapshot


class Sandbox:
    """A complete, safe, offline sandbox; everything it may do more is in its policy.

    Use it as `with Sandbox() as sandbox:`, or `open()` and `stop()` it yourself.
    """

    def __init__(
        self,
        policy: Policy | None = None,
        *,
        limits: Limits | None = None,
        mounts: Sequence[Mount] | None = None,
        env: Mapping[str, str] | None = None,
        profile: Profile | str | None = None,
        trust: Trust | str | None = None,
        runtime: str | None = None,
        require: str | None = None,
        root: Root | None = None,
        image: str | None = None,
        egress: Egress | Sequence[str] | None = None,
        secrets: Mapping[str, Any] | Sequence[SecretBinding] | None = None,
        approve: Approve | None = None,
        volumes: Sequence[VolumeMount | str] | None = None,
        storage: Storage | str | None = None,
        history: History | str | None = None,
        ledger: LedgerMode | str | None = None,
        keep: str | None = None,
        template: str | None = None,
        label: str | None = None,
    ) -> None:
        self._stand_for(
            asynchronous.Sandbox(
                policy,
                limits=limits,
                mounts=mounts,
                env=env,
                profile=profile,
                trust=trust,
                runtime=runtime,
                require=require,
                root=root,
                image=image,
                egress=egress,
                secrets=secrets,
                approve=approve,
                volumes=volumes,
                storage=storage,
                history=history,
                ledger=ledger,
                keep=keep,
                template=template,
                label=label,
            )
        )

    def _stand_for(self, inner: asynchronous.Sandbox) -> None:
        self._inner = inner
        self._loop = current_loop()
        self.files = Files(self, inner.files)

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def open(self) -> Self:
        """Start the sandbox. Nothing of it exists if this raises."""
        try:
            self._loop.wait(self._inner.open())
        except KeyboardInterrupt:
            # It may have been started in the very moment: then nobody else would end it.
            self.stop()
            raise
        return self

    stop = waits(asynchronous.Sandbox.stop)
    run = waits(asynchronous.Sandbox.run)
    run_module = waits(asynchronous.Sandbox.run_module)
    usage = waits(asynchronous.Sandbox.usage)
    pause = waits(asynchronous.Sandbox.pause)
    pause_to_disk = waits(asynchronous.Sandbox.pause_to_disk)
    resume = waits(asynchronous.Sandbox.resume)
    snapshot = waits(asynchronous.Sandbox.snapshot)
    snapshots = waits(asynchronous.Sandbox.snapshots)
    rewind = waits(asynchronous.Sandbox.rewind)
    traffic = waits(asynchronous.Sandbox.traffic)
    renew_secrets = waits(asynchronous.Sandbox.renew_secrets)
    update_egress = waits(asynchronous.Sandbox.update_egress)

    def diff(
        self, below: str = "/", *, since: Snapshot | str | int | None = None
    ) -> tuple[Change, ...]:
        """Return what changed in one tree since the image or a snapshot, sorted by path."""
        return self._loop.wait(as_coroutine(self._inner.diff(below, since=since)))

    @classmethod
    def fork(
        cls, snapshot: Snapshot | str, count: int = 1, *, grants: bool = False, **changes: Any
    ) -> Forks[Self]:
        """Return new sandboxes from a snapshot, running, in a list that `with` ends with.

        They have the snapshot's policy with `changes`, as the constructor takes them; host
        directories, volumes and egress are not given to them unless `grants` says so.
        """
        forking = asynchronous.Sandbox.fork(snapshot, count, grants=grants, **changes)
        return Forks(cls._around(inner) for inner in current_loop().wait(as_coroutine(forking)))

    @classmethod
    def resumed(cls, name: str, **changes: Any) -> Self:
        """Return the kept sandbox of that name, running again from where it was paused on disk."""
        resuming = asynchronous.Sandbox.resumed(name, **changes)
        return cls._around(current_loop().wait(resuming))

    @classmethod
    def _around(cls, inner: asynchronous.Sandbox) -> Self:
        made = cls.__new__(cls)
        made._stand_for(inner)
        return made

    def start(
        self,
        command: str | Sequence[str | bytes],
        *,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        user: str | int | User | None = None,
        timeout: float | str | None = UNLIMITED,
        pty: tuple[int, int] | bool = False,
        stdin: bool = False,
    ) -> Process:
        """Start a program and return it running, with its streams.

        `pty` gives it a terminal, (rows, columns) or True for 24 by 80; `stdin` opens its
        standard input. It ends with the sandbox at the latest.
        """
        started = self._inner.start(
            command, cwd=cwd, env=env, user=user, timeout=timeout, pty=pty, stdin=stdin
        )
        return Process(self._loop, self._loop.wait(started))

    def dial(self, port: int) -> socket.socket:
        """Connect to a TCP port inside and return a connected socket."""
        return self._loop.wait(dial(self._inner, port))

    @property
    def id(self) -> SandboxId:
        """Its name."""
        return self._inner.id

    @property
    def label(self) -> str | None:
        """What its owner calls it."""
        return self._inner.label

    @property
    def policy(self) -> Policy:
        """What it is and may do."""
        return self._inner.policy

    @property
    def posture(self) -> Posture:
        """What the kernel said was true before anything ran."""
        return self._inner.posture

    @property
    def plan(self) -> Plan:
        """Everything the launcher was told."""
        return self._inner.plan

    @property
    def host_pids(self) -> tuple[int, ...]:
        """Process numbers on the host of everything inside."""
        return self._inner.host_pids

    @property
    def working_directory(self) -> str:
        """Where programs start that name no directory: the image's own, or /workspace."""
        return self._inner.working_directory

    @property
    def is_running(self) -> bool:
        """Whether it has been started and has not ended."""
        return self._inner.is_running

    @property
    def runs_modules(self) -> bool:
        """Whether it runs modules, and nothing else."""
        return self._inner.runs_modules

    @property
    def is_paused(self) -> bool:
        """Whether every process inside is held still."""
        return self._inner.is_paused

    @property
    def is_reopened(self) -> bool:
        """Whether it goes on with what was kept before."""
        return self._inner.is_reopened
