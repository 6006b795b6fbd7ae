"""How much one sandbox may ask of the gateway, and how long anything may take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bounds:
    """All bytes from inside are hostile: nothing is read, kept or waited for without one of these.

    `connections` are those open at once; more wait in the kernel's queue until one ends.
    """

    connections: int = 256
    # Those on which names are asked for by TCP: they do not wait for the others to end.
    name_connections: int = 64
    # Streams of HTTP/2 open at once, of all connections; more are refused, to be sent again.
    requests: int = 1024
    # Bodies of requests that wait for a person, all together.
    held_bytes: int = 16 * 1024 * 1024
    names: int = 4096
    questions_per_s: int = 500
    refusals_per_s: int = 500
    accepts_at_once: int = 16
    head_bytes: int = 64 * 1024
    head_s: float = 20.0
    lookup_s: float = 10.0
    lookups: int = 8
    dial_s: float = 15.0
    idle_s: float = 900.0
    # Questions to a person: held, asked at once, and asked in a row before it is one every so long.
    questions_held: int = 64
    questions_at_once: int = 8
    questions_in_a_row: int = 30
    question_every_s: float = 10.0
    # What was denied is not asked again at once.
    denied_s: float = 30.0
    # After the last byte was sent: how long the other side may go on talking to nobody.
    farewell_s: float = 5.0
    farewell_bytes: int = 1024 * 1024


USUAL = Bounds()
