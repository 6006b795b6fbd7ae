"""What a program sends by a WebSocket: unmasked to be looked through, and written anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

from websockets.frames import DATA_OPCODES, Frame
from websockets.protocol import SERVER, Protocol

from cloister.egress.refusal import Malformed
from cloister.egress.secrets.bound import Misplaced
from cloister.egress.secrets.scrub import Finder, Patterns

if TYPE_CHECKING:
    from cloister.egress.depth.terms import Terms

# A frame is held until it is whole: what is masked cannot be looked through in pieces, and its
# reader is not ours. A message may have any number of them.
MOST_FRAME_BYTES = 1024 * 1024
_MASK_AND_HEAD_BYTES = 6


class OutgoingFrames:
    """The frames of one connection, each passed on when it has been looked through.

    What is held of one that is not whole counts as held by the sandbox.
    """

    def __init__(self, terms: Terms, patterns: Patterns, host: str) -> None:
        self._terms = terms
        self._patterns = patterns
        self._host = host
        # Over all frames of a message; others may stand between them.
        self._message = Finder(patterns)
        self._protocol = Protocol(SERVER, max_size=(None, MOST_FRAME_BYTES))
        self._held_bytes = 0

    def feed(self, data: bytes) -> bytes:
        """Return what may be sent now; raises Refusal at the first placeholder."""
        self._hold(self._held_bytes + len(data))
        self._protocol.receive_data(data)
        frames = [each for each in self._protocol.events_received() if isinstance(each, Frame)]
        # What it would answer by itself is the server's to say.
        self._protocol.data_to_send()
        out = b"".join(map(self._passed, frames))
        if self._protocol.parser_exc is not None:
            raise Malformed(f"not a proper WebSocket: {self._protocol.parser_exc}")
        if frames:
            whole = sum(len(each.data) + _MASK_AND_HEAD_BYTES for each in frames)
            self._hold(min(len(data), max(0, self._held_bytes - whole)))
        return out

    def _passed(self, frame: Frame) -> bytes:
        data = bytes(frame.data)
        if frame.opcode in DATA_OPCODES:
            self._message.feed(data)
            found = self._message.found
            if frame.fin:
                self._message = Finder(self._patterns)
        else:
            found = self._patterns.first(data)
        if found is not None:
            raise Misplaced(found, "WebSocket message", self._host)
        return frame.serialize(mask=True)

    def _hold(self, count: int) -> None:
        self._terms.hold(count - self._held_bytes)
        self._held_bytes = count

    def close(self) -> None:
        """Hold nothing any more."""
        self._hold(0)
