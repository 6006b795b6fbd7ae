"""DOM: one spelling of each name decides and is dialled; what is not that name is denied."""

from __future__ import annotations

from typing import Any

from cloister.errors import RequestError
from cloister.node import Node
from cloister.policy import Connect, Destination, Effect, Egress, Policy, judge, parse_policy
from cloister.policy.judge import Grant, Rule
from cloister.verify.arena import Arena
from cloister.verify.case import case, not_testable
from cloister.verify.cases.way_out import ALLOWED, ASK, OTHER, WayOut, way_out

not_testable("DOM-09", "what a running sandbox may reach cannot be changed while it runs")

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
