"""AUD: what is done inside is recorded whole, and nothing inside can reach or forge the record."""

from __future__ import annotations

import asyncio
import hashlib

from cloister.ledger import FileAccessed, ProcessStarted
from cloister.ledger.reading import make_receipt
from cloister.ledger.text import listed
from cloister.verify.arena import Arena
from cloister.verify.case import NotApplicable, case
from cloister.verify.cases.outside import command_line_on_terminal, lines_of
from cloister.verify.cases.recorded import (
    counted_only,
    entries_of,
    expect_holds,
    files_of,
    ledgers,
)
from cloister.verify.cases.way_out import way_out

_INSIDE, _BY_CALLERS, _FILES = 300, 20, 20
_REFUSALS = 1500
_MOST_LINE_BYTES = 1024 * 1024
_LONG = b"x" * 100_000
_EVIL = (
    b'"}\n{"entry":{"kind":"process.ended"},"hash":"0"}\n',
    b"\x1b]0;title\x07\x1b[2J\x9b31m",
    "\u202egnp.exe\u2028".encode(),
    b"\xff\xfe\xc0",
)

# Every ledger, key and checkpoint that can be seen, and whether the place of ours can be.
_SEARCH = """
def attempt(state, sandbox, *tops):
    found = [state] if os.path.lexists(state) else []
    for top in tops:
        for place in ("run", "var", "tmp", "home", "root", "dev", "mnt", "opt", "srv", "workspace"):
            for where, _, names in os.walk(os.path.join(top, place), onerror=lambda _: None):
                found += [f"{where}/{name}" for name in names
                          if name.endswith(".jsonl") or sandbox in where + name]
    with open("/proc/self/mountinfo") as mounts:
        found += [line for line in mounts if "ledger" in line or sandbox in line]
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue
        if "ledger" in target or "checkpoints" in target:
            found.append(target)
    return found
"""

# So many connections to addresses that stand for nothing; each is refused.
_FLOOD = """
def attempt(count):
    tried = 0
    for number in range(int(count)):
        address = f"198.18.{200 + number // 250}.{1 + number % 250}"
        with socket.socket() as sock:
            sock.settimeout(20)
            try:
                sock.connect((address, 80))
                sock.recv(1)
            except ConnectionError:
                pass
        tried += 1
    return tried
"""


@case("AUD-01", "do more than is written down", "high")
async def completeness(arena: Arena) -> None:
    with ledgers(arena) as state:
        async with arena.sandbox(ledger="on") as sandbox:
            line = f"i=0; while [ $i -lt {_INSIDE} ]; do /bin/true; i=$((i+1)); done"
            (await sandbox.run(["/bin/sh", "-c", line])).check()
            await asyncio.gather(*(sandbox.run(["/bin/true"]) for _ in range(_BY_CALLERS)))
            for number in range(_FILES):
                await sandbox.files.write(f"/workspace/{number}", b"x")
                await sandbox.files.read(f"/workspace/{number}")
        expect_holds(arena, state, sandbox.id)
        found = entries_of(state, sandbox.id)
        began = [each.payload for each in found if isinstance(each.payload, ProcessStarted)]
        by_callers = [each for each in began if each.by == "api" and each.source == "host"]
        arena.expect(
            len(by_callers) == _BY_CALLERS + 1,
            f"{_BY_CALLERS + 1} were started by callers, {len(by_callers)} are recorded",
        )
        operations = [
            each.payload.operation for each in found if isinstance(each.payload, FileAccessed)
        ]
        for operation in ("read", "write"):
            count = operations.count(operation)
            arena.expect(count == _FILES, f"of {_FILES} files {count} are recorded as {operation}")
        coverage = " ".join(listed(make_receipt(state, sandbox.id).coverage))
        if "processes that no caller started are not recorded" in coverage:
            raise NotApplicable("the kernel does not tell of processes here; receipts say so")
        inside = len([each for each in began if each.by == "inside"])
        # What the kernel could not tell is counted, and then some of ours may be missing.
        arena.expect(
            inside == _INSIDE or (inside < _INSIDE and counted_only(found) > 0),
            f"{_INSIDE} processes were started inside, {inside} are recorded and none is counted",
        )


