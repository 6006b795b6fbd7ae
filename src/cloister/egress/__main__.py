"""The gateway process: `python -m cloister.egress FD [depth]`, FD being its end of the socket."""

from __future__ import annotations

import asyncio
import ctypes

# Looked for when a first name is looked up or answered, by when our own files may be out of reach.
import encodings.idna
import encodings.punycode
import gc
import importlib
import os
import resource
import signal
import socket
import sys

import dns.rdtypes.ANY.OPT
import dns.rdtypes.IN.A

from cloister.egress.gateway import Gateway

_PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 4, 38
_NOBODY = 65_534
_LOADED = (encodings.idna, encodings.punycode, dns.rdtypes.ANY.OPT, dns.rdtypes.IN.A)


def main(arguments: list[str]) -> None:
    """Serve until the owner is gone. Does not return."""
    end = socket.socket(fileno=int(arguments[0]))
    os.set_inheritable(end.fileno(), False)
    if "depth" in arguments[1:]:
        # Before it becomes nobody, who may not reach our files.
        importlib.import_module("cloister.egress.depth.authority")
        importlib.import_module("cloister.egress.depth.conversation")
    _narrow()
    status = 0
    try:
        asyncio.run(_run(end))
    except BaseException as error:
        print(f"cloister.egress: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        status = 1
    finally:
        # Not the usual end: that would wait for a thread which waits for a name server.
        os._exit(status)


def _narrow() -> None:
    """Give up what is not needed, and let nobody look into this process."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if os.geteuid() == 0:
        # All that it needs of root was done by who opened its sockets.
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    libc = ctypes.CDLL(None, use_errno=True)
    for option, value in ((_PR_SET_NO_NEW_PRIVS, 1), (_PR_SET_DUMPABLE, 0)):
        if libc.prctl(option, value, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), f"prctl {option}")
    # The terminal's are the owner's to answer; our end is the socket's.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What hostile bytes make OpenSSL's callbacks raise is answered by a refusal, not by a text.
    sys.unraisablehook = lambda _: None


async def _run(end: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, _context: None)
    gateway = Gateway(end)
    # Whoever floods an error text would fill a pipe that nobody reads: from here on there is none.
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(null, 2)
    os.close(null)
    gc.freeze()
    await gateway.run()


if __name__ == "__main__":
    main(sys.argv[1:])
