"""PXY: what is said to the gateway is taken at no word but the connection's own."""

from __future__ import annotations

from cloister.verify.arena import Arena
from cloister.verify.case import case
from cloister.verify.cases.deep_out import ASK_TLS, BOUND, OPEN, DeepOut, deep_out
from cloister.verify.cases.way_out import ALLOWED, ASK, OTHER, way_out

_REFUSED = ("400", "403", "421")


def _expect_refused(arena: Arena, answers: list[str], *also: str) -> None:
    for answer in answers:
        shown = answer[9:12] if answer.startswith("HTTP/1.1 ") else answer
        arena.expect(shown in (*_REFUSED, *also), f"answered {answer[:200]!r}")


@case("PXY-01", "TLS for another name on an allowed connection", "critical")
async def other_server_name(arena: Arena) -> None:
    async with deep_out(arena) as out:
        answers = await out.say(arena, out.request("/open/a"), asked=OTHER)
        _expect_refused(arena, answers, "ConnectionResetError", "SSLEOFError", "SSLError")
        await out.expect_reached(arena)


@case("PXY-02", "another Host within TLS (fronting)", "high")
async def fronting(arena: Arena) -> None:
    async with deep_out(arena) as out:
        answers = await out.say(arena, out.request("/open/a", host=OPEN))
        _expect_refused(arena, answers)
        await out.expect_reached(arena)


@case("PXY-03", "an absolute address that is not the Host's", "critical")
async def absolute(arena: Arena) -> None:
    async with deep_out(arena) as out:
        answers = await out.say(arena, out.request(f"https://{OPEN}:{out.port}/open/a"))
        _expect_refused(arena, answers)
        await out.expect_reached(arena)
    source = ASK + (
        "def attempt(port, target, host):\n"
        "    head = f'GET http://{target}:{port}/ HTTP/1.1\\r\\nHost: {host}:{port}\\r\\n\\r\\n'\n"
        "    return ask('', 0, head.encode(), ('127.0.0.1', 3128))"
    )
    async with way_out(arena) as plain:
        for target, host in ((ALLOWED, OTHER), (OTHER, ALLOWED)):
            attempt = await arena.attempt(plain.sandbox, source, str(plain.port), target, host)
            _expect_refused(arena, [arena.expect_allowed(attempt)])
        plain.expect_nothing_arrived(arena)
        await plain.expect_reached(arena)


@case("PXY-04", "plain HTTP to a host that is not allowed", "critical")
async def plain(arena: Arena) -> None:
    source = ASK + (
        "def attempt(port, host):\n"
        "    head = f'GET http://{host}:{port}/ HTTP/1.1\\r\\nHost: {host}:{port}\\r\\n\\r\\n'\n"
        "    return ask('', 0, head.encode(), ('127.0.0.1', 3128))"
    )
    async with way_out(arena) as out:
        attempt = await arena.attempt(out.sandbox, source, str(out.port), OTHER)
        _expect_refused(arena, [arena.expect_allowed(attempt)])
        out.expect_nothing_arrived(arena)
        await out.expect_reached(arena)


@case("PXY-05", "a second request on a connection, for another host or path", "critical")
async def second(arena: Arena) -> None:
    async with deep_out(arena) as out:
        first = out.request("/open/first").replace(b"Connection: close\r\n", b"")
        for after in (out.request("/open/b", host=OPEN), out.request("/shut/b")):
            (answer,) = await out.say(arena, first + after)
            arena.expect(answer.count("HTTP/1.1 200") == 1, f"answered {answer!r}")
            _expect_refused(arena, [answer[answer.rindex("HTTP/1.1 ") :]])
            arena.expect(len(out.arrived) == 1, f"arrived: {out.arrived}")
            arena.expect(b"/open/first" in out.arrived.pop(), "another one arrived")
        await out.expect_reached(arena)


@case("PXY-06", "requests that two readers read in two ways", "critical")
async def smuggling(arena: Arena) -> None:
    async with deep_out(arena) as out:
        host = f"Host: {BOUND}:{out.port}\r\n"
        hidden = f"GET /open/smuggled HTTP/1.1\r\n{host}\r\n"
        post = f"POST /open/a HTTP/1.1\r\n{host}"
        shapes = (
            f"{post}Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{hidden}",
            f"{post}Content-Length: 0\r\nContent-Length: {len(hidden)}\r\n\r\n{hidden}",
            f"{post}Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n{hidden}",
            f"{post}Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n{hidden}",
            f"{post}Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n{hidden}",
            f"{post}X-A: b\r\n folded\r\nContent-Length: 0\r\n\r\n",
            f"{post}X-A: b\nContent-Length: 0\r\n\r\n",
            f"{post}Host: {OPEN}\r\nContent-Length: 0\r\n\r\n",
        )
        _expect_refused(arena, await out.say(arena, *(shape.encode() for shape in shapes)))
        await out.expect_reached(arena)


