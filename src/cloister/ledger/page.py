"""A receipt for people: as plain text, and as one HTML page without scripts or anything outside."""

from __future__ import annotations

import html
from collections.abc import Iterator

from cloister.ledger.envelope import CheckedReceipt
from cloister.ledger.receipt import Receipt
from cloister.ledger.text import Text, listed, readable
from cloister.ledger.words import clock, plain

Rows = list[tuple[str, ...]]
_STANDINGS = {
    "verified": "signed, and the signature holds",
    "unsigned": "NOT SIGNED: nobody vouches for it",
    "unchecked": "signed; the signature could not be checked here",
    "unknown key": "NOT BELIEVED: signed with a key that is not known here",
    "bad signature": "FORGED OR CHANGED: the signature does not hold",
}
_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;"
    "color:#1a1a1a;background:#fff}h1{font-size:1.5rem}h2{font-size:1.1rem;margin-top:2rem}"
    "table{border-collapse:collapse;width:100%}td{border-top:1px solid #ddd;padding:.3rem .6rem;"
    "vertical-align:top;overflow-wrap:anywhere}td:first-child{color:#555;width:14rem}"
    "@media(prefers-color-scheme:dark){body{color:#eee;background:#161616}td{border-color:#333}"
    "td:first-child{color:#aaa}}"
)


def receipt_text(checked: CheckedReceipt) -> str:
    """Return the receipt as text; nothing in it acts on a terminal."""
    lines = [f"Receipt of {plain(readable(checked.receipt.sandbox))}"]
    for title, rows in _sections(checked):
        lines += ["", title]
        widths = [max((len(row[i]) for row in rows if len(row) > i), default=0) for i in range(2)]
        for row in rows:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
            lines.append("  " + "  ".join([*cells, *row[2:]]).rstrip())
    return "\n".join(lines) + "\n"


def receipt_html(checked: CheckedReceipt) -> str:
    """Return the receipt as one HTML page that loads nothing and runs nothing."""
    title = f"Receipt of {plain(readable(checked.receipt.sandbox))}"
    parts = [f"<h1>{html.escape(title)}</h1>"]
    for heading, rows in _sections(checked):
        cells = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
            for row in rows
        )
        parts.append(f"<h2>{html.escape(heading)}</h2><table>{cells}</table>")
    # The policy is a second wall behind the escaping: no script runs, nothing is loaded.
    policy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head>"
        f"<body>{''.join(parts)}</body></html>\n"
    )


def _sections(checked: CheckedReceipt) -> Iterator[tuple[str, Rows]]:
    """Yield titles and rows; every cell is harmless text of one line."""
    receipt = checked.receipt
    yield "Signature", [(_STANDINGS[checked.standing], _shown(checked.key))]
    yield "What it was", _identity(receipt)
    processes, changes = receipt.processes, receipt.changes
    yield (
        "What ran",
        [
            ("processes started", str(processes.started)),
            ("by the API", str(processes.by_api)),
            ("ended", f"{processes.ended}, {processes.failed} of them not with code 0"),
            ("digest of all commands", _shown(processes.argv_sha256)),
        ],
    )
    yield (
        "What changed",
        [
            ("files added", str(changes.added)),
            ("files modified", str(changes.modified)),
            ("files removed", str(changes.removed)),
            ("bytes", str(changes.content_bytes)),
            ("digest of the steps", f"{_shown(changes.steps_sha256)} ({changes.steps} steps)"),
            *([("digest of the diff", _shown(changes.diff))] if changes.diff is not None else []),
        ],
    )
    yield (
        "What left",
        [
            (
                _shown(reached.host),
                f"{reached.bytes_out} bytes out, {reached.bytes_in} in",
                f"{reached.connections} connections, {reached.requests} requests, "
                f"{reached.refused} refused",
            )
            for reached in receipt.hosts
        ]
        or [("nothing",)],
    )
    yield (
        "Secrets used",
        [
            (
                _shown(use.name),
                f"{use.used} times, refused {use.blocked} times",
                plain(" ".join(listed(use.hosts))),
            )
            for use in receipt.secrets
        ]
        or [("none",)],
    )
    yield (
        "Approvals",
        [
            (
                f"{approval.number}: {_shown(approval.answer)}",
                f"by {_shown(approval.who)}, rule {_shown(approval.rule)}",
                _shown(approval.what),
            )
            for approval in receipt.approvals
        ]
        or [("none was asked for",)],
    )
    yield (
        "Denied",
        [
            (f"{denial.count} times", _shown(denial.kind), f"by {_shown(denial.rule)}")
            for denial in receipt.denials
        ]
        or [("nothing",)],
    )
    yield (
        "Limits reached",
        [(f"{hit.count} times", _shown(hit.limit)) for hit in receipt.limits] or [("none",)],
    )
    # An empty list would read as "everything was seen", which no runtime can say of itself.
    unseen: Rows = [(plain(sentence),) for sentence in listed(receipt.coverage)]
    yield "What could not be seen", unseen or [("nothing was stated about it",)]


def _identity(receipt: Receipt) -> Rows:
    ledger = receipt.ledger
    rows = [
        ("label", _shown(receipt.label)),
        ("began", "-" if receipt.began_ns is None else clock(receipt.began_ns)),
        ("ended", "-" if receipt.ended_ns is None else clock(receipt.ended_ns)),
        ("because", _shown(receipt.ending)),
        ("runtime", _shown(receipt.runtime)),
        ("plan", _shown(receipt.plan)),
        ("policy", _shown(receipt.policy)),
        ("image", _shown(receipt.image)),
        ("made from snapshot", _shown(receipt.base_snapshot)),
        ("snapshots taken", plain(" ".join(listed(receipt.snapshots))) or "-"),
        ("ledger", f"{ledger.entries} entries, the last {_shown(ledger.last_hash)}"),
        ("lost entries", str(ledger.lost)),
        ("counted, not kept", str(ledger.folded)),
    ]
    return [row for row in rows if row[1] != "-"]


def _shown(value: Text | None) -> str:
    return "-" if value is None else plain(readable(value))
