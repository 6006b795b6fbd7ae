"""What is done with a ledger that exists: read, followed, verified, exported, receipted."""

from __future__ import annotations

from cloister.ledger.account import make_receipt
from cloister.ledger.checkpoint import Anchor, parse_anchor, read_anchors
from cloister.ledger.envelope import (
    MAXIMUM_RECEIPT_BYTES,
    CheckedReceipt,
    seal_receipt,
    verify_receipt,
)
from cloister.ledger.export import FORMS, export_ledger
from cloister.ledger.find import find_ledger
from cloister.ledger.findings import Fault, Finding, Report, Unfinished
from cloister.ledger.keys import PublicKey, parse_public_key, read_public_key, trusted_keys
from cloister.ledger.page import receipt_html, receipt_text
from cloister.ledger.place import list_ledgers
from cloister.ledger.reader import read_entries
from cloister.ledger.receipt import Receipt
from cloister.ledger.verify import verify_ledger
from cloister.ledger.watch import follow_entries, watch_ledger
from cloister.ledger.words import clock, describe

__all__ = [
    "FORMS",
    "MAXIMUM_RECEIPT_BYTES",
    "Anchor",
    "CheckedReceipt",
    "Fault",
    "Finding",
    "PublicKey",
    "Receipt",
    "Report",
    "Unfinished",
    "clock",
    "describe",
    "export_ledger",
    "find_ledger",
    "follow_entries",
    "list_ledgers",
    "make_receipt",
    "parse_anchor",
    "parse_public_key",
    "read_anchors",
    "read_entries",
    "read_public_key",
    "receipt_html",
    "receipt_text",
    "seal_receipt",
    "trusted_keys",
    "verify_ledger",
    "verify_receipt",
    "watch_ledger",
]