@case("AUD-03", "find, read, write or fill the record from inside", "critical")
async def out_of_reach(arena: Arena) -> None:
    with ledgers(arena) as state:
        async with arena.sandbox(ledger="on", profile="root") as sandbox:
            outside = await arena.attempt_on_host(_SEARCH, str(state), sandbox.id)
            arena.expect(str(state) in arena.expect_allowed(outside), "the search finds nothing")
            for user in ("root", None):
                attempt = await arena.attempt(sandbox, _SEARCH, str(state), sandbox.id, user=user)
                seen = arena.expect_allowed(attempt)
                arena.expect(not seen, f"of the record, this is seen inside: {seen}")
            before = sum(path.stat().st_size for path in files_of(state, sandbox.id))
            filling = "head -c 20000000 /dev/zero > /tmp/full; cat /tmp/full; echo over"
            result = await sandbox.run(["/bin/sh", "-c", filling], output=100)
            arena.expect(result.ok, f"the program did not run: {result.describe()}")
            grown = sum(path.stat().st_size for path in files_of(state, sandbox.id)) - before
            arena.expect(grown < 64 * 1024, f"a program's output made the record {grown} longer")
        expect_holds(arena, state, sandbox.id)


@case("AUD-04", "write into the record by names of one's choosing", "high")
async def forged_fields(arena: Arena) -> None:
    with ledgers(arena) as state:
        async with arena.sandbox(ledger="on") as sandbox:
            await sandbox.run(["/bin/true", *_EVIL, _LONG])
            inner = "for each in sys.argv[1:]: subprocess.run(['/bin/true', each])"
            texts = [os_text(each) for each in _EVIL]
            await arena.python(sandbox, f"import subprocess, sys\n{inner}", *texts, "y" * 100_000)
        report = expect_holds(arena, state, sandbox.id)
        data = b"".join(path.read_bytes() for path in files_of(state, sandbox.id))
        arena.expect(data.isascii(), "an entry is not plain ASCII")
        arena.expect(b"\x1b" not in data and b"\x00" not in data, "an entry acts on a terminal")
        lines = data.split(b"\n")[:-1]
        arena.expect(
            len(lines) == report.entries, f"{report.entries} entries are {len(lines)} lines"
        )
        longest = max(map(len, lines))
        arena.expect(longest <= _MOST_LINE_BYTES, f"an entry has {longest} bytes")
        arena.expect(_LONG[:8192] not in data, "a long argument is kept whole")
        digest = hashlib.sha256(_LONG).hexdigest().encode()
        arena.expect(digest in data, "what was cut off has no digest")
        shown = await command_line_on_terminal("ledger", "show", sandbox.id)
        acting = [byte for byte in shown.stdout if byte < 32 and byte not in (9, 10)]
        arena.expect(not acting, f"shown, an entry acts on the terminal: {acting[:5]}")
        arena.expect(b"/bin/true" in shown.stdout, f"nothing was shown: {shown}")
        forged = [line for line in lines_of(shown.stdout) if line.startswith('{"entry"')]
        arena.expect(not forged, f"a name made a line of its own: {forged}")


def os_text(data: bytes) -> str:
    """Return bytes as an argument that is these bytes again."""
    return data.decode("utf-8", "surrogateescape")


@case("AUD-08", "flood the record with refusals", "high")
async def flood(arena: Arena) -> None:
    with ledgers(arena) as state:
        async with (
            way_out(arena, ledger="on") as out,
            arena.sandbox(ledger="on") as neighbour,
        ):
            tried = arena.expect_allowed(
                await arena.attempt(out.sandbox, _FLOOD, str(_REFUSALS), timeout=arena.at_least(60))
            )
            (await neighbour.run(["/bin/echo", "neighbour"])).check()
            await out.expect_reached(arena)
            flooded = out.sandbox
            await flooded.traffic()
        expect_holds(arena, state, flooded.id)
        found = entries_of(state, flooded.id)
        refused = sum(each.payload.is_refusal for each in found)
        counted = counted_only(found)
        arena.expect(
            refused + counted == tried,
            f"{tried} were refused; {refused} are recorded and {counted} counted",
        )
        size = sum(path.stat().st_size for path in files_of(state, flooded.id))
        arena.expect(size < tried * 1500, f"{tried} refusals made {size} bytes")
        expect_holds(arena, state, neighbour.id)
        argvs = [
            each.payload.argv
            for each in entries_of(state, neighbour.id)
            if isinstance(each.payload, ProcessStarted)
        ]
        arena.expect(("/bin/echo", "neighbour") in argvs, f"the neighbour's record has {argvs}")
