"""NET: the way out leads to what the policy names, and every other way nowhere."""

from __future__ import annotations

import os
import signal

from cloister.node import Node
from cloister.verify.arena import Arena
from cloister.verify.case import case
from cloister.verify.cases.deep_out import deep_out
from cloister.verify.cases.way_out import (
    ALLOWED,
    ASK,
    NOWHERE,
    OTHER,
    another_gateway,
    require_denied,
    way_out,
)

_CONNECT = """
def attempt(*places):
    found = {}
    for place in places:
        host, _, port = place.rpartition(":")
        def reach():
            with socket.create_connection((host, int(port)), 5) as sock:
                sock.sendall(b"x")
                if not sock.recv(1):
                    raise ConnectionResetError(errno.ECONNRESET, "closed")
        found[place] = tried(reach)
    return found
"""


@case("NET-01", "with no egress, reach anything by any protocol", "critical")
async def off(arena: Arena) -> None:
    port = arena.far_end.tcp_port
    places = (f"10.0.0.1:{port}", "198.18.0.1:53", "::ffff:10.0.0.1:80", "2606:2800:220:1::1:443")
    own = (f"127.0.0.1:{port}", "127.0.0.1:3128", "127.0.0.1:1080")
    async with arena.sandbox() as sandbox:
        found = arena.expect_allowed(await arena.attempt(sandbox, _CONNECT, *places))
        nowhere = ("ENETUNREACH", *(("EHOSTUNREACH",) if arena.not_linux else ()))
        arena.expect_each(found, nowhere, "connection")
        found = arena.expect_allowed(await arena.attempt(sandbox, _CONNECT, *own))
        arena.expect_each(found, ("ECONNREFUSED",), "connection to the loopback")
    async with arena.far_end.expecting("tcp"):
        await arena.attempt_on_host(_CONNECT, f"127.0.0.1:{port}")


@case("NET-02", "connect straight to the address of an allowed name", "critical")
async def straight(arena: Arena) -> None:
    async with way_out(arena) as out:
        place = f"10.0.0.1:{out.port}"
        found = arena.expect_allowed(await arena.attempt(out.sandbox, _CONNECT, place))
        arena.expect_each(found, NOWHERE, "connection")
        require_denied(await out.denied(), place)
        out.expect_nothing_arrived(arena)
        await out.expect_reached(arena)


@case("NET-03", "use a client that knows of no proxy", "critical")
async def own_client(arena: Arena) -> None:
    async with way_out(arena) as out:
        places = (f"{OTHER}:{out.port}", f"93.184.216.34:{out.port}")
        result = await arena.attempt(out.sandbox, _CONNECT, places[1])
        arena.expect_each(arena.expect_allowed(result), NOWHERE, "connection")
        lookup = "def attempt(name):\n    return socket.gethostbyname(name)"
        asked = await arena.python(out.sandbox, lookup + f"\nimport socket\nattempt({OTHER!r})")
        arena.expect("gaierror" in asked.stderr, f"a name off the list was found: {asked.stdout}")
        require_denied(await out.denied(), places[1], f"{OTHER}:None")
        out.expect_nothing_arrived(arena)
        await out.expect_reached(arena)


@case("NET-04", "IPv6 in all its spellings", "critical")
async def ipv6(arena: Arena) -> None:
    hosts = (
        *("2606:2800:220:1::1", "fd00::1", "fe80::1", "::ffff:10.0.0.1", "64:ff9b::a00:1"),
        *("2002:a00:1::1", "2001:0:1::1", "fd00:ec2::254"),
    )
    async with way_out(arena) as out:
        places = [f"{host}:{out.port}" for host in hosts]
        found = arena.expect_allowed(await arena.attempt(out.sandbox, _CONNECT, *places))
        arena.expect_each(found, (*NOWHERE, "EINVAL", "EADDRNOTAVAIL"), "connection")
        out.expect_nothing_arrived(arena)
        await out.expect_reached(arena)


