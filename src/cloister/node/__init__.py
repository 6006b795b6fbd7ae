"""One machine's supervisor of sandboxes."""

from __future__ import annotations

from cloister.node.node import Node
from cloister.node.records import Record, list_records

__all__ = ["Node", "Record", "list_records"]
