"""Show a caller's value inside an error text, briefly and whatever it is."""

from __future__ import annotations

SHOWN_CHARACTERS = 60
SHOWN_BITS = 128


def quote(value: object) -> str:
    """Return `value` as short printable text.

    Never fails: `repr` of an integer above 4,300 digits raises, and `repr` of a stranger's object
    is a stranger's code, so neither is called here.
    """
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, int):
        bits = int.bit_length(value)
        return int.__repr__(value) if bits <= SHOWN_BITS else f"an integer of {bits} bits"
    if isinstance(value, float):
        return float.__repr__(value)
    if isinstance(value, str):
        return _quote_text(str(value))
    if isinstance(value, bytes):
        return f"bytes of length {len(value)}"
    return f"a value of type {type(value).__name__}"


def _quote_text(text: str) -> str:
    kept = text[:SHOWN_CHARACTERS]
    # Guest and file names may hold terminal escapes; only printable characters go through.
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in kept)
    rest = f" and {len(text) - len(kept)} more characters" if len(text) > len(kept) else ""
    return f'"{shown}"{rest}'
