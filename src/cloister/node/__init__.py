"""One machine's supervisor of sandboxes."""

from __future__ import annotations

from cloister.node.holding import as_held, require_countable
from cloister.node.node import Node
from cloister.node.records import Record, list_records
from cloister.node.stock import open_store
from cloister.node.traffic_log import TrafficLog
from cloister.node.workspace import Occasion, Workspace

__all__ = [
    "Node",
    "Occasion",
    "Record",
    "TrafficLog",
    "Workspace",
    "as_held",
    "list_records",
    "open_store",
    "require_countable",
]
