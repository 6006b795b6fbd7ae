"""DOM: one spelling of each name decides and is dialled; what is not that name is denied."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

from cloister.errors import RequestError
from cloister.node import Node
from cloister.policy import Connect, Destination, Effect, Egress, Policy, judge, parse_policy
from cloister.policy.judge import Grant, Rule
from cloister.verify.arena import Arena
from cloister.verify.case import case
from cloister.verify.cases.way_out import ALLOWED, ASK, OTHER, WayOut, another_gateway, way_out

# More than a case may take as a whole: what bounds them is that.
_FLOWING_S = 120.0
_FLOWS_S = 60.0

# What both proxies say to a name, given as it is; "open" is where they connected.
_SPELT = (
    ASK
    + """
def through_http(name, port):
    words = b"CONNECT " + name + b":" + port + b" HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n"
    with socket.create_connection(("127.0.0.1", 3128), 10) as sock:
        sock.sendall(words)
        return "open" if b" 200 " in (answer := sock.recv(100))[:13] else answer[9:12].decode()
def through_socks(name, port):
    with socket.create_connection(("127.0.0.1", 1080), 10) as sock:
        sock.sendall(b"\\x05\\x01\\0")
        sock.recv(2)
        place = bytes((len(name),)) + name + int(port).to_bytes(2, "big")
        sock.sendall(b"\\x05\\x01\\0\\x03" + place)
        code = sock.recv(10)[1]
        return "open" if code == 0 else str(code)
def attempt(port, *names):
    found = {}
    for name in names:
        spelt = bytes.fromhex(name)
        found[f"{spelt!r} by HTTP"] = through_http(spelt, port.encode())
        if len(spelt) < 256:
            found[f"{spelt!r} by SOCKS"] = through_socks(spelt, port)
    return found