@case("NET-05", "UDP to anywhere, QUIC, questions to other name servers", "critical")
async def datagrams(arena: Arena) -> None:
    source = """
def attempt(*places):
    found = {}
    for place in places:
        host, _, port = place.rpartition(":")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.settimeout(2)
            def send():
                sock.sendto(b"x" * 100, (host, int(port)))
                sock.sendto(b"x" * 100, (host, int(port)))
            found[place] = tried(send)
    return found
"""
    port = arena.far_end.udp_port
    places = ("8.8.8.8:443", "10.0.0.1:123", f"10.0.0.1:{port}", "255.255.255.255:9")
    async with way_out(arena) as out:
        found = arena.expect_allowed(await arena.attempt(out.sandbox, source, *places))
        # gVisor takes them and drops them: the far end's word counts, and what is recorded.
        arena.expect_each(found, (*NOWHERE, *(("ok",) if arena.not_linux else ())), "datagram")
        require_denied(await out.denied(), *places[:3])
        lookup = f"""
def attempt():
    question = bytes.fromhex("123401000001000000000000") + b"\\x07allowed\\x04test\\0\\0\\1\\0\\1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(5)
        sock.sendto(question, ("8.8.8.8", 53))
        return sock.recv(600).hex(), {ALLOWED!r}
"""
        answer = arena.expect_allowed(await arena.attempt(out.sandbox, lookup))
        arena.expect(answer[0].endswith("c6120002"), f"not answered by the gateway: {answer}")
        await out.expect_reached(arena)


@case("NET-06", "ICMP with something in it", "high")
async def icmp(arena: Arena) -> None:
    source = """
def attempt():
    def send(kind):
        with socket.socket(socket.AF_INET, kind, socket.IPPROTO_ICMP) as sock:
            sock.sendto(b"\\x08\\0\\0\\0\\0\\0\\0\\0payload", ("8.8.8.8", 0))
    return {"echo": tried(send, socket.SOCK_DGRAM), "raw": tried(send, socket.SOCK_RAW)}
"""
    async with way_out(arena) as out:
        found = arena.expect_allowed(await arena.attempt(out.sandbox, source))
        arena.expect_each(found, ("EPERM", "EACCES", "EPROTONOSUPPORT"), "ICMP")
        await out.expect_reached(arena)


@case("NET-07", "forge where packets come from, and answer for others", "critical")
async def forged_source(arena: Arena) -> None:
    source = """
def attempt(port, *forged):
    def packet(kind):
        with socket.socket(socket.AF_PACKET, kind, socket.htons(0x0806)) as sock:
            sock.bind(("lo", 0))
            answer = b"\\0\\1\\x08\\0\\x06\\x04\\0\\2" + b"\\0" * 20
            sock.send(b"\\xff" * 12 + b"\\x08\\x06" + answer)
    def header():
        with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as sock:
            sock.sendto(b"\\x45" + b"\\0" * 39, ("198.18.0.2", 0))
    def transparent():
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_IP, 19, 1)
    found = {"a frame of its own": tried(packet, socket.SOCK_RAW),
             "an answer to who has": tried(packet, socket.SOCK_DGRAM),
             "a header of its own": tried(header), "any address at all": tried(transparent)}
    said = {}
    words = f"GET /forged HTTP/1.1\\r\\nHost: allowed.test:{port}\\r\\n\\r\\n".encode()
    for address in forged:
        try:
            # What has no way back is dropped without a word.
            wait_s = 10 if address.startswith("127.") else 0.5
            with socket.create_connection(("198.18.0.2", int(port)), wait_s, (address, 0)) as sock:
                sock.sendall(words)
                said[address] = sock.recv(12).decode()
        except OSError as error:
            said[address] = errno.errorcode.get(error.errno, type(error).__name__)
    return found, [name for _, name in socket.if_nameindex()], said
"""
    forged = ("10.0.0.1", "198.18.0.1")
    own = "127.0.0.5"
    for profile, user in (("default", None), ("root", "root")):
        async with way_out(arena, profile=profile) as out:
            # Its address is given to the name by asking for it.
            await out.expect_reached(arena)
            attempt = await arena.attempt(
                out.sandbox, source, str(out.port), own, *forged, user=user
            )
            found, interfaces, said = arena.expect_allowed(attempt)
            if arena.not_linux:
                # Taken without a word, and without any effect: every address is its own there.
                found.pop("any address at all")
            arena.expect_each(found, ("EPERM", "EACCES", "EAFNOSUPPORT"), "forged packet")
            arena.expect(interfaces == ["lo"], f"there is more than a loopback: {interfaces}")
            # Whatever it says of itself, who is reached sees the gateway's address.
            arena.expect(out.peers == {"127.0.0.1"}, f"connections came from {out.peers}")
            arena.expect(said.pop(own).startswith("HTTP/1.1 200"), f"its own is {said}")
            reached = [text for text in said.values() if text.startswith("HTTP/1.1 200")]
            arena.expect(len(reached) == len(out.arrived) - 1, f"{said}, arrived {out.arrived}")
            out.arrived.clear()
            await out.expect_reached(arena)


