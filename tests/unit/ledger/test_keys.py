"""Keys: made once, private, believed only where they were put, and not needed to write."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cloister.errors import HostError, RequestError, Unsupported
from cloister.ledger import Ledger, Opened, Paused, Signer, signer_for
from cloister.ledger import keys as room
from cloister.ledger.keys import PublicKey, read_public_key, trusted_keys
from cloister.ledger.reading import read_entries, verify_ledger


def made(state: Path) -> Signer:
    signer = signer_for(state)
    assert signer is not None
    return signer


def test_a_key_is_made_at_first_use_and_used_again(tmp_path: Path) -> None:
    first = made(tmp_path)
    room._signer.cache_clear()
    assert made(tmp_path).id == first.id
    assert (tmp_path / "keys" / "ledger.key").stat().st_mode & 0o777 == 0o600
    assert set(trusted_keys(tmp_path)) == {first.id}


def test_what_was_signed_verifies_and_anything_else_does_not(tmp_path: Path) -> None:
    signer = made(tmp_path)
    signature = signer.sign(b"data")
    assert signer.public.verifies(signature, b"data")
    assert not signer.public.verifies(signature, b"date")
    assert not signer.public.verifies(signature[:-1], b"data")
    assert not PublicKey(b"\1" * 32).verifies(signature, b"data")


def test_openssl_reads_the_keys_and_agrees_on_the_signature(tmp_path: Path) -> None:
    signer = made(tmp_path)
    (tmp_path / "data").write_bytes(b"data")
    (tmp_path / "signature").write_bytes(signer.sign(b"data"))
    command = ["openssl", "pkeyutl", "-verify", "-rawin", "-pubin"]
    command += ["-inkey", str(tmp_path / "keys" / "ledger.pub"), "-in", str(tmp_path / "data")]
    command += ["-sigfile", str(tmp_path / "signature")]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    assert ran.returncode == 0 and "Verified" in ran.stdout


def test_many_processes_at_once_make_one_key(tmp_path: Path) -> None:
    source = (
        "import sys\nfrom pathlib import Path\nfrom cloister.ledger import signer_for\n"
        "sys.stdin.readline()\nsigner = signer_for(Path(sys.argv[1]))\n"
        "signer.sign(b'x')\nprint(signer.id)\n"
    )
    makers = [
        subprocess.Popen(
            [sys.executable, "-c", source, tmp_path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    ids = {maker.communicate("\n")[0].strip() for maker in makers}
    assert ids == {made(tmp_path).id}
    assert sorted(p.name for p in (tmp_path / "keys").iterdir()) == ["ledger.key", "ledger.pub"]


def test_the_public_key_of_a_maker_that_died_is_written_later(tmp_path: Path) -> None:
    first = made(tmp_path)
    (tmp_path / "keys" / "ledger.pub").unlink()
    room._signer.cache_clear()
    assert made(tmp_path).id == first.id


def test_a_private_key_that_is_not_of_the_public_one_is_refused(tmp_path: Path) -> None:
    made(tmp_path / "a")
    made(tmp_path / "b")
    (tmp_path / "a/keys/ledger.pub").write_bytes((tmp_path / "b/keys/ledger.pub").read_bytes())
    room._signer.cache_clear()
    with pytest.raises(HostError, match="does not belong"):
        made(tmp_path / "a").warm()


def test_a_key_that_cannot_be_read_leaves_the_entries_and_raises_the_alarm(tmp_path: Path) -> None:
    made(tmp_path)
    (tmp_path / "keys" / "ledger.key").write_text("nonsense")
    room._signer.cache_clear()
    troubles: list[Exception] = []
    ledger = Ledger(tmp_path, "sb_a", on_trouble=troubles.append)
    ledger.write(Paused())
    assert ledger.checkpoint() is None
    assert len(troubles) == 1 and "private key" in str(troubles[0])
    with pytest.raises(HostError, match="could not be closed"):
        ledger.close()
    report = verify_ledger(tmp_path, "sb_a")
    assert report.holds and not report.is_closed and report.signed_through is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "-----BEGIN PUBLIC KEY-----\n!\n-----END PUBLIC KEY-----\n",
        "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n",
    ],
)
def test_a_file_that_is_no_key_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "key.pub"
    path.write_text(text)
    with pytest.raises(RequestError):
        read_public_key(path)


def test_a_key_reads_back_as_it_was_written(tmp_path: Path) -> None:
    key = PublicKey(bytes(range(32)))
    path = tmp_path / "key.pub"
    path.write_text(key.pem())
    assert read_public_key(path).id == key.id
    with pytest.raises(RequestError):
        PublicKey(b"short")


def test_without_the_library_entries_are_chained_and_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "can_sign", lambda: False)
    monkeypatch.setattr("cloister.ledger.ed25519.can_sign", lambda: False)
    assert signer_for(tmp_path) is None
    with Ledger(tmp_path, "sb_a") as ledger:
        ledger.write(Paused())
    first = next(read_entries(tmp_path, "sb_a")).payload
    assert isinstance(first, Opened) and first.key is None and "cryptography" in str(first.unsigned)
    report = verify_ledger(tmp_path, "sb_a")
    assert report.holds and not report.is_signed
    with pytest.raises(Unsupported, match="cloister\\[ledger\\]"):
        PublicKey(bytes(32)).verifies(b"", b"")


def test_opening_a_ledger_does_not_load_the_library(tmp_path: Path) -> None:
    made(tmp_path)
    source = (
        "import sys\nfrom pathlib import Path\nfrom cloister.ledger import Ledger, Paused\n"
        "ledger = Ledger(Path(sys.argv[1]), 'sb_a')\nledger.write(Paused())\n"
        "assert 'cryptography' not in sys.modules\n"
        "ledger.close()\nassert 'cryptography' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", source, tmp_path], check=True)


def test_many_threads_that_need_a_key_at_once_get_the_same_one(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as threads:
        signers = list(threads.map(lambda _: signer_for(tmp_path), range(64)))
    assert len({signer.id for signer in signers if signer is not None}) == 1
    assert sorted(path.name for path in (tmp_path / "keys").iterdir()) == [
        "ledger.key",
        "ledger.pub",
    ]
