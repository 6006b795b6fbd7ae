"""What was minted is revoked when its owner is killed, whatever the owner has forked."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from cloister.node.credentials import Credential, revoke_abandoned
from cloister.node.secret_value import SecretValue
from cloister.policy.secrets import SecretBinding

_OWNER = """
import os, sys, time
from pathlib import Path
from cloister.node.credentials import Credential
from cloister.node.secret_value import SecretValue
from cloister.policy.secrets import SecretBinding
place = Path(sys.argv[1])
revoke = ["/bin/sh", "-c", f"cat > {place}/told"]
binding = SecretBinding(
    "T", mint=["/bin/true"], revoke=revoke, hosts=["a.example"], header="authorization"
)
credential = Credential(binding, SecretValue("T", "value-that-is-minted"), "handle")
credential.note(place, "sandbox")
child = os.fork()
if child == 0:
    sys.stdin.read()
    os._exit(0)
print(child, flush=True)
time.sleep(600)
"""


def test_a_child_that_outlives_a_killed_owner_keeps_nothing_from_being_revoked(
    tmp_path: Path,
) -> None:
    os.mkfifo(tmp_path / "told")
    heard = os.open(tmp_path / "told", os.O_RDONLY | os.O_NONBLOCK)
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdin is not None
    assert owner.stdout is not None
    with owner.stdin, owner.stdout, open(heard, "rb", buffering=0) as told:
        child = int(owner.stdout.readline())
        os.kill(owner.pid, signal.SIGKILL)
        owner.wait()
        ready, _, _ = select.select([told], [], [], 60)
        assert ready
        assert told.read() == b"handle\n"
        # It lives still: nobody waited for its end.
        os.kill(child, 0)


async def test_a_record_that_a_neighbour_swept_before_it_was_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    revoke = ["/bin/sh", "-c", f"cat >> {tmp_path}/told"]
    binding = SecretBinding(
        "T", mint=["/bin/true"], revoke=revoke, hosts=["a.example"], header="authorization"
    )
    credential = Credential(binding, SecretValue("T", "value-that-is-minted"), "handle")
    lock, swept = fcntl.flock, []

    def locked_late(fd: int, how: int) -> None:
        if not swept:
            # Somebody else, who mints too, comes by between the making and the locking.
            swept.append(fd)
            threading.Thread(target=asyncio.run, args=(revoke_abandoned(tmp_path),)).run()
        lock(fd, how)

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", locked_late)
        await asyncio.to_thread(credential.note, tmp_path, "sandbox")
    assert swept
    assert json.loads((tmp_path / "sandbox.T.json").read_text())["handle"] == "handle"
    # While its owner lives nobody else revokes it, and the owner does once.
    await revoke_abandoned(tmp_path)
    assert not (tmp_path / "told").exists()
    await credential.revoke()
    assert (tmp_path / "told").read_text() == "handle\n"
    assert not list(tmp_path.glob("*.json"))