@case("PXY-07", "headers for proxies, forged", "high")
async def forged(arena: Arena) -> None:
    names = ("Proxy-Authorization", "X-Forwarded-For", "X-Forwarded-Host", "Via", "Forwarded")
    async with deep_out(arena) as out:
        headers = [f"{name}: forged" for name in names]
        text = out.request("/open/a", *headers, "X-Hop: forged", "X-Own: kept")
        text = text.replace(b"Connection: close", b"Connection: close, X-Hop")
        (answer,) = await out.say(arena, text)
        arena.expect(" 200 " in answer[:13], f"answered {answer!r}")
        arena.expect(b"forged" not in out.arrived[0], f"arrived: {out.arrived[0]!r}")
        arena.expect(b"x-own: kept" in out.arrived[0].lower(), "its own header did not arrive")


@case("PXY-08", "the proxy of another sandbox", "critical")
async def other_sandbox(arena: Arena) -> None:
    source = ASK + (
        "def attempt(port, name):\n"
        "    words = f'CONNECT {name}:{port} HTTP/1.1\\r\\nHost: {name}:{port}\\r\\n'\n"
        "    words += 'Proxy-Authorization: Basic c2I6c2I=\\r\\n\\r\\n'\n"
        "    return ask('', 0, words.encode(), ('127.0.0.1', 3128))[9:12]"
    )
    async with way_out(arena) as out, arena.sandbox(egress=[], ledger="off") as other:
        attempt = await arena.attempt(other, source, str(out.port), ALLOWED)
        arena.expect(arena.expect_allowed(attempt) == "403", f"answered {attempt}")
        out.expect_nothing_arrived(arena)
        await out.expect_reached(arena)


@case("PXY-09", "many idle connections, and slow ones", "high")
async def idle(arena: Arena) -> None:
    hold = """
import ssl, time
def attempt(host, port):
    held = []
    for number in range(300):
        sock = socket.create_connection((host, int(port)), 10)
        sock.sendall(b"\\x16\\x03"[: number % 3])
        held.append(sock)
    print("held", flush=True)
    time.sleep(25)
"""
    async with deep_out(arena) as out:
        from cloister.verify.probes import assemble

        command = ["/usr/bin/python3", "-I", "-c", assemble(hold), BOUND, str(out.port)]
        holding = await out.sandbox.start(command)
        async for part in holding.stdout:
            arena.expect(b"held" in part, f"it could not hold: {part!r}")
            break
        async with arena.sandbox(
            egress=out.sandbox.policy.egress, secrets=out.sandbox.policy.secrets, ledger="off"
        ) as other:
            twin = DeepOut(other, out.port, out.value, out.arrived)
            await twin.expect_reached(arena)
        holding.kill()
        await holding.wait()


# The words are made inside: they are longer than an argument may be.
_ENDLESS = (
    ASK_TLS.rpartition("def attempt")[0]
    + """
def attempt(host, port):
    line = f"GET /open/a HTTP/1.1\\r\\nHost: {host}:{port}\\r\\n"
    long = line + "X-Long: " + "a" * 300_000 + "\\r\\n\\r\\n"
    many = line + "".join(f"X-{n}: {'a' * 50}\\r\\n" for n in range(5000)) + "\\r\\n"
    return [speak(host, port, text.encode()) for text in (long, many)]
"""
)


@case("PXY-10", "endless headers and large answers", "high")
async def endless(arena: Arena) -> None:
    async with deep_out(arena) as out:
        attempt = await arena.attempt(out.sandbox, _ENDLESS, BOUND, str(out.port))
        answers = arena.expect_allowed(attempt)
        _expect_refused(arena, answers, "ConnectionResetError", "BrokenPipeError", "SSLEOFError")
        await out.expect_reached(arena)


@case("PXY-11", "the proxy asked for itself", "high")
async def itself(arena: Arena) -> None:
    source = ASK + (
        "def attempt(*places):\n"
        "    found = {}\n"
        "    for place in places:\n"
        "        words = f'CONNECT {place} HTTP/1.1\\r\\nHost: {place}\\r\\n\\r\\n'\n"
        "        found[place] = ask('', 0, words.encode(), ('127.0.0.1', 3128))[9:12]\n"
        "    return found"
    )
    places = ("127.0.0.1:3128", "localhost:3128", "127.0.0.1:1080", "198.18.0.1:53", "0.0.0.0:3128")
    async with way_out(arena) as out:
        attempt = await arena.attempt(out.sandbox, source, *places)
        arena.expect_each(arena.expect_allowed(attempt), ("400", "403"), "place")
        await out.expect_reached(arena)


@case("PXY-12", "a server whose certificate does not hold", "critical")
async def certificate(arena: Arena) -> None:
    async with deep_out(arena, trusted=False) as out:
        (answer,) = await out.say(arena, out.request("/open/a"))
        arena.expect("502" in answer[:13], f"answered {answer!r}")
        arena.expect(not out.arrived, f"arrived: {out.arrived}")
    async with deep_out(arena) as out:
        await out.expect_reached(arena)


