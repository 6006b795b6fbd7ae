"""What a gateway is told of a sandbox that it is to serve."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cloister.egress import control
from cloister.egress.terms import write_terms
from cloister.model import SandboxId
from cloister.node.held_questions import Ask
from cloister.node.traffic_log import TrafficLog
from cloister.policy import Policy
from cloister.runtime.doors import Doors

if TYPE_CHECKING:
    from cloister.node.provisions import Provisions

_NOTHING: Mapping[str, Any] = {"depth": None, "values": {}}
# In a frame; longer ones travel in a document.
_LONGEST_TERMS = 16 * 1024


@dataclass(frozen=True, slots=True)
class Served:
    """A sandbox with a way out."""

    policy: Policy
    doors: Doors
    log: TrafficLog
    ask: Ask | None
    provisions: Provisions | None


def words_for(id: SandboxId, served: Served) -> tuple[Mapping[str, Any], tuple[int, ...]]:
    """Return the frame that has a sandbox served, and the document that goes with it, if any.

    The document is the caller's to close.
    """
    terms = write_terms(served.policy.egress, served.policy.secrets)
    frame = {"do": "serve", "sandbox": id}
    content = {
        "book": served.log.book,
        "used": served.log.used,
        **(_NOTHING if served.provisions is None else served.provisions.document()),
    }
    if not any(content.values()) and len(terms) <= _LONGEST_TERMS:
        # Nothing secret and nothing long, as most are.
        return {**frame, "terms": terms}, ()
    return frame, (control.document({"terms": terms, **content}),)
