"""The way out of one machine: a socket goes in with QEMU, and what the guest carries comes out."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Sequence

from cloister.runtime.dialler import Dialler
from cloister.runtime.microvm.guest import MicrovmGuest
from cloister.runtime.refusals import Refusals
from cloister.runtime.way_out import WayOut

# The word with which `cell execute` takes the socket that connections are asked for on.
_DIAL = b"d"


class Outlet:
    """Before there is a guest: one end for whoever dials beside QEMU, the other for us."""

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    @property
    def opening(self) -> tuple[bytes, Sequence[int]]:
        """What is said to `cell execute` first."""
        return _DIAL, (self._theirs.fileno(),)

    def lead(self, guest: MicrovmGuest) -> None:
        """Carry what connects inside to the doors of the network around QEMU."""
        if guest.doors is None:
            # Then there is nobody to lead to, and whoever asked for a way out says so.
            return
        refusals = Refusals(guest.doors.refused)
        guest.doors = dataclasses.replace(guest.doors, refused=refusals.detach())
        guest.way_out = WayOut(guest.link, Dialler(self._ours.dup()), refusals)

    def close(self) -> None:
        """Let go of both: whoever needs one has it by now."""
        self._ours.close()
        self._theirs.close()