@case("PXY-13", "the key of the authority that is trusted inside", "critical")
async def key(arena: Arena) -> None:
    search = (
        "grep -rIl -e 'PRIVATE KEY' /run /etc /tmp /home /workspace /var /root 2>/dev/null; "
        "env | grep 'PRIVATE KEY'; true"
    )
    async with deep_out(arena) as out:
        found = await out.sandbox.run(search)
        arena.expect(found.stdout == "", f"inside is a key: {found.stdout}")
        bundle = (await out.sandbox.run("cat $SSL_CERT_FILE")).stdout
        from cryptography import x509

        # The others are the host's.
        last = bundle[bundle.rindex("-----BEGIN CERTIFICATE-----") :]
        own = x509.load_pem_x509_certificate(last.encode())
        limits = own.extensions.get_extension_for_class(x509.NameConstraints).value
        names = [each.value for each in limits.permitted_subtrees or ()]
        arena.expect(sorted(names) == [BOUND, OPEN], f"it may sign for {names}")
        await out.expect_reached(arena)


@case("PXY-14", "WebSockets to what is allowed and what is not", "medium")
async def websocket(arena: Arena) -> None:
    headers = ("Upgrade: websocket", "Sec-WebSocket-Key: eA==", "Sec-WebSocket-Version: 13")
    async with deep_out(arena) as out:
        texts = [
            out.request(path, *headers).replace(b"Connection: close", b"Connection: Upgrade")
            for path in ("/shut/ws", "/open/ws")
        ]
        shut = texts[0].replace(b"Connection: Upgrade", b"Connection: Upgrade, close")
        _expect_refused(arena, await out.say(arena, shut))
        arena.expect(not out.arrived, f"arrived: {out.arrived}")
        (answer,) = await out.say(arena, texts[1])
        arena.expect("101" in answer[:13], f"answered {answer!r}")
        arena.expect(answer.endswith("switched"), f"answered {answer!r}")


# HTTP/2 by hand: fields are sent as literals, which every reader knows.
_BY_HAND = """
import ssl
def field(name, value):
    return b"\\x10" + bytes((len(name),)) + name + bytes((len(value),)) + value
def frame(kind, flags, stream, data):
    return len(data).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + data
def attempt(host, port, *games):
    context = ssl.create_default_context()
    context.set_alpn_protocols(["h2"])
    found = {}
    for game in games:
        fields = b"".join(
            field(*(part.encode() for part in pair.split("=", 1))) for pair in game.split("|")
        )
        words = b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n" + frame(4, 0, 0, b"")
        words += frame(1, 5, 1, fields)
        try:
            with socket.create_connection((host, int(port)), 10) as raw:
                with context.wrap_socket(raw, server_hostname=host) as sock:
                    sock.sendall(words)
                    sock.settimeout(3)
                    data, seen = b"", ""
                    while not seen and (part := sock.recv(65536)):
                        data += part
                        while len(data) >= 9 and len(data) >= 9 + int.from_bytes(data[:3], "big"):
                            size, kind = int.from_bytes(data[:3], "big"), data[3]
                            head, data = data[9:9 + size], data[9 + size:]
                            if kind == 1:
                                seen = "200" if head[:1] == b"\\x88" else "refused"
                            elif kind in (3, 7):
                                seen = "refused"
                    found[game] = seen or "refused"
        except OSError as error:
            found[game] = "refused"
    return found
"""


@case("PXY-15", "games with the headers of HTTP/2", "high")
async def http2(arena: Arena) -> None:
    async with deep_out(arena) as out:
        place = f"{BOUND}:{out.port}"
        plain = f":method=GET|:scheme=https|:authority={place}|:path=/open/a"
        games = (
            f"{plain}|:path=/open/b",
            plain.replace(place, OPEN),
            f"{plain}|host={OPEN}",
            plain.replace("GET", "CONNECT"),
            f"{plain.replace('GET', 'CONNECT')}|:protocol=websocket",
            plain.replace("https", "http"),
            f"{plain}|transfer-encoding=chunked",
            f"{plain}|connection=x",
            f"x-first=1|{plain}",
            f"{plain}|X-Upper=1",
            plain.replace("/open/a", f"https://{OPEN}/open/a"),
        )
        port = str(out.port)
        attempt = await arena.attempt(out.sandbox, _BY_HAND, BOUND, port, *games)
        arena.expect_each(arena.expect_allowed(attempt), ("refused",), "game")
        arena.expect(not out.arrived, f"arrived: {out.arrived}")
        twin = await arena.attempt(out.sandbox, _BY_HAND, BOUND, port, plain)
        arena.expect(arena.expect_allowed(twin) == {plain: "200"}, f"the plain one: {twin}")
        arena.expect(len(out.arrived) == 1, f"arrived: {out.arrived}")