@case("NET-08", "reach the host's own listeners", "critical")
async def host_listeners(arena: Arena) -> None:
    port = arena.far_end.tcp_port
    hosts = ("127.0.0.1", "127.0.0.2", "localhost", "10.0.0.1", "198.18.0.1")
    async with way_out(arena) as out:
        places = [f"{host}:{port}" for host in hosts]
        found = arena.expect_allowed(await arena.attempt(out.sandbox, _CONNECT, *places))
        arena.expect_each(found, NOWHERE, "connection to the host")
        await out.expect_reached(arena)
    async with arena.far_end.expecting("tcp"):
        await arena.attempt_on_host(_CONNECT, f"127.0.0.1:{port}")


@case("NET-09", "reach another sandbox", "critical")
async def neighbours(arena: Arena) -> None:
    listener = "import socket\ns = socket.create_server(('', 7777)); print('up', flush=True)\n"
    async with way_out(arena) as out, arena.sandbox() as other:
        process = await other.start(["/usr/bin/python3", "-c", listener + "s.accept()"])
        async for _ in process.stdout:
            break
        places = ("127.0.0.1:7777", "10.0.0.1:7777", "198.18.0.2:7777", "224.0.0.1:7777")
        found = arena.expect_allowed(await arena.attempt(out.sandbox, _CONNECT, *places))
        if arena.not_linux:
            # Nobody refuses there what is meant for a group: it is not answered.
            arena.expect(found.pop(places[-1]) != "ok", "a group of receivers was reached")
        arena.expect_each(found, NOWHERE, "connection to a neighbour")
        reader, writer = await other.dial(7777)
        writer.close()
        del reader
        await out.expect_reached(arena)


@case("NET-10", "reach where clouds give out keys", "critical")
async def metadata(arena: Arena) -> None:
    places = ("169.254.169.254:80", "100.100.100.200:80", "fd00:ec2::254:80")
    async with way_out(arena) as out:
        found = arena.expect_allowed(await arena.attempt(out.sandbox, _CONNECT, *places))
        arena.expect_each(found, (*NOWHERE,), "connection")
        await out.expect_reached(arena)
    # Even a name whose addresses may be private.
    async with way_out(arena, address="169.254.169.254") as out:
        place = f"{ALLOWED}:{out.port}"
        found = arena.expect_allowed(await arena.attempt(out.sandbox, _CONNECT, place))
        arena.expect_each(found, NOWHERE, "connection")
        require_denied(await out.denied(), place)


@case("NET-11", "change routes, addresses or rules as root inside", "critical")
async def administer(arena: Arena) -> None:
    source = """
def attempt():
    def route(kind, flags, body):
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as sock:
            sock.send(struct.pack("=IHHII", 16 + len(body), kind, 5 | flags, 1, 0) + body)
            number = -struct.unpack_from("=i", sock.recv(4096), 16)[0]
            if number:
                raise OSError(number, "refused")
    delete = struct.pack("=BBBBBBBBI", 2, 0, 0, 0, 255, 0, 0, 0, 0)
    down = struct.pack("=BBHiII", 0, 0, 0, 1, 0, 1)
    with socket.socket() as sock:
        mark = tried(sock.setsockopt, socket.SOL_SOCKET, 36, 1)
    found = {"delete a route": tried(route, 25, 0, delete), "a mark": mark}
    return {**found, "interface down": tried(route, 16, 0, down)}
"""
    async with way_out(arena, profile="root") as out:
        found = arena.expect_allowed(await arena.attempt(out.sandbox, source, user="root"))
        if arena.not_linux:
            # Taken without a word, and without any effect.
            found.pop("a mark")
        arena.expect_each(found, ("EPERM", "EACCES", "EAFNOSUPPORT"), "change")
        await out.expect_reached(arena)


