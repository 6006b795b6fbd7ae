"""The end of a chain being written: the next number, the last hash, and files turned in time."""

from __future__ import annotations

import hashlib

from cloister.ledger.ed25519 import UNSIGNED
from cloister.ledger.entry import encode_line
from cloister.ledger.keeping import FORMAT, Opened, Recovered
from cloister.ledger.payload import Payload
from cloister.ledger.recovery import End, Torn
from cloister.ledger.shelf import Shelf, ShortWrite
from cloister.ledger.trace import Trace


class Chain:
    """Appends entries. What raises was not written, and the chain is as it was before."""

    def __init__(
        self, shelf: Shelf, sandbox: str, end: End, key: str | None, file_bytes: int
    ) -> None:
        self._shelf = shelf
        self._sandbox = sandbox
        self._key = key
        self._file_bytes = file_bytes
        self._torn = list(end.torn)
        self._is_unclean = not end.is_closed
        self._missing_through = end.missing_through
        self._must_begin = True
        self.next_sequence = end.next_sequence
        self.hash = end.hash

    def append(
        self,
        payload: Payload,
        time_ns: int,
        monotonic_ns: int,
        *,
        span: int | None = None,
        trace: Trace | None = None,
        begins: bool = False,
    ) -> int:
        """Write one entry and return its number; `begins` makes that its span too."""
        self.begin(time_ns, monotonic_ns)
        return self._put(payload, time_ns, monotonic_ns, span, trace, begins)

    def begin(self, time_ns: int, monotonic_ns: int) -> None:
        """Turn the page if this one is full or torn, and write its first entry if it has none."""
        shelf = self._shelf
        is_torn = bool(self._torn) and self._torn[-1].file == shelf.path.name
        if shelf.is_empty or is_torn or shelf.size_bytes >= self._file_bytes:
            shelf.rotate()
            self._must_begin = True
        if not self._must_begin:
            return
        unsigned = UNSIGNED if self._key is None else None
        first: Payload
        if self._is_unclean:
            torn = tuple(map(str, self._torn))
            first = Recovered(
                FORMAT, shelf.number, torn, self._missing_through, self._key, unsigned
            )
        else:
            first = Opened(FORMAT, shelf.number, self._key, unsigned)
        self._put(first, time_ns, monotonic_ns, None, None, False)
        self._torn.clear()
        self._is_unclean = self._must_begin = False
        self._missing_through = None

    def _put(
        self,
        payload: Payload,
        time_ns: int,
        monotonic_ns: int,
        span: int | None,
        trace: Trace | None,
        begins: bool,
    ) -> int:
        sequence = self.next_sequence
        line, digest = encode_line(
            payload,
            sequence=sequence,
            time_ns=time_ns,
            monotonic_ns=monotonic_ns,
            sandbox=self._sandbox,
            before=self.hash,
            span=sequence if begins else span,
            trace=trace,
        )
        try:
            self._shelf.append(line)
        except ShortWrite as error:
            # It stays where it is, and the next file says so: nothing is ever taken back.
            sha256 = hashlib.sha256(error.written).hexdigest()
            self._torn.append(Torn(self._shelf.path.name, len(error.written), sha256))
            self._is_unclean = True
            raise
        self.next_sequence = sequence + 1
        self.hash = digest
        return sequence
