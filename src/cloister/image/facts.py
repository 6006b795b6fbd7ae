"""What is known of an unpacked layer, as the unpacker tells it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from cloister.errors import ProtocolViolation
from cloister.model import quote


@dataclass(frozen=True, slots=True)
class LayerFacts:
    """One layer: what it holds, what was left out of it, and the greatest owners in it."""

    entries: int
    bytes: int
    whiteouts: int
    opaque: int
    opaque_top: bool
    implied: int
    devices: int
    bookkeeping: int
    attributes: int
    strangers: int
    uid_max: int
    gid_max: int

    def as_json(self) -> str:
        """Return it as the text that is kept with the layer."""
        return json.dumps(asdict(self), separators=(",", ":"))


def parse_facts(text: bytes | str) -> LayerFacts:
    """Read the line that the unpacker ends with; every byte of it came out of a sandbox."""
    try:
        document = json.loads(text)
        flat = {**document, **document.pop("skipped", {})}
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ProtocolViolation("the unpacker's last line is not JSON") from error
    flat.pop("skipped", None)
    fields = LayerFacts.__dataclass_fields__
    if set(flat) != set(fields):
        raise ProtocolViolation("the unpacker's last line does not have the fields it should have")
    for name, value in flat.items():
        wanted = bool if name == "opaque_top" else int
        if type(value) is not wanted or not 0 <= value < 2**63:
            raise ProtocolViolation(f"the unpacker says that {name} is {quote(value)}")
    return LayerFacts(**flat)