@case("NET-12", "ask for other ports of an allowed name", "high")
async def ports(arena: Arena) -> None:
    source = (
        ASK
        + """
def attempt(name, *ports):
    found = {}
    for port in ports:
        words = f"CONNECT {name}:{port} HTTP/1.1\\r\\nHost: {name}\\r\\n\\r\\n".encode()
        found[port] = ask(name, port, words, ("127.0.0.1", 3128))[9:12]
    return found
"""
    )
    wanted = ("22", "25", "6379", "2375")
    async with way_out(arena) as out:
        found = arena.expect_allowed(await arena.attempt(out.sandbox, source, ALLOWED, *wanted))
        arena.expect_each(found, ("403",), "port")
        require_denied(await out.denied(), *(f"{ALLOWED}:{port}" for port in wanted))
        await out.expect_reached(arena)


@case("NET-13", "the gateway is killed, or hangs", "critical")
async def dead_gateway(arena: Arena) -> None:
    gateway = Node.current().gateway
    async with way_out(arena) as out:
        await out.expect_reached(arena)
        pid = gateway.pid
        arena.expect(pid is not None, "there is no gateway")
        hung = _CONNECT.replace("5) as sock", "1) as sock")
        os.kill(pid or 0, signal.SIGSTOP)
        place = f"198.18.0.2:{out.port}"
        attempt = await arena.attempt(out.sandbox, hung, place)
        arena.expect("ok" not in (attempt.value or {}).values(), f"went through: {attempt}")
        out.expect_nothing_arrived(arena)
        os.kill(pid or 0, signal.SIGKILL)
        await another_gateway(pid)
        out.arrived.clear()
        await out.expect_reached(arena)


@case("NET-15", "listen inside, and be reached from elsewhere", "high")
async def listening(arena: Arena) -> None:
    listener = "import socket\ns = socket.create_server(('', 7778)); print('up', flush=True)\n"
    async with way_out(arena) as out:
        process = await out.sandbox.start(["/usr/bin/python3", "-c", listener + "s.accept()"])
        async for _ in process.stdout:
            break
        attempt = await arena.attempt_on_host(_CONNECT, "127.0.0.1:7778", "198.18.0.2:7778")
        found = arena.expect_allowed(attempt)
        arena.expect("ok" not in found.values(), f"reached from the host: {found}")
        _, writer = await out.sandbox.dial(7778)
        writer.close()


@case("NET-16", "send what is neither TCP nor UDP", "high")
async def other_protocols(arena: Arena) -> None:
    source = """
def attempt():
    def send(family, kind, protocol):
        with socket.socket(family, kind, protocol) as sock:
            sock.settimeout(3)
            sock.sendto(b"x" * 64, ("10.0.0.1", 0))
    kinds = {"gre": 47, "ipip": 4, "esp": 50, "raw": 255}
    found = {name: tried(send, 2, socket.SOCK_RAW, number) for name, number in kinds.items()}
    found["sctp"] = tried(send, 2, socket.SOCK_STREAM, 132)
    found["udplite"] = tried(send, 2, socket.SOCK_DGRAM, 136)
    found["packet"] = tried(lambda: socket.socket(17, socket.SOCK_RAW, 0).close())
    found["vsock"] = tried(lambda: socket.socket(40, socket.SOCK_STREAM, 0).close())
    return found
"""
    refused = ("EPERM", "EACCES", "EPROTONOSUPPORT", "EAFNOSUPPORT", "ESOCKTNOSUPPORT")
    async with way_out(arena) as out:
        found = arena.expect_allowed(await arena.attempt(out.sandbox, source))
        arena.expect_each(found, refused, "protocol")
        await out.expect_reached(arena)


@case("NET-14", "an allowed host, asked for what its rule does not allow", "high")
async def beyond_the_rule(arena: Arena) -> None:
    own = "Authorization: Bearer an-account-of-somebody-else"
    async with deep_out(arena) as out:
        beyond = [
            out.request("/open/a", own, method="PUT"),
            out.request("/open/a", own, method="DELETE"),
            out.request("/upload", own, method="POST"),
            out.request("/open/../upload", own),
            out.request("/open/%2e%2e/upload", own),
            out.request("/open/a", "X-HTTP-Method-Override: PUT", own, method="POST"),
        ]
        for answer in await out.say(arena, *beyond):
            refused = answer.startswith(("HTTP/1.1 403", "HTTP/1.1 400"))
            arena.expect(refused, f"answered {answer[:200]!r}")
        denied = (await out.sandbox.traffic()).denied
        asked = sum(each.count for each in denied if each.kind == "request")
        arena.expect(asked == len(beyond), f"of {len(beyond)} refusals {asked} are recorded")
        await out.expect_reached(arena)
