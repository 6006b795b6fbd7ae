"""A web server at a public address that is not this machine's: the far end of an open network.

It is in a network namespace of its own, and everything of it ends with its one process.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

# Routed to the namespace and nowhere else; addresses of nobody (RFC 5737) do not count as public.
ADDRESS = "7.7.7.7"
OTHER_ADDRESS = "7.7.7.8"
# Those of the pair that joins the two.
_NEAR = "198.51.100.129"

_SERVER = """
import socket, sys, threading
print("ready", flush=True)
sys.stdin.readline()

def serve(sock):
    with sock:
        if sock.recv(65536):
            sock.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 5\\r\\n\\r\\nhello")
            # Until the other side goes: a connection that stays open can be seen to be cut.
            sock.recv(65536)

for port in (80, 7000):
    listener = socket.create_server(("0.0.0.0", port))
    def accept(listener=listener):
        while True:
            threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
    threading.Thread(target=accept, daemon=True).start()
print("listening", flush=True)
sys.stdin.readline()
"""


@contextlib.contextmanager
def far_away() -> Iterator[str]:
    """Have it, at ADDRESS and OTHER_ADDRESS, ports 80 and 7000; yields ADDRESS."""
    if os.geteuid() != 0:
        pytest.skip("only root gives the host a route to a server elsewhere")
    device = f"far{os.getpid() % 10_000_000}"
    process = subprocess.Popen(
        ["unshare", "--net", sys.executable, "-c", _SERVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    with process, contextlib.ExitStack() as stack:
        stack.callback(process.kill)
        assert process.stdout.readline() == "ready\n"
        pid = str(process.pid)
        there = ("nsenter", "--net", "--target", pid)
        _do("ip", "link", "add", device, "type", "veth", "peer", "name", "near0", "netns", pid)
        # With the namespace the pair would go too, but a moment later.
        stack.callback(_do, "ip", "link", "delete", device)
        _do("ip", "address", "add", f"{_NEAR}/32", "dev", device)
        _do("ip", "link", "set", device, "up")
        _do(*there, "ip", "link", "set", "near0", "up")
        _do(*there, "ip", "route", "add", _NEAR, "dev", "near0")
        for address in (ADDRESS, OTHER_ADDRESS):
            _do(*there, "ip", "address", "add", f"{address}/32", "dev", "near0")
            _do("ip", "route", "add", f"{address}/32", "dev", device, "src", _NEAR)
        process.stdin.write("go\n")
        process.stdin.flush()
        assert process.stdout.readline() == "listening\n"
        yield ADDRESS


def _do(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
