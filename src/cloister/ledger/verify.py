"""Checks a ledger line by line: finds what was edited, cut, moved or slipped in, and says where."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from cloister.ledger.checkpoint import Anchor, anchor_of, read_anchors
from cloister.ledger.entry import NOTHING, Entry, decode_line, split_line
from cloister.ledger.findings import Fault, Finding, Report
from cloister.ledger.keeping import Checkpoint, Opened, Recovered, Retired
from cloister.ledger.keys import PublicKey, trusted_keys
from cloister.ledger.place import checkpoint_file, file_number, ledger_directory
from cloister.ledger.reader import Line, read_lines
from cloister.ledger.shelf import is_written
from cloister.ledger.tally import Tally
from cloister.ledger.text import BadEntry, readable

# More places than this are counted and not listed: a rewritten ledger is wrong everywhere.
_MOST_LISTED = 100
_STANDINGS = {"unknown key": Fault.UNKNOWN_KEY, "bad signature": Fault.BAD_SIGNATURE}


def verify_ledger(
    state: Path,
    sandbox: str,
    *,
    keys: Mapping[str, PublicKey] | None = None,
    against: Iterable[Anchor] = (),
) -> Report:
    """Check the ledger of a sandbox, and what its checkpoints in the second place say of it.

    `keys` are the ones to believe, those of the state directory unless given. `against` are
    checkpoints that were kept elsewhere: a ledger cut back to before one of them is found.
    """
    directory = ledger_directory(state, sandbox)
    # Asked first: what is torn while somebody writes is a line on its way.
    is_live = is_written(directory) if directory.is_dir() else False
    believed = trusted_keys(state) if keys is None else keys
    verifier = _Verifier(sandbox, believed, is_live)
    for anchor in _second_place(checkpoint_file(state, sandbox)):
        verifier.expect(anchor, "checkpoints")
    for anchor in against:
        verifier.expect(anchor, "the checkpoint that was kept")
    for line in read_lines(directory):
        verifier.take(line)
    return verifier.finish()


def _second_place(path: Path) -> Iterable[Anchor]:
    return read_anchors(path, tolerant=True) if path.exists() else ()


class _Verifier:
    """Walks once through all lines; what it remembers does not grow with their number."""

    def __init__(self, sandbox: str, keys: Mapping[str, PublicKey], is_live: bool) -> None:
        self._sandbox = sandbox
        self._keys = keys
        self._is_live = is_live
        self._anchors: dict[int, tuple[Anchor, str]] = {}
        self._findings: list[Finding] = []
        self._findings_count = 0
        self._tally = Tally()
        self._path: Path | None = None
        self._files = 0
        self._must_begin = False
        self._next = 0
        # The hash that the next entry must name; None after a line that could not be read.
        self._hash: str | None = NOTHING
        self._was_bad = False
        self._gaps: list[tuple[int, int, Line]] = []
        self._torn: list[Line] = []
        self._head: tuple[Entry, Line] | None = None
        self._begins_late = False

    def expect(self, anchor: Anchor, where: str) -> None:
        """Remember a checkpoint from outside, to be compared with the entry it is of."""
        standing = anchor.standing(self._keys)
        if anchor.sandbox != self._sandbox:
            self._report(Fault.FOREIGN, where, 0, anchor.sequence, f"it is of {anchor.sandbox}")
        elif standing in _STANDINGS:
            message = f"the signature under key {anchor.key} is not to be believed"
            self._report(_STANDINGS[standing], where, 0, anchor.sequence, message)
        else:
            self._anchors[anchor.sequence] = (anchor, where)

    def take(self, line: Line) -> None:
        """Check the next line."""
        if line.path != self._path:
            self._turn(line)
        if line.torn is not None:
            self._torn.append(line)
            return
        entry = self._read(line)
        if entry is not None:
            self._place(entry, line)

    def _turn(self, line: Line) -> None:
        number = file_number(line.path.name)
        if self._path is not None and number != file_number(self._path.name) + 1:
            self._fault(Fault.MISSING, line, None, f"the file before {line.path.name} is not there")
        self._path = line.path
        self._files += 1
        self._must_begin = True

    def _read(self, line: Line) -> Entry | None:
        digest: str | None = None
        try:
            if line.is_too_long:
                raise BadEntry("the line is longer than any entry")
            body, digest = split_line(line.data)
            if hashlib.sha256(body).hexdigest() != digest:
                self._fault(Fault.EDITED, line, self._next, "it is not what its hash says")
            else:
                return decode_line(line.data)
        except BadEntry as error:
            self._fault(Fault.MALFORMED, line, None, str(error))
        # Taken for the entry that belongs here, so that one bad line is one finding.
        self._next += 1
        self._hash, self._was_bad = digest, True
        self._must_begin = False
        return None

    def _place(self, entry: Entry, line: Line) -> None:
        if entry.sandbox != self._sandbox:
            message = f"it is an entry of {entry.sandbox[:64]!r}"
            self._fault(Fault.FOREIGN, line, entry.sequence, message)
            return
        if self._files == 1 and self._tally.entries == 0 and file_number(line.path.name) > 0:
            self._head, self._begins_late = (entry, line), True
            self._next, self._hash = entry.sequence, entry.before
        elif self._was_bad and entry.sequence == self._next - 1:
            # The line that could not be read stood between two entries, not for one.
            self._next, self._hash = entry.sequence, None
        self._was_bad = False
        if entry.sequence < self._next:
            self._place_earlier(entry, line)
            return
        is_first, self._must_begin = self._must_begin, False
        if entry.sequence > self._next:
            self._gaps.append((self._next, entry.sequence, line))
        elif self._hash is not None and entry.before != self._hash:
            fault = Fault.FOREIGN if is_first else Fault.EDITED
            message = f"it does not follow entry {entry.sequence - 1} of this ledger"
            self._fault(fault, line, entry.sequence, message)
        if is_first:
            self._require_begin(entry, line)
        self._next, self._hash = entry.sequence + 1, entry.hash
        self._examine(entry, line)

    def _place_earlier(self, entry: Entry, line: Line) -> None:
        for index, (start, stop, where) in enumerate(self._gaps):
            if start <= entry.sequence < stop:
                rest = [(start, entry.sequence, where), (entry.sequence + 1, stop, where)]
                self._gaps[index : index + 1] = [gap for gap in rest if gap[0] < gap[1]]
                message = f"it comes after entry {self._next - 1}"
                self._fault(Fault.REORDERED, line, entry.sequence, message)
                return
        message = "an entry of this number was there before"
        self._fault(Fault.DUPLICATED, line, entry.sequence, message)

    def _require_begin(self, entry: Entry, line: Line) -> None:
        number = file_number(line.path.name)
        begin = entry.payload
        if not isinstance(begin, Opened | Recovered) or begin.file != number:
            message = f"the file does not begin as file {number} of a ledger does"
            self._fault(Fault.FOREIGN, line, entry.sequence, message)

    def _examine(self, entry: Entry, line: Line) -> None:
        """Check what an entry says of others."""
        self._tally.add(entry)
        payload = entry.payload
        if isinstance(payload, Checkpoint):
            self._examine_checkpoint(entry, payload, line)
        elif isinstance(payload, Opened | Recovered):
            if payload.key is None and self._keys:
                message = "it is written without a signature, and there is a key for it"
                self._fault(Fault.UNSIGNED, line, entry.sequence, message)
            if isinstance(payload, Recovered):
                self._unseal(payload, entry, line)
        elif isinstance(payload, Retired) and self._head is not None:
            first, _ = self._head
            if (payload.through, payload.hash) == (first.sequence - 1, first.before):
                self._head = None
        kept = self._anchors.get(entry.sequence)
        if kept is not None and kept[0].hash != entry.hash:
            message = f"{kept[1]} says that it has another hash: it was written anew"
            self._fault(Fault.EDITED, line, entry.sequence, message)

    def _examine_checkpoint(self, entry: Entry, payload: Checkpoint, line: Line) -> None:
        anchor = anchor_of(self._sandbox, payload)
        if (payload.of, payload.hash) != (entry.sequence - 1, entry.before):
            message = "it is not a checkpoint of the entry before it"
            self._fault(Fault.BAD_SIGNATURE, line, entry.sequence, message)
            return
        standing = anchor.standing(self._keys)
        if standing in _STANDINGS:
            message = f"the signature under key {anchor.key} is not to be believed"
            self._fault(_STANDINGS[standing], line, entry.sequence, message)
        else:
            self._tally.add_checkpoint(anchor, standing)

    def _unseal(self, payload: Recovered, entry: Entry, line: Line) -> None:
        sealed = payload.torn if isinstance(payload.torn, tuple) else payload.torn.kept
        present = {str(torn.torn): torn for torn in self._torn}
        for seal in map(readable, sealed):
            found = present.get(seal)
            if found is not None:
                self._torn.remove(found)
            elif not self._begins_late:
                message = f"what it seals is not there any more: {seal[:120]}"
                self._fault(Fault.EDITED, line, entry.sequence, message)

    def finish(self) -> Report:
        """Say what can only be said at the end."""
        for start, stop, line in self._gaps:
            what = (
                f"entry {start} is" if stop - start == 1 else f"entries {start} to {stop - 1} are"
            )
            self._fault(Fault.MISSING, line, start, f"{what} not there")
        for line in self._torn:
            if not (self._is_live and line.path == self._path):
                message = "it ends without a line feed: a writer died here, or it was cut"
                self._fault(Fault.TORN, line, None, message)
        if self._head is not None:
            entry, line = self._head
            message = f"entries 0 to {entry.sequence - 1} are not there"
            self._fault(Fault.MISSING, line, entry.sequence, message)
        last = self._tally.last
        name = "the ledger" if self._path is None else self._path.name
        if last is None:
            self._report(Fault.TRUNCATED, name, 0, None, "there is no entry in it")
        # A checkpoint goes to the second place after its own entry, which follows what it is of.
        newest = max(self._anchors, default=-1)
        if newest >= (0 if last is None else last.sequence):
            anchor, where = self._anchors[newest]
            ends = "nothing" if last is None else f"entry {last.sequence}"
            message = f"it ends with {ends}, and {where} is of entry {anchor.sequence}"
            self._report(Fault.TRUNCATED, name, 0, None, message)
        return self._tally.report(
            sandbox=self._sandbox,
            files=self._files,
            is_written=self._is_live,
            findings=tuple(self._findings),
            findings_count=self._findings_count,
        )

    def _fault(self, fault: Fault, line: Line, sequence: int | None, message: str) -> None:
        self._report(fault, line.path.name, line.number, sequence, message)

    def _report(
        self, fault: Fault, file: str, line: int, sequence: int | None, message: str
    ) -> None:
        self._findings_count += 1
        if len(self._findings) < _MOST_LISTED:
            self._findings.append(Finding(fault, file, line, sequence, message))
