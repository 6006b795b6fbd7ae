"""What a server knows as one file, made while it runs, and put back into an empty place."""

from __future__ import annotations

import os
import secrets
import time
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

import msgspec

from cloister.errors import AlreadyExists, HostError, NotFound, RequestError
from cloister.model import quote
from cloister.node.templates import Templates
from cloister.server.records import Records, SandboxRow, TokenRow
from cloister.server.records.rows import SecretRow
from cloister.server.records.transfer import Everything, dump, load
from cloister.store import Store
from cloister.store.place import make_private

_FORM = 1
_MOST_BYTES = 2**30
# What the tokens of E2B's sandboxes are made from: without it none of them opens anything.
_KEY = "e2b.key"


class Backup(msgspec.Struct, forbid_unknown_fields=True):
    """All of it. Tokens are hashes; the key is a secret, and so is the file."""

    form: int
    cloister: str
    made_at: float
    e2b_key: str | None
    tokens: list[TokenRow]
    sandboxes: list[SandboxRow]
    # As they are kept; with the digests of their images, which are not in here.
    templates: list[str]
    # Sealed under the owner's key, which is not in here.
    secrets: list[SecretRow] = []


@dataclass(frozen=True, slots=True)
class Counts:
    """How much there was; `without_disk` are kept sandboxes whose disk is not here."""

    tokens: int
    sandboxes: int
    templates: int
    without_disk: tuple[str, ...] = ()


def make_backup(records: Records, store: Store, path: Path) -> Counts:
    """Write everything to a file that only its owner can read; whole, or not at all."""
    found = dump(records)
    templates = Templates(store).texts()
    key = store.directory / _KEY
    backup = Backup(
        _FORM,
        version("cloister"),
        time.time(),
        key.read_bytes().hex() if key.exists() else None,
        found.tokens,
        found.sandboxes,
        templates,
        found.secrets,
    )
    _write(path, msgspec.json.encode(backup))
    return Counts(len(found.tokens), len(found.sandboxes), len(templates))


def restore_backup(records: Records, store: Store, path: Path) -> Counts:
    """Put everything back. Interrupted anywhere, it can be run again."""
    backup = _read(path)
    if backup.e2b_key is not None:
        _put_key(store.directory, backup.e2b_key)
    templates = Templates(store)
    for text in backup.templates:
        templates.put_back(text)
    kept = {each.name for each in store.kept.list()}
    without = [
        row
        for row in backup.sandboxes
        if row.keep is not None and row.keep not in kept and row.state != "ended"
    ]
    lost = {row.id for row in without}
    rows = [_ended(row) if row.id in lost else row for row in backup.sandboxes]
    # Last: what was restored before is not seen by anybody without it.
    load(records, Everything(backup.tokens, rows, backup.secrets))
    names = tuple(f"{row.tenant} {row.id}" for row in without)
    return Counts(len(backup.tokens), len(rows), len(backup.templates), names)


def _ended(row: SandboxRow) -> SandboxRow:
    # Said here and not found out later: to resume it would be to begin with an empty disk.
    ending = "it was restored without its disk"
    return replace(row, state="ended", ended_at=time.time(), ending=ending, deadline_at=None)


def _write(path: Path, data: bytes) -> None:
    draft = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    try:
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise HostError(f"{quote(str(path))} cannot be written: {error.strerror}") from error
    try:
        with open(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.rename(draft, path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise HostError(f"{quote(str(path))} cannot be written: {error.strerror}") from error


def _read(path: Path) -> Backup:
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        raise NotFound(f"no file {quote(str(path))}", what=str(path)) from None
    except OSError as error:
        raise HostError(f"{quote(str(path))} cannot be read: {error.strerror}") from error
    if len(data) > _MOST_BYTES:
        raise RequestError(f"{quote(str(path))} has more than {_MOST_BYTES} bytes; it is no backup")
    try:
        form = msgspec.json.decode(data, type=dict).get("form")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise RequestError(f"{quote(str(path))} is no backup, or not all of one") from None
    if form != _FORM:
        raise RequestError(
            f"{quote(str(path))} is of form {quote(form)}; this release knows {_FORM}: "
            "use the release that wrote it"
        )
    try:
        return msgspec.json.decode(data, type=Backup)
    except msgspec.DecodeError as error:
        raise RequestError(f"{quote(str(path))} is no whole backup: {error}") from None


def _put_key(directory: Path, text: str) -> None:
    try:
        key = bytes.fromhex(text)
    except ValueError:
        raise RequestError("the key in the backup is not hexadecimal") from None
    make_private(directory)
    path = directory / _KEY
    if path.exists():
        if path.read_bytes() != key:
            raise AlreadyExists(
                f"{quote(str(path))} is of another server; restore into another CLOISTER_STATE",
                what=str(path),
            )
        return
    _write(path, key)
