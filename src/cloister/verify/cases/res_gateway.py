"""Exhaustion of the one way out: connections without end are a bounded number, and harm nobody."""

from __future__ import annotations

from cloister.model import Limits
from cloister.verify.arena import PYTHON, Arena
from cloister.verify.case import case
from cloister.verify.cases.started import in_time
from cloister.verify.cases.way_out import ALLOWED, ASK, WayOut, way_out

_MANY = 3000

# Opens so many and holds them, or as many as it may, until it is told to let go.
_HOLD = """
import resource, socket, sys
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
held = []
for number in range(int(sys.argv[3])):
    sock = socket.socket()
    sock.setblocking(False)
    sock.connect_ex((sys.argv[4], int(sys.argv[2])))
    held.append(sock)
print(len(held), flush=True)
sys.stdin.readline()
"""

_ASK_UNTIL_REACHED = (
    ASK
    + """
def attempt(host, port):
    head = f'GET /after HTTP/1.1\\r\\nHost: {host}:{port}\\r\\n\\r\\n'
    while True:
        try:
            return ask(host, port, head.encode())
        except OSError:
            continue
"""
)


@case("RES-13", "open thousands of connections through the gateway", "high")
async def connections(arena: Arena) -> None:
    async with way_out(arena, limits=Limits(open_files=_MANY + 100)) as out:
        found = (await out.sandbox.run(["/usr/bin/getent", "ahostsv4", ALLOWED])).check()
        address = found.stdout.split()[0]
        argv = [PYTHON, "-I", "-c", _HOLD, ALLOWED, str(out.port), str(_MANY), address]
        holding = await out.sandbox.start(argv, stdin=True)
        said = await in_time("opening connections", anext(aiter(holding.stdout)))
        arena.expect(int(said) == _MANY, f"{said!r} connections were opened instead of {_MANY}")
        egress = out.sandbox.policy.egress
        async with arena.sandbox(egress=egress, ledger="off") as neighbour:
            beside = WayOut(neighbour, out.port, out.arrived)
            await in_time("a neighbour's request", beside.expect_reached(arena))
        holding.kill()
        await in_time("the end of who held them", holding.wait())
        # What was held is let go of as the gateway comes to it: asked until then, and not for ever.
        again = arena.attempt(out.sandbox, _ASK_UNTIL_REACHED, ALLOWED, str(out.port))
        got = arena.expect_allowed(await in_time("a request after it", again))
        arena.expect("reached" in got, f"after it the allowed host answered {got!r}")