"""
)


async def _say(arena: Arena, out: WayOut, *names: str | bytes) -> dict[str, str]:
    spelt = [(name.encode() if isinstance(name, str) else name).hex() for name in names]
    attempt = await arena.attempt(out.sandbox, _SPELT, str(out.port), *spelt)
    found: dict[str, str] = arena.expect_allowed(attempt)
    return found


async def _expect_denied(arena: Arena, *names: str | bytes, **settings: Any) -> None:
    async with way_out(arena, **settings) as out:
        found = await _say(arena, out, *names)
        arena.expect_each(found, ("400", "403", "2", "8"), "name")
        out.expect_nothing_arrived(arena)
        twin = await _say(arena, out, ALLOWED)
        arena.expect(set(twin.values()) == {"open"}, f"the allowed name is answered {twin}")
        await out.expect_reached(arena)


@case("DOM-01", "an empty, missing or null list of hosts", "critical")
async def empty(arena: Arena) -> None:
    none = Policy()
    nothing = parse_policy("[egress]\nallow = []\n")
    for policy in (none, nothing):
        verdict = judge(Connect(ALLOWED, 443), policy, (), 0.0)
        arena.expect(verdict.effect is Effect.DENY, f"{policy.egress} allows")
    for text in ("[egress]\n", "[egress]\nallow = false\n", '[egress]\nallow = ""\n'):
        try:
            policy = parse_policy(text)
        except RequestError:
            continue
        arena.expect(not judge_allows(policy), f"{text!r} allows")
    arena.expect(judge_allows(parse_policy(f'[egress]\nallow = ["{ALLOWED}"]\n')), "nothing allows")
    probe = "def attempt(name):\n    return socket.gethostbyname(name)"
    async with arena.sandbox(egress=[], ledger="off") as sandbox:
        result = await arena.python(sandbox, f"import socket\n{probe}\nattempt({ALLOWED!r})")
        arena.expect("gaierror" in result.stderr, f"an empty list answers: {result.stdout}")
    await Node.current().gateway.rest()


def judge_allows(policy: Policy) -> bool:
    """Whether the name of these cases may be reached."""
    return judge(Connect(ALLOWED, 443), policy, (), 0.0).effect is Effect.ALLOW


@case("DOM-02", "names that look like an allowed one", "critical")
async def look_alikes(arena: Arena) -> None:
    names = (f"evil-{ALLOWED}", f"{ALLOWED}.evil.test", "allowedxtest", f"not{ALLOWED}", OTHER)
    await _expect_denied(arena, *names, f"www.{ALLOWED}", "test", "allowed")


@case("DOM-03", "other spellings of an authority", "critical")
async def spellings(arena: Arena) -> None:
    odd = (f" {ALLOWED}", f"{ALLOWED} ", f"user@{ALLOWED}", f"{ALLOWED}#x", f"{ALLOWED}?x")
    more = (f"{ALLOWED}\\", f"{ALLOWED}/", f"{ALLOWED}:443", f"{OTHER}@{ALLOWED}")
    await _expect_denied(arena, *odd, *more)
    # Case and a final dot are the same name, which is the one that is dialled.
    async with way_out(arena) as out:
        same = await _say(arena, out, ALLOWED.upper(), f"{ALLOWED}.")
        arena.expect(set(same.values()) == {"open"}, f"the same name is answered {same}")


@case("DOM-04", "control characters and endless names", "critical")
async def control_characters(arena: Arena) -> None:
    names = (f"{ALLOWED}\0.{OTHER}", f"{OTHER}\0.{ALLOWED}", f"{ALLOWED}\r\nX: y", f"{ALLOWED}\n")
    await _expect_denied(arena, *names, f"{ALLOWED}%00", "a" * 255, f"{'a.' * 126}test")


@case("DOM-05", "names that are not ASCII, or look as if they were", "high")
async def not_ascii(arena: Arena) -> None:
    names = ("\u0430llowed.test", "allowed\uff0etest", "allowed\u3002test", "ALLOWED\u212a.test")
    await _expect_denied(arena, *names, "xn--llowed-4ve.test", b"allowed\xad.test", b"\xff.test")


@case("DOM-06", "addresses in every spelling", "critical")
async def literals(arena: Arena) -> None:
    names = ("127.0.0.1", "2130706433", "0x7f000001", "0177.0.0.1", "127.1", "0", "[::1]", "::1")
    await _expect_denied(arena, *names, "[::ffff:127.0.0.1]", "fe80::1%lo", "127.0.0.1.", "1.2.3.4")


@case("DOM-07", "wildcards that mean the world", "medium")
async def wildcards(arena: Arena) -> None:
    for text in ("*", "*.com", "*.", "*.*", "a.*.test", "a*.example.test", "**.example.test"):
        try:
            made = Egress([text])
        except RequestError:
            continue
        arena.expect(False, f"{text} was taken as {made}")
    deep = Policy(egress=Egress(["*.zone.test"]))
    for name, allowed in (("a.zone.test", True), ("zone.test", False), ("b.a.zone.test", False)):
        found = judge(Connect(name, 443), deep, (), 0.0).effect is Effect.ALLOW
        arena.expect(found is allowed, f"{name} under *.zone.test is {found}")


@case("DOM-08", "a name that is both allowed and denied", "high")
async def both(arena: Arena) -> None:
    policy = Policy(egress=Egress([ALLOWED, ALLOWED]))
    rules = [
        Grant(Rule("no", Effect.DENY, Destination(ALLOWED)), 10.0, "a", "b"),
        Grant(Rule("yes", Effect.ALLOW, Destination(ALLOWED)), 10.0, "a", "b"),
    ]
    for grants in (rules, rules[::-1]):
        verdict = judge(Connect(ALLOWED, 443), policy, grants, 0.0)
        arena.expect(verdict.effect is Effect.DENY, f"{grants} is {verdict}")
    arena.expect(judge_allows(policy), "without the deny it is not allowed")
    deny: dict[str, Any] = {"name": "never", "host": ALLOWED, "effect": "deny"}
    for tables in ([deny], [{**deny, "name": "first", "methods": ["PUT"]}, deny]):
        ruled = Policy(egress=Egress([ALLOWED], rules=tables))
        arena.expect(not judge_allows(ruled), f"{tables} does not deny what allow has")
    try:
        Egress(rules=[{**deny, "name": "all", "effect": "allow"}, deny])
    except RequestError:
        return
    arena.expect(False, "a deny that is never reached was taken")


@case("DOM-10", "rules that are not rules", "high")
async def not_rules(arena: Arena) -> None:
    for text in (
        *('allow = ["https://a.test"]', 'allow = ["a.test/path"]', 'allow = ["a.test "]'),
        *('allow = ["a.test:x"]', 'allow = ["a.test:0"]', 'allow = ["a..test"]', "allow = [1]"),
        *('rule = [{ name = "a", host = "a.test" }]', 'rule = [{ host = "a", effect = "ask" }]'),
        *('rule = [{ name = "a", host = "a/b", effect = "ask" }]', "rule = 1"),
        *('alow = ["a.test"]', 'allow = ["a.test"]\nextra = 1', 'allow = ["a.test:70000"]'),
    ):
        try:
            made = parse_policy(f"[egress]\n{text}\n")
        except RequestError:
            continue
        arena.expect(False, f"{text} was taken as {made.egress}")
    parse_policy('[egress]\nallow = ["a.test", "a.test:22"]\n')


@case("DOM-11", "labels at the edges", "medium")
async def labels(arena: Arena) -> None:
    names = (f"{ALLOWED}..", f"{ALLOWED}...", f".{ALLOWED}", "allowed..test", f"{'a' * 64}.test")
    await _expect_denied(arena, *names, f"*.{ALLOWED}", "*", f"_.{ALLOWED}", "allowed._test")


@case("DOM-09", "change what else there is to change, while traffic flows", "critical")
async def changed_meanwhile(arena: Arena) -> None:
    # Both by turns until told to stop: the forbidden name by every way in, and the allowed one.
    source = (
        _SPELT
        + """
