"""What the host and the guest say to each other: bytes, frames, messages, and two transports."""

from __future__ import annotations

from cloister.wire.codec import Reader, Writer
from cloister.wire.frames import MAX_FROM_GUEST, MAX_TO_GUEST, Assembler, encode_frame
from cloister.wire.link import Link, Listener
from cloister.wire.messages import (
    CUT,
    FIRST_OF_GUEST,
    GENERATION,
    Accepted,
    Asked,
    Close,
    Credit,
    Data,
    Exited,
    Failed,
    Held,
    Hello,
    Message,
    Pong,
    Refused,
    Started,
    decode_message,
)
from cloister.wire.streams import Incoming, Outgoing, PipeIncoming, PipeOutgoing
from cloister.wire.wired import WireIncoming, WireOutgoing

__all__ = [
    "CUT",
    "FIRST_OF_GUEST",
    "GENERATION",
    "MAX_FROM_GUEST",
    "MAX_TO_GUEST",
    "Accepted",
    "Asked",
    "Assembler",
    "Close",
    "Credit",
    "Data",
    "Exited",
    "Failed",
    "Held",
    "Hello",
    "Incoming",
    "Link",
    "Listener",
    "Message",
    "Outgoing",
    "PipeIncoming",
    "PipeOutgoing",
    "Pong",
    "Reader",
    "Refused",
    "Started",
    "WireIncoming",
    "WireOutgoing",
    "Writer",
    "decode_message",
    "encode_frame",
]
