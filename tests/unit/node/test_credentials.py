"""What was minted is revoked when its owner is killed, whatever the owner has forked."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path

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