import time
def attempt(port, allowed, other):
    found, reached = {}, 0
    def forbidden():
        words = f"GET /forbidden HTTP/1.1\\r\\nHost: {other}:{port}\\r\\n\\r\\n".encode()
        for way in (lambda: through_http(other.encode(), port.encode()),
                    lambda: through_socks(other.encode(), port),
                    lambda: ask(other, port, words), lambda: ask("198.18.0.3", port, words)):
            try:
                answer = way()
            except (OSError, IndexError) as error:
                answer = type(error).__name__
            found[answer[:60]] = found.get(answer[:60], 0) + 1
    words = f"GET /flows HTTP/1.1\\r\\nHost: {allowed}:{port}\\r\\n\\r\\n".encode()
    while not os.path.exists("/workspace/stop"):
        forbidden()
        try:
            reached += "reached" in ask(allowed, port, words)
        except OSError:
            time.sleep(0.01)
    return found, reached
"""
    )
    gateway = Node.current().gateway
    async with way_out(arena) as out:
        arguments = (str(out.port), ALLOWED, OTHER)
        # As long as all that is changed meanwhile takes, on a busy machine too.
        flowing = asyncio.ensure_future(
            arena.attempt(out.sandbox, source, *arguments, timeout=_FLOWING_S)
        )
        try:
            for _ in range(2):
                await _until_flows(arena, out)
                wider = Egress([f"{OTHER}:{out.port}", f"{ALLOWED}:{out.port}"], [OTHER, ALLOWED])
                async with arena.sandbox(egress=wider, ledger="off") as neighbour:
                    await out.sandbox.files.write("/workspace/cloister.toml", b"[egress]\n")
                    await out.sandbox.run(["/bin/true"], env={"HTTPS_PROXY": "http://x.test"})
                    twin = WayOut(neighbour, out.port, out.arrived)
                    said = await _say(arena, twin, OTHER)
                    arena.expect(set(said.values()) == {"open"}, f"a neighbour's is {said}")
                await _until_flows(arena, out)
                pid = gateway.pid
                os.kill(pid or 0, signal.SIGKILL)
                await another_gateway(pid)
            await _until_flows(arena, out)
        finally:
            await out.sandbox.run(["/bin/touch", "/workspace/stop"])
            attempt = await flowing
        found, reached = arena.expect_allowed(attempt)
        arena.expect(reached > 0, "nothing of what is allowed has arrived")
        arena.expect("open" not in found, f"the forbidden name was answered {found}")
        asked = [each for each in out.arrived if b"/forbidden" in each]
        arena.expect(not asked, f"the forbidden name was reached: {asked[:1]!r}")
        out.arrived.clear()
        await out.expect_reached(arena)


async def _until_flows(arena: Arena, out: WayOut) -> None:
    """Wait for one more request of the allowed kind: the change falls into the middle of them."""
    out.came.clear()
    try:
        async with asyncio.timeout(_FLOWS_S):
            await out.came.wait()
    except TimeoutError:
        arena.expect(False, "what is allowed does not flow")
