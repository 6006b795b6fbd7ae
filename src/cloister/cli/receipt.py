"""`cloister receipt`: the signed account of a task, made or checked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from cloister.cli.ledger import emit, read_keys, state
from cloister.errors import RequestError
from cloister.model import quote

if TYPE_CHECKING:
    from cloister.ledger.reading import CheckedReceipt

_FORMS = ("text", "html", "json")


@click.command()
@click.argument("id", required=False)
@click.option("--as", "form", metavar="FORM", default="text", help="text, html or json (signed).")
@click.option(
    "--verify",
    "file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Check a receipt that was written with --as json, and print it.",
)
@click.option(
    "--key",
    metavar="FILE",
    multiple=True,
    type=click.Path(path_type=Path),
    help="With --verify: believe this public key and not the ones of this machine. Repeatable.",
)
def receipt(id: str | None, form: str, file: Path | None, key: tuple[Path, ...]) -> int:
    """Print what a sandbox ran, changed, sent, was denied, and what could not be seen.

    ID is a sandbox's id, the beginning of one, or a label. With --verify it exits with 1 unless
    a key that is believed signed exactly this receipt.
    """
    check_options(id, form, file, key)
    if file is not None:
        return print_receipt(read_receipt(file), key, form, must_hold=True)
    return print_receipt(_sealed(id or ""), key, form, must_hold=False)


def check_options(id: str | None, form: str, file: Path | None, key: tuple[Path, ...]) -> None:
    """Refuse options that do not go together."""
    if form not in _FORMS:
        raise RequestError(f"form is {quote(form)}; it may be {', '.join(_FORMS)}")
    if (id is None) == (file is None):
        raise RequestError("write either the ID of a sandbox or --verify FILE")
    if file is None and key:
        raise RequestError("--key is for --verify; a receipt is signed with the machine's own key")


def _sealed(id: str) -> bytes:
    from cloister.ledger import signer_for
    from cloister.ledger.reading import find_ledger, make_receipt, seal_receipt

    place = state()
    return seal_receipt(make_receipt(place, find_ledger(place, id)), signer_for(place))


def read_receipt(file: Path) -> bytes:
    """Return a receipt that was written to a file."""
    from cloister.ledger.reading import MAXIMUM_RECEIPT_BYTES

    try:
        with file.open("rb") as opened:
            return opened.read(MAXIMUM_RECEIPT_BYTES + 1)
    except OSError as error:
        raise RequestError(f"{quote(str(file))} cannot be read: {error.strerror}") from error


def _checked(sealed: bytes, key: tuple[Path, ...]) -> CheckedReceipt:
    from cloister.ledger.reading import trusted_keys, verify_receipt

    return verify_receipt(sealed, read_keys(key) or trusted_keys(state()))


def print_receipt(sealed: bytes, key: tuple[Path, ...], form: str, *, must_hold: bool) -> int:
    """Print a receipt and return the exit code: 1 if it must hold, and does not."""
    checked = _checked(sealed, key)
    _print(checked, sealed, form)
    return 1 if must_hold and not checked.holds else 0


def _print(checked: CheckedReceipt, sealed: bytes, form: str) -> None:
    from cloister.ledger.reading import receipt_html, receipt_text

    if form == "json":
        emit([sealed.decode("ascii", "backslashreplace").rstrip("\n")])
    else:
        shown = receipt_text(checked) if form == "text" else receipt_html(checked)
        emit([shown.rstrip("\n")])
