"""The name a TLS client asks for, as OpenSSL itself reads its first message."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable

from cloister.egress.refusal import Refusal


class _Greeting(ssl.SSLObject):
    """A handshake that is broken off as soon as the name is known."""

    has_asked = False
    asked: str | None = None


def _stop(greeting: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> int:
    if isinstance(greeting, _Greeting):
        greeting.has_asked = True
        greeting.asked = name
    return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # Nothing is encrypted with it: whatever a client offers is fine, the server decides.
    context.set_ciphers("ALL:eNULL:@SECLEVEL=0")
    context.sslobject_class = _Greeting
    context.sni_callback = _stop
    return context


_CONTEXT = _context()


async def asked_name(
    seen: bytes, more: Callable[[], Awaitable[bytes]], most_bytes: int
) -> str | None:
    """Return the server name of a ClientHello, None where it has none; `more` reads on.

    `seen` is what was read already; what `more` returns is the caller's to keep.
    """
    incoming = ssl.MemoryBIO()
    greeting = _CONTEXT.wrap_bio(incoming, ssl.MemoryBIO(), server_side=True)
    data, total = seen, 0
    while True:
        total += len(data)
        if total > most_bytes:
            raise Refusal(f"the TLS client's first message is longer than {most_bytes} bytes")
        incoming.write(data)
        try:
            greeting.do_handshake()
        except ssl.SSLWantReadError:
            data = await more()
            if not data:
                raise Refusal("the TLS client went away in its first message") from None
            continue
        except ssl.SSLError:
            if isinstance(greeting, _Greeting) and greeting.has_asked:
                return greeting.asked
            raise Refusal("its first message is not of TLS") from None
        raise Refusal("its first message is not of TLS")
