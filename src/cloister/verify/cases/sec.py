"""SEC: a secret is with its host and its owner; inside there is only what stands for it."""

from __future__ import annotations

import base64
import os
from pathlib import Path

from cloister.errors import RequestError
from cloister.policy import Policy
from cloister.verify.arena import Arena
from cloister.verify.case import case
from cloister.verify.cases.deep_out import BOUND, OPEN, SOURCE, DeepOut, deep_out


async def _use(arena: Arena, out: DeepOut, *, host: str = BOUND) -> str:
    """Ask with the placeholder in its place, and return the answer."""
    header = f"Authorization: Bearer {await out.placeholder()}"
    (answer,) = await out.say(arena, out.request("/open/a", header, host=host), host=host)
    return answer


async def _expect_used(arena: Arena, out: DeepOut) -> None:
    """The twin: sent rightly, the host has the value."""
    out.arrived.clear()
    answer = await _use(arena, out)
    arena.expect(" 200 " in answer[:13], f"answered {answer!r}")
    arena.expect(out.value.encode() in out.arrived[0], "the host was not sent the secret")
    out.arrived.clear()


def _expect_blocked(arena: Arena, out: DeepOut, answer: str) -> None:
    arena.expect(answer[9:12] in ("400", "403", "421"), f"answered {answer[:200]!r}")
    arena.expect(not out.arrived, f"arrived: {out.arrived}")


# Looks for something that is told in two halves, so that the search does not find itself.
_SEARCH = """
def attempt(first, second):
    wanted = bytes.fromhex(second) [::-1] + bytes.fromhex(first)[::-1]
    found = []
    for root in ("/run", "/etc", "/tmp", "/home", "/workspace", "/var", "/root", "/dev/shm"):
        for place, _, names in os.walk(root):
            for name in names:
                try:
                    with open(os.path.join(place, name), "rb") as file:
                        if wanted in file.read(1 << 24):
                            found.append(os.path.join(place, name))
                except OSError:
                    continue
    own = os.getpid()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        for name in ("environ", "cmdline"):
            try:
                with open(f"/proc/{pid}/{name}", "rb") as file:
                    if wanted in file.read():
                        found.append(f"/proc/{pid}/{name}")
            except OSError:
                continue
        if int(pid) == own:
            continue
        try:
            with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb") as memory:
                for line in maps:
                    place, rights = line.split()[:2]
                    start, end = (int(part, 16) for part in place.split("-"))
                    if "r" not in rights or end - start > 1 << 28:
                        continue
                    try:
                        memory.seek(start)
                        if wanted in memory.read(end - start):
                            found.append(f"the memory of {pid}")
                    except (OSError, ValueError, OverflowError):
                        continue
        except OSError:
            continue
    return found
"""


@case("SEC-01", "the value, anywhere inside", "critical")
async def inside(arena: Arena) -> None:
    async with deep_out(arena) as out:
        await _expect_used(arena, out)
        keeping = await out.sandbox.start("sleep 20 & wait", env={"KEPT": "1"})

        async def search(wanted: str) -> list[str]:
            half = len(wanted) // 2
            first = wanted[half:].encode()[::-1].hex()
            second = wanted[:half].encode()[::-1].hex()
            attempt = await arena.attempt(out.sandbox, _SEARCH, first, second)
            found: list[str] = arena.expect_allowed(attempt)
            return found

        found = await search(out.value)
        arena.expect(not found, f"the value is in {found}")
        twin = await search(await out.placeholder())
        arena.expect(bool(twin), "the search does not even find the placeholder")
        keeping.kill()
        await keeping.wait()


@case("SEC-02", "the placeholder sent to another allowed host", "critical")
async def unbound(arena: Arena) -> None:
    async with deep_out(arena) as out:
        _expect_blocked(arena, out, await _use(arena, out, host=OPEN))
        await _expect_used(arena, out)


@case("SEC-03", "the bound name in Host, another in TLS", "critical")
async def fronted(arena: Arena) -> None:
    async with deep_out(arena) as out:
        header = f"Authorization: Bearer {await out.placeholder()}"
        (answer,) = await out.say(arena, out.request("/open/a", header), host=OPEN)
        _expect_blocked(arena, out, answer)
        await _expect_used(arena, out)


@case("SEC-04", "the placeholder over plain HTTP", "critical")
async def plain(arena: Arena) -> None:
    async with deep_out(arena) as out:
        header = f"Authorization: Bearer {await out.placeholder()}"
        (answer,) = await out.say(arena, out.request("/open/a", header), tls=False)
        _expect_blocked(arena, out, answer)
        await _expect_used(arena, out)


@case("SEC-05", "a redirect to another host that the program follows", "critical")
async def redirect(arena: Arena) -> None:
    async with deep_out(arena) as out:
        await _expect_used(arena, out)
        # What a program that trusts the redirect sends next.
        _expect_blocked(arena, out, await _use(arena, out, host=OPEN))


@case("SEC-06", "a server that says the value back", "critical")
async def echo(arena: Arena) -> None:
    async with deep_out(arena) as out:
        answer = await _use(arena, out)
        arena.expect(out.value.encode() in out.arrived[0], "the host was not sent the secret")
        coded = base64.b64encode(out.value.encode()).decode().rstrip("=")
        for form in (out.value, coded, out.value.encode().hex()):
            arena.expect(form not in answer, "the value came back")
        arena.expect("Bearer ****" in answer, f"answered {answer!r}")


