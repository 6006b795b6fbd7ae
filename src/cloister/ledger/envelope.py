"""A receipt as an in-toto statement in a DSSE envelope: signed, and checked when it comes back."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cloister.errors import RequestError
from cloister.ledger.checkpoint import Standing
from cloister.ledger.dsse import signed_bytes
from cloister.ledger.ed25519 import can_sign
from cloister.ledger.keys import PublicKey, Signer
from cloister.ledger.receipt import FORMAT, Receipt
from cloister.ledger.shape import canonical, decode_fields, encode_fields
from cloister.ledger.text import BadEntry, readable
from cloister.model import quote

# https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md
STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "urn:cloister:receipt:v1"
PAYLOAD = "application/vnd.in-toto+json"
MAXIMUM_RECEIPT_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True)
class CheckedReceipt:
    """A receipt that came back, what its signature is worth, and the key it names."""

    receipt: Receipt
    standing: Standing
    key: str | None

    @property
    def holds(self) -> bool:
        """Whether a key that is believed signed exactly this."""
        return self.standing == "verified"


def seal_receipt(receipt: Receipt, signer: Signer | None) -> bytes:
    """Return the receipt as a JSON document; without a signer nothing vouches for it."""
    statement = canonical(
        {
            "_type": STATEMENT,
            "subject": [_subject(receipt)],
            "predicateType": PREDICATE,
            "predicate": encode_fields(receipt),
        }
    )
    signatures = []
    if signer is not None:
        signature = signer.sign(signed_bytes(PAYLOAD, statement))
        signatures.append({"keyid": signer.id, "sig": base64.b64encode(signature).decode()})
    envelope = {
        "payloadType": PAYLOAD,
        "payload": base64.b64encode(statement).decode(),
        "signatures": signatures,
    }
    return canonical(envelope) + b"\n"


def _subject(receipt: Receipt) -> dict[str, Any]:
    digest = {"sha256": readable(receipt.ledger.last_hash)}
    return {"name": f"ledger/{readable(receipt.sandbox)}", "digest": digest}


def verify_receipt(data: bytes, keys: Mapping[str, PublicKey]) -> CheckedReceipt:
    """Return what a receipt says and what its signature is worth; raises if it is none."""
    if len(data) > MAXIMUM_RECEIPT_BYTES:
        raise RequestError(f"receipt of {len(data)} bytes; the limit is {MAXIMUM_RECEIPT_BYTES}")
    envelope = _object(_parse(data), {"payload", "payloadType", "signatures"}, "receipt")
    if envelope["payloadType"] != PAYLOAD:
        raise RequestError(f"payload type is {quote(envelope['payloadType'])}; not a receipt")
    body = _decode(envelope["payload"])
    standing, key = _standing(envelope["signatures"], signed_bytes(PAYLOAD, body), keys)
    return CheckedReceipt(_read(body), standing, key)


def _read(body: bytes) -> Receipt:
    names = {"_type", "subject", "predicateType", "predicate"}
    statement = _object(_parse(body), names, "statement")
    if (statement["_type"], statement["predicateType"]) != (STATEMENT, PREDICATE):
        raise RequestError(f"predicate is {quote(statement['predicateType'])}; not a receipt")
    try:
        receipt: Receipt = decode_fields(Receipt, statement["predicate"])
    except BadEntry as error:
        raise RequestError(f"receipt cannot be read: {error}") from error
    if receipt.format != FORMAT:
        raise RequestError(f"receipt of format {receipt.format}; this release reads {FORMAT}")
    if statement["subject"] != [_subject(receipt)]:
        raise RequestError("the subject of the receipt is not the ledger that it speaks of")
    return receipt


def _standing(
    signatures: Any, signed: bytes, keys: Mapping[str, PublicKey]
) -> tuple[Standing, str | None]:
    if not isinstance(signatures, list):
        raise RequestError(f"signatures are {quote(signatures)}; write a list")
    worst: Standing = "unsigned"
    named: str | None = None
    for signature in signatures[:16]:
        fields = _object(signature, {"keyid", "sig"}, "signature")
        named = fields["keyid"] if isinstance(fields["keyid"], str) else None
        key = None if named is None else keys.get(named)
        if key is None:
            worst = "unknown key"
        elif not can_sign():
            return "unchecked", named
        elif key.verifies(_decode(fields["sig"]), signed):
            return "verified", named
        else:
            return "bad signature", named
    return worst, named


def _parse(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise RequestError("receipt is not JSON; `cloister receipt ID --as json` writes one") from (
            error
        )


def _object(value: Any, names: set[str], what: str) -> dict[str, Any]:
    if not isinstance(value, dict) or value.keys() != names:
        raise RequestError(f"{what} has not the fields {', '.join(sorted(names))}")
    return value


def _decode(value: Any) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError, TypeError) as error:
        raise RequestError("receipt holds a text that is not base64") from error
