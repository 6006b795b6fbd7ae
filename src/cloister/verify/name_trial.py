"""Looks names up with this host's resolver at a name server that changes its mind, and dials.

Run as `python -m cloister.verify.name_trial`, in namespaces of its own that are gone with it: there
the resolver can be led to a server of ours. Prints what happened as JSON.
"""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import json
import os
import socket
import struct
import sys
import tempfile
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dns.message
import dns.rdatatype
import dns.rrset

from cloister.egress.bounds import USUAL
from cloister.egress.refusal import Refusal, Unreachable
from cloister.egress.upstream import Upstream

GOOD, EVIL, PUBLIC = "127.0.0.9", "127.0.0.66", "93.184.216.34"
_NEW_NAMESPACES = 0x10000000 | 0x20000 | 0x40000000
_MS_BIND, _MS_REC, _MS_PRIVATE = 4096, 16384, 1 << 18
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
# What each question for a name is answered with, by turns; the last one from then on.
_ANSWERS: dict[str, tuple[str, ...]] = {
    "turns.test.": (GOOD, EVIL),
    "opens.test.": (PUBLIC, EVIL),
    "closes.test.": (EVIL, PUBLIC),
    "end.corp.test.": (EVIL,),
    "keys.corp.test.": ("169.254.169.254",),
}
_ALIASES = {
    "alias.test.": "middle.test.",
    "middle.test.": "end.corp.test.",
    "cloud.test.": "keys.corp.test.",
}


@dataclass(frozen=True, slots=True)
class Trial:
    """One name that is looked up and dialled, and whether its addresses may be private."""

    name: str
    private: bool


TRIALS = (
    Trial("turns.test", private=True),
    Trial("turns.test", private=True),
    Trial("opens.test", private=False),
    Trial("closes.test", private=False),
    Trial("alias.test", private=False),
    Trial("alias.test", private=True),
    Trial("cloud.test", private=True),
)


def main() -> None:
    """Enter the namespaces, answer and listen there, and try each name."""
    _enter()
    asked: Counter[str] = Counter()
    questions = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    questions.bind(("127.0.0.1", 53))
    threading.Thread(target=_answer, args=(questions, asked), daemon=True).start()
    arrived: list[str] = []
    port = _listen(arrived)
    outcomes = asyncio.run(_try_all(port, asked))
    json.dump({"outcomes": outcomes, "arrived": arrived}, sys.stdout)


def _enter() -> None:
    libc = ctypes.CDLL(None, use_errno=True)

    def must(answer: int, what: str) -> None:
        if answer != 0:
            sys.exit(f"{what}: {os.strerror(ctypes.get_errno())}")

    uid, gid = os.geteuid(), os.getegid()
    must(libc.unshare(_NEW_NAMESPACES), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        Path("/proc/self", name).write_text(text)
    must(libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None), "mount")
    with tempfile.TemporaryDirectory() as place:
        # Both: a host may ask a program of its own, whatever resolv.conf says.
        for name, text in (
            ("resolv.conf", "nameserver 127.0.0.1\noptions timeout:5 attempts:1\n"),
            ("nsswitch.conf", "hosts: dns\n"),
        ):
            ours = Path(place, name)
            ours.write_text(text)
            must(
                libc.mount(bytes(ours), f"/etc/{name}".encode(), None, _MS_BIND, None),
                f"mount over /etc/{name}",
            )
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as lever:
        fcntl.ioctl(lever, _SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", _IFF_UP))


def _answer(questions: socket.socket, asked: Counter[str]) -> None:
    while True:
        data, whence = questions.recvfrom(4096)
        question = dns.message.from_wire(data)
        name = question.question[0].name.to_text().lower()
        wants_address = question.question[0].rdtype == dns.rdatatype.A
        if wants_address:
            asked[name] += 1
        answer = dns.message.make_response(question)
        at = name
        while at in _ALIASES:
            answer.answer.append(dns.rrset.from_text(at, 0, "IN", "CNAME", _ALIASES[at]))
            at = _ALIASES[at]
        if wants_address:
            turns = _ANSWERS[at]
            address = turns[min(asked[name], len(turns)) - 1]
            answer.answer.append(dns.rrset.from_text(at, 0, "IN", "A", address))
        questions.sendto(answer.to_wire(), whence)


def _listen(arrived: list[str]) -> int:
    """Listen at both addresses, and write down where a connection came to."""
    port = 0
    for address in (GOOD, EVIL):
        door = socket.create_server((address, port))
        port = door.getsockname()[1]
        threading.Thread(target=_take, args=(door, address, arrived), daemon=True).start()
    return port


def _take(door: socket.socket, address: str, arrived: list[str]) -> None:
    while True:
        sock, _ = door.accept()
        arrived.append(address)
        with sock:
            sock.sendall(address.encode())


async def _try_all(port: int, asked: Counter[str]) -> list[dict[str, Any]]:
    upstream = Upstream(USUAL)
    outcomes = []
    for trial in TRIALS:
        before = asked[f"{trial.name}."]
        outcome: dict[str, Any] = {"name": trial.name, "private": trial.private}
        try:
            checked = await upstream.find(trial.name, port, private=trial.private)
            outcome["checked"] = [str(each) for each in checked]
            with await upstream.dial(checked, port) as sock:
                sock.setblocking(True)
                outcome["reached"] = await asyncio.to_thread(sock.recv, 64)
                outcome["reached"] = outcome["reached"].decode()
        except Refusal as refusal:
            outcome["refused"] = refusal.reason
        except Unreachable as failure:
            outcome["unreachable"] = str(failure)
        outcomes.append({**outcome, "asked": asked[f"{trial.name}."] - before})
    upstream.close()
    return outcomes


if __name__ == "__main__":
    main()