@case("SEC-07", "the value in files, arguments and variables on the host", "critical")
async def outside(arena: Arena) -> None:
    state = os.environ.get("CLOISTER_STATE", "")
    places = [
        Path("/run/cloister"),
        Path(os.environ.get("XDG_RUNTIME_DIR", "/nowhere"), "cloister"),
    ]
    async with deep_out(arena, ledger="on" if state else "off") as out:
        await _expect_used(arena, out)
        await _use(arena, out, host=OPEN)
        value = out.value.encode()
        for place in (*places, *([Path(state)] if state else [])):
            for path in place.rglob("*"):
                try:
                    data = path.read_bytes() if path.is_file() else b""
                except OSError:
                    continue
                arena.expect(value not in data, f"the value is in {path}")
        for entry in Path("/proc").glob("[0-9]*"):
            if int(entry.name) == os.getpid():
                # Where the value comes from, in this case.
                continue
            for name in ("cmdline", "environ"):
                try:
                    data = (entry / name).read_bytes()
                except OSError:
                    continue
                arena.expect(value not in data, f"the value is in {entry / name}")
        shown = repr(out.sandbox.policy) + repr(await out.sandbox.traffic())
        arena.expect(out.value not in shown, "the value is shown")


@case("SEC-08", "the placeholder of another sandbox", "critical")
async def another(arena: Arena) -> None:
    async with deep_out(arena) as out:
        async with arena.sandbox(
            egress=out.sandbox.policy.egress, secrets=out.sandbox.policy.secrets, ledger="off"
        ) as other:
            foreign = DeepOut(other, out.port, out.value, out.arrived)
            mine, theirs = await out.placeholder(), await foreign.placeholder()
            arena.expect(mine != theirs, "two sandboxes have the same placeholder")
            header = f"Authorization: Bearer {theirs}"
            await out.say(arena, out.request("/open/a", header))
            sent = b" ".join(out.arrived)
            arena.expect(out.value.encode() not in sent, "it was replaced")
        await _expect_used(arena, out)


@case("SEC-09", "the placeholder in another place of the request", "high")
async def elsewhere(arena: Arena) -> None:
    async with deep_out(arena) as out:
        standing = await out.placeholder()
        body = f"token={standing}"
        texts = (
            out.request(f"/open/{standing}"),
            out.request(f"/open/a?key={standing}"),
            out.request("/open/a", f"X-Other: {standing}"),
            out.request("/open/a", f"Content-Length: {len(body)}", method="POST") + body.encode(),
        )
        for answer in await out.say(arena, *texts):
            _expect_blocked(arena, out, answer)
        await _expect_used(arena, out)


@case("SEC-10", "a value that would end its header", "high")
async def line_ends(arena: Arena) -> None:
    from cloister.node.secret_value import SecretValue

    for value in ("abcdefgh\r\nX-More: 1", "abcdefgh\n1", "abcdefgh\0", "\u00e4bcdefghij", "tiny"):
        try:
            SecretValue("TOKEN", value)
        except RequestError as error:
            arena.expect(value not in str(error), "the reason has the value in it")
            continue
        arena.expect(False, f"{value!r} was taken")
    SecretValue("TOKEN", "abcdefgh12345")


@case("SEC-11", "a secret that is changed, or taken away, while it is used", "high")
async def rotated(arena: Arena) -> None:
    async with deep_out(arena) as out:
        await _expect_used(arena, out)
        old, standing = out.value, await out.placeholder()
        out.value = os.environ[SOURCE] = old[::-1].replace("_phg", "zphg")
        await out.sandbox.renew_secrets()
        arena.expect(await out.placeholder() == standing, "what stands for it has changed")
        answer = await _use(arena, out)
        sent = b" ".join(out.arrived)
        arena.expect(out.value.encode() in sent, f"the new value was not sent: {answer[:200]!r}")
        arena.expect(old.encode() not in sent, "the old value was sent")
        arena.expect(out.value not in answer, "the new value came back")
        (answer,) = await out.say(arena, out.request("/open/a", f"X-Echo: {old}"))
        arena.expect(old not in answer, "the old value came back")
        out.arrived.clear()
        del os.environ[SOURCE]
        try:
            await out.sandbox.renew_secrets()
            arena.expect(False, "a source that is gone was read")
        except RequestError:
            _expect_blocked(arena, out, await _use(arena, out))
        os.environ[SOURCE] = out.value
        await out.sandbox.renew_secrets()
        await _expect_used(arena, out)


@case("SEC-12", "a secret bound to names that others can have", "high")
async def wildcard(arena: Arena) -> None:
    for host, taken in (("*.zone.test", False), ("a.zone.test", True)):
        table = {"TOKEN": {"from": "env:X", "hosts": [host], "header": "Authorization"}}
        try:
            Policy(egress=["*.zone.test", "a.zone.test"], secrets=table)
        except RequestError:
            arena.expect(not taken, f"{host} was refused")
            continue
        arena.expect(taken, f"{host} was taken")
