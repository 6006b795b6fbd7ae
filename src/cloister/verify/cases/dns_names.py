"""DNS: questions for names are answered by the gateway, and tell nobody anything."""

from __future__ import annotations

from cloister.verify.arena import Arena
from cloister.verify.case import case
from cloister.verify.cases.way_out import ALLOWED, NOWHERE, OTHER, require_denied, way_out

_LOOK_UP = """
def attempt(*names):
    found = {}
    for name in names:
        try:
            found[name] = socket.gethostbyname(name)
        except OSError as error:
            found[name] = type(error).__name__
        except UnicodeError:
            found[name] = "no name"
    return found
"""
_ASK = """
def asked(data, tcp=False, wait_s=1):
    kind = socket.SOCK_STREAM if tcp else socket.SOCK_DGRAM
    with socket.socket(socket.AF_INET, kind) as sock:
        sock.settimeout(wait_s)
        sock.connect(("198.18.0.1", 53))
        sock.send(data)
        try:
            return sock.recv(4096).hex()
        except (TimeoutError, ConnectionResetError):
            return ""
def question(name, kind):
    labels = b"".join(bytes((len(each),)) + each for each in name.encode().split(b"."))
    return bytes.fromhex("123401000001000000000000") + labels + b"\\0" + struct.pack("!HH", kind, 1)
"""


@case("DNS-01", "ask for a name that is not on the list", "critical")
async def unlisted(arena: Arena) -> None:
    names = (OTHER, "localhost.localdomain", f"x.{ALLOWED}", f"{ALLOWED}.evil.test")
    async with way_out(arena) as out:
        found = arena.expect_allowed(await arena.attempt(out.sandbox, _LOOK_UP, *names, ALLOWED))
        arena.expect(found.pop(ALLOWED) == "198.18.0.2", f"the allowed name is {found}")
        arena.expect_each(found, ("gaierror",), "name")
        require_denied(await out.denied(), f"{OTHER}:None", f"x.{ALLOWED}:None")
        await out.expect_reached(arena)


@case("DNS-02", "carry data out in labels and kinds of records", "high")
async def tunnel(arena: Arena) -> None:
    source = (
        _ASK
        + """
def attempt(name):
    secret = "ab" * 20
    kinds = {"TXT": 16, "NULL": 10, "ANY": 255, "MX": 15, "CNAME": 5, "AAAA": 28, "HTTPS": 65}
    below = {f"below {kind}": asked(question(f"{secret}.{name}", number))
             for kind, number in kinds.items()}
    return {**below, **{kind: asked(question(name, number)) for kind, number in kinds.items()}}
"""
    )
    async with way_out(arena) as out:
        found = arena.expect_allowed(await arena.attempt(out.sandbox, source, ALLOWED))
        for kind, answer in found.items():
            arena.expect(len(answer) >= 24, f"{kind} has no answer: {answer}")
            arena.expect(answer[12:16] == "0000", f"{kind} is answered with records: {answer}")
            code = answer[7]
            wanted = "3" if kind.startswith("below") else "0"
            arena.expect(code == wanted, f"{kind} has the code {code}, not {wanted}")
        await out.expect_reached(arena)


