"""The one writer of a ledger: chains entries, signs checkpoints, counts what it could not write."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Self

from cloister.errors import CloisterError, Exhausted, HostError
from cloister.ledger.chain import Chain
from cloister.ledger.checkpoint import Anchor, sign_anchor
from cloister.ledger.flood import Floods
from cloister.ledger.keeping import Closed
from cloister.ledger.keys import Signer, signer_for
from cloister.ledger.losses import Losses, explain
from cloister.ledger.payload import Payload
from cloister.ledger.place import checkpoint_file, ledger_directory
from cloister.ledger.recovery import find_end
from cloister.ledger.retire import retire
from cloister.ledger.second_place import SecondPlace
from cloister.ledger.settling import Settling
from cloister.ledger.shelf import Shelf, ShortWrite
from cloister.ledger.terms import Keeping, Span
from cloister.ledger.trace import Trace

_living: weakref.WeakSet[Ledger] = weakref.WeakSet()


class Ledger:
    """Writes the record of one sandbox. May be used by several threads, by one process only.

    `on_trouble` is told when entries begin to be lost; it must not write to this ledger.
    """

    def __init__(
        self,
        state: Path,
        sandbox: str,
        *,
        trace: Trace | None = None,
        keeping: Keeping | None = None,
        on_trouble: Callable[[CloisterError], None] | None = None,
    ) -> None:
        directory, second_place = ledger_directory(state, sandbox), checkpoint_file(state, sandbox)
        self.sandbox = sandbox
        self.trace = trace
        self._keeping = Keeping() if keeping is None else keeping
        self._on_trouble = on_trouble
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._floods = Floods(self._keeping.refusals_per_s)
        self._losses = Losses()
        self._trouble: CloisterError | None = None
        self._second_place = SecondPlace(second_place)
        self._settling = Settling()
        try:
            self._signer: Signer | None = signer_for(state)
            self._shelf = Shelf(directory)
            with contextlib.ExitStack() as undo:
                undo.callback(self._shelf.close)
                end = find_end(directory, sandbox, second_place)
                key = None if self._signer is None else self._signer.id
                self._chain = Chain(self._shelf, sandbox, end, key, self._keeping.file_bytes)
                self._signed, self._signed_ns = end.next_sequence - 1, time.monotonic_ns()
                self._chain.begin(time.time_ns(), self._signed_ns)
                undo.pop_all()
        except (OSError, ShortWrite) as error:
            raise explain(error) from error
        self._is_closed = False
        _living.add(self)

    def write(
        self,
        payload: Payload,
        *,
        durable: bool = False,
        span: Span | None = None,
        trace: Trace | None = None,
    ) -> int | None:
        """Write one entry and return its number, or None if it could only be counted.

        It is in the kernel's hands when this returns. With `durable` it is on the disk, and
        whatever kept it from there is raised: what was to be done after it must not be done.
        """
        return self._write(payload, durable, span, trace, begins=False).sequence

    def begin(self, payload: Payload, *, durable: bool = False, trace: Trace | None = None) -> Span:
        """Write the begin of something; pass what this returns to `end`."""
        return self._write(payload, durable, None, trace, begins=True)

    def end(self, span: Span, payload: Payload, *, trace: Trace | None = None) -> int | None:
        """Write the end of what `begin` began."""
        return self._write(payload, False, span, trace, begins=False).sequence

    def _write(
        self,
        payload: Payload,
        durable: bool,
        span: Span | None,
        trace: Trace | None,
        *,
        begins: bool,
    ) -> Span:
        with self._lock:
            self._require_open()
            time_ns, monotonic_ns = time.time_ns(), time.monotonic_ns()
            about = None if span is None else span.folded
            is_full = self._shelf.total_bytes >= self._keeping.limit_bytes
            if about is not None or self._floods.takes(payload, monotonic_ns, is_full=is_full):
                self._floods.fold(payload, time_ns, monotonic_ns, about)
                self._maintain(time_ns, monotonic_ns)
                return Span(None, payload.flood() if about is None else about)
            try:
                if is_full:
                    self._require_reserve()
                if self._losses:
                    self._tell_losses(time_ns, monotonic_ns)
                sequence = self._chain.append(
                    payload,
                    time_ns,
                    monotonic_ns,
                    span=None if span is None else span.sequence,
                    trace=self.trace if trace is None else trace,
                    begins=begins,
                )
            except (OSError, HostError, Exhausted) as error:
                why = self._lose(error, time_ns)
                if durable:
                    raise why from error
                return Span(None)
            self._maintain(time_ns, monotonic_ns)
        if durable:
            self.sync()
        return Span(sequence)

    def _require_reserve(self) -> None:
        limit = self._keeping.limit_bytes
        if self._shelf.total_bytes >= limit + limit // 4:
            raise Exhausted(
                f"the ledger of {self.sandbox} has {self._shelf.total_bytes} bytes; the limit "
                f"is {limit}; raise limit_bytes or let old files be removed",
                limit="disk",
            )

    def _lose(self, error: Exception, time_ns: int, count: int = 1) -> CloisterError:
        why = self._trouble = explain(error)
        is_first = not self._losses
        self._losses.add(why, time_ns, count)
        if is_first and self._on_trouble is not None:
            self._on_trouble(why)
        return why

    def _tell_losses(self, time_ns: int, monotonic_ns: int) -> None:
        self._chain.append(self._losses.entry(), time_ns, monotonic_ns)
        self._losses.told()

    def _maintain(self, time_ns: int, monotonic_ns: int) -> None:
        """Write down the counts and checkpoints that are due."""
        if self._floods.is_due(monotonic_ns):
            self._drain(time_ns, monotonic_ns)
        unsigned = self._chain.next_sequence - 1 - self._signed
        if unsigned >= self._keeping.checkpoint_entries or (
            unsigned > 0
            and monotonic_ns - self._signed_ns >= self._keeping.checkpoint_s * 1_000_000_000
        ):
            self._checkpoint(time_ns, monotonic_ns, final=False)

    def _drain(self, time_ns: int, monotonic_ns: int) -> None:
        for folded in self._floods.drain():
            try:
                self._chain.append(folded, time_ns, monotonic_ns)
            except (OSError, HostError) as error:
                self._lose(error, time_ns, folded.count)

    def _checkpoint(self, time_ns: int, monotonic_ns: int, *, final: bool) -> Anchor | None:
        chain = self._chain
        try:
            # A page is turned now or not at all: the checkpoint stands right after what it is of.
            chain.begin(time_ns, monotonic_ns)
            of = chain.next_sequence - 1
            anchor = sign_anchor(self.sandbox, of, chain.hash, time_ns, self._signer)
            # Its own entry needs no further signature until something follows it.
            chain.append(anchor.payload(final=final), time_ns, monotonic_ns)
            self._second_place.add(anchor)
        except (OSError, HostError) as error:
            # Only entries of callers are counted as lost; a later checkpoint covers all of this.
            self._lose(error, time_ns, count=0)
            return None
        finally:
            self._signed, self._signed_ns = chain.next_sequence - 1, monotonic_ns
        return anchor

    def checkpoint(self) -> Anchor | None:
        """Sign what there is now; the result can be kept elsewhere. None if it was not written."""
        with self._lock:
            self._require_open()
            return self._checkpoint(time.time_ns(), time.monotonic_ns(), final=False)

    def tick(self) -> None:
        """Do what is due by time; to be called about once a second while a sandbox lives."""
        with self._lock:
            if self._is_closed:
                return
            time_ns, monotonic_ns = time.time_ns(), time.monotonic_ns()
            try:
                if self._losses:
                    self._tell_losses(time_ns, monotonic_ns)
            except (OSError, HostError):
                # Still no room; the losses stay counted, and their beginning was told already.
                return
            self._maintain(time_ns, monotonic_ns)

    def sync(self) -> None:
        """Return when everything written so far would survive a power cut."""
        with self._lock:
            self._require_open()
            wait, written = self._shelf.begin_sync(), self._chain.next_sequence - 1
        try:
            wait()
        except OSError as error:
            raise explain(error) from error
        self._settling.reached(written)

    async def settle(self) -> None:
        """As `sync`, without holding up the event loop; many callers share one wait."""
        await self._settling.wait(self._chain.next_sequence - 1, self.sync)

    def retire(self, keep_bytes: int) -> int:
        """Remove the oldest files until so much is left; return how many went. Written down."""
        with self._lock:
            self._require_open()
            return retire(self._shelf, self._chain, keep_bytes)

    def close(self, *, durable: bool = False) -> None:
        """Write down what is still counted, sign, and let go. May be called twice."""
        with self._lock:
            if self._is_closed or self._pid != os.getpid():
                return
            try:
                # Once more if a line was torn on the way: the next file seals it.
                if not self._finish() and not self._finish():
                    raise HostError(f"{self.sandbox}: ledger could not be closed: {self._trouble}")
                if durable:
                    self.sync()
            finally:
                self.abandon()

    def _finish(self) -> bool:
        time_ns, monotonic_ns = time.time_ns(), time.monotonic_ns()
        self._drain(time_ns, monotonic_ns)
        try:
            if self._losses:
                self._tell_losses(time_ns, monotonic_ns)
            counts = Closed(self._losses.total, self._floods.total)
            self._chain.append(counts, time_ns, monotonic_ns)
        except (OSError, HostError) as error:
            self._lose(error, time_ns, count=0)
            return False
        return self._checkpoint(time_ns, monotonic_ns, final=True) is not None

    def abandon(self) -> None:
        """Let go without a word, as a forked child must: the parent goes on writing."""
        self._is_closed = True
        self._shelf.close()
        self._second_place.close()
        _living.discard(self)

    @property
    def head(self) -> tuple[int, str]:
        """The number and the hash of the last entry."""
        return self._chain.next_sequence - 1, self._chain.hash

    @property
    def lost(self) -> int:
        """How many entries could not be written since it was opened."""
        return self._losses.total

    def _require_open(self) -> None:
        if self._is_closed:
            raise HostError(f"the ledger of {self.sandbox} is closed; open it again to write")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ending: object) -> None:
        self.close()


def _abandon_after_fork() -> None:
    for ledger in list(_living):
        ledger.abandon()


os.register_at_fork(after_in_child=_abandon_after_fork)
