"""The other ways to run a program in a sandbox, each called as its own users call it."""

from __future__ import annotations

from pathlib import Path

from benches.measure import NotMeasurable
from benches.peers.bwrap import Bwrap
from benches.peers.firejail import Firejail
from benches.peers.peer import Peer
from benches.peers.runc import Runc
from benches.peers.runsc import Runsc
from benches.peers.sandlock import Sandlock

PROBE = ["/bin/true"]


async def find_peers(scratch: Path) -> tuple[dict[str, Peer], dict[str, str]]:
    """The peers that work here, and why the others do not: each is tried, not looked for."""
    found: dict[str, Peer] = {}
    absent: dict[str, str] = {}
    for kind in (Bwrap, Runc, Runsc, Firejail, Sandlock):
        try:
            peer = kind(scratch)
            await peer.fresh(PROBE)
        except NotMeasurable as reason:
            absent[kind.name] = str(reason)
        else:
            found[kind.name] = peer
    return found, absent