@case("DNS-03", "an allowed name has a private address", "critical")
async def rebinding(arena: Arena) -> None:
    source = """
def attempt(host, port):
    with socket.create_connection((host, int(port)), 5) as sock:
        sock.sendall(b"GET / HTTP/1.1\\r\\nHost: " + host.encode() + b"\\r\\n\\r\\n")
        if not sock.recv(1):
            raise ConnectionResetError(errno.ECONNRESET, "closed")
"""
    for address in ("127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "::ffff:127.0.0.1"):
        async with way_out(arena, private=False, address=address) as out:
            attempt = await arena.attempt(out.sandbox, source, ALLOWED, str(out.port))
            arena.expect_denied(attempt, *NOWHERE, what=f"a name at {address}")
            require_denied(await out.denied(), f"{ALLOWED}:{out.port}")
            out.expect_nothing_arrived(arena)
    async with way_out(arena) as out:
        await out.expect_reached(arena)


@case("DNS-05", "give an allowed name another address inside", "critical")
async def forged_hosts(arena: Arena) -> None:
    source = """
def attempt(name, port, forged):
    with socket.create_connection((forged, int(port)), 5) as sock:
        sock.sendall(f"GET / HTTP/1.1\\r\\nHost: {name}:{port}\\r\\n\\r\\n".encode())
        if not sock.recv(1):
            raise ConnectionResetError(errno.ECONNRESET, "closed")
"""
    async with way_out(arena) as out:
        for forged in ("10.0.0.1", "198.18.99.99", "93.184.216.34"):
            attempt = await arena.attempt(out.sandbox, source, ALLOWED, str(out.port), forged)
            arena.expect_denied(attempt, *NOWHERE, what=f"the forged address {forged}")
        out.expect_nothing_arrived(arena)
        await out.expect_reached(arena)


@case("DNS-06", "malformed questions, loops, floods", "high")
async def malformed(arena: Arena) -> None:
    source = (
        _ASK
        + """
def attempt(name):
    head = bytes.fromhex("123401000001000000000000")
    for data in (b"", b"x", head, head + b"\\xc0\\x0c\\0\\1\\0\\1", head + b"\\x3f" * 300,
                 head[:4] + b"\\xff" * 8, os.urandom(500), head + b"\\0\\0\\1\\0\\1" + b"x" * 4000):
        asked(data, wait_s=.1)
    asked(b"\\xff\\xff" + b"x" * 60000, tcp=True, wait_s=.1)
    asked(b"\\0\\0", tcp=True, wait_s=.1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect(("198.18.0.1", 53))
        for number in range(10000):
            sock.send(question(f"n{number}.flood.test", 1))
    for _ in range(100):
        answer = asked(question(name, 1))
        if answer:
            return answer
"""
    )
    async with way_out(arena) as out:
        answer = arena.expect_allowed(await arena.attempt(out.sandbox, source, ALLOWED))
        arena.expect(str(answer).endswith("c6120002"), f"after a flood the answer is {answer}")
        await out.expect_reached(arena)


@case("DNS-08", "ask a name server by other means", "medium")
async def encrypted(arena: Arena) -> None:
    source = """
def attempt():
    def reach(kind, place):
        with socket.socket(socket.AF_INET, kind) as sock:
            sock.settimeout(5)
            sock.connect(place)
            sock.send(b"x")
            sock.send(b"x")
            if not sock.recv(1):
                raise ConnectionResetError(errno.ECONNRESET, "closed")
    return {
        "over HTTPS": tried(reach, socket.SOCK_STREAM, ("8.8.8.8", 443)),
        "over TLS": tried(reach, socket.SOCK_STREAM, ("8.8.8.8", 853)),
        "over QUIC": tried(reach, socket.SOCK_DGRAM, ("8.8.8.8", 853)),
    }
"""
    async with way_out(arena) as out:
        found = arena.expect_allowed(await arena.attempt(out.sandbox, source))
        arena.expect_each(found, (*NOWHERE, "EPIPE"), "name server")
        require_denied(await out.denied(), "8.8.8.8:443", "8.8.8.8:853")
        await out.expect_reached(arena)


@case("DNS-09", "spoil the names of another sandbox", "high")
async def neighbour_names(arena: Arena) -> None:
    async with way_out(arena) as out, arena.sandbox(egress=[OTHER], ledger="off") as neighbour:
        names = tuple(f"n{number}.test" for number in range(50))
        await arena.attempt(neighbour, _LOOK_UP, *names, ALLOWED)
        found = arena.expect_allowed(await arena.attempt(neighbour, _LOOK_UP, OTHER, ALLOWED))
        arena.expect(found == {OTHER: "198.18.0.2", ALLOWED: "gaierror"}, f"found {found}")
        # The same address means another name next door.
        await out.expect_reached(arena)
