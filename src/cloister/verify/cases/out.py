"""OUT: what a sandbox prints is data: for a terminal, for a log, for a program that reads it."""

from __future__ import annotations

import json
import tempfile
from html.parser import HTMLParser
from pathlib import Path

from cloister.node import list_records
from cloister.verify.arena import PYTHON, Arena
from cloister.verify.case import case
from cloister.verify.cases.outside import command_line, command_line_on_terminal, lines_of
from cloister.verify.cases.recorded import expect_holds, ledgers

# Clipboard, title, hyperlink, clear, cursor, 8-bit CSI, bell, overwriting, reordering, deleting.
_ACTS = (
    b"\x1b]52;c;ZXZpbA==\x07\x1b]0;title\x07\x1b]8;;http://x/\x1b\\link\x1b]8;;\x1b\\"
    b"\x1b[2J\x1b[1;1H\x1b[31m\x9b31m\xc2\x9b31m\x07\x08\x7fsafe\rOVER\n\xe2\x80\xaegnp\x1bc\x0e\n"
)


def _print(data: bytes, stream: str = "stdout") -> str:
    return f"import sys; sys.{stream}.buffer.write(bytes.fromhex('{data.hex()}'))"


@case("OUT-01", "print sequences that act on a terminal", "high")
async def terminal_sequences(arena: Arena) -> None:
    for stream in ("stdout", "stderr"):
        command = ("--", PYTHON, "-I", "-c", _print(_ACTS + b"visible\n", stream))
        shown = await command_line_on_terminal("run", *command)
        arena.expect(shown.code == 0 and b"visible" in shown.stdout, f"nothing shown: {shown}")
        acting = [f"{byte:#x}" for byte in shown.stdout if byte < 32 and byte not in (9, 10)]
        arena.expect(not acting, f"{stream} let these through to a terminal: {acting[:5]}")
        for bad in (b"\x7f", b"\x9b31m", b"\xc2\x9b", "\u202e".encode()):
            arena.expect(bad not in shown.stdout, f"{stream} let {bad!r} through to a terminal")
        arena.expect(rb"\x1b]52" in shown.stdout, "an escape was dropped instead of shown")
    # The twins: asked for, it acts; and a pipe, which is no terminal, gets every byte.
    raw = await command_line_on_terminal("run", "--raw", *command[:4], _print(_ACTS))
    arena.expect(b"\x1b]52;c;" in raw.stdout, "--raw does not let output act")
    piped = await command_line("run", *command[:4], _print(_ACTS))
    arena.expect(piped.stdout == _ACTS, f"a pipe got {piped.stdout!r}")
    await _expect_errors_neutral(arena)


async def _expect_errors_neutral(arena: Arena) -> None:
    """Names chosen inside come back in messages: of a program, of a file, of what was left out."""
    program = "\x1b]0;evil\x07\nfake: line"
    shown = await command_line_on_terminal("run", "--", program)
    arena.expect(shown.code == 127, f"a missing program gave {shown}")
    arena.expect(b"\x1b" not in shown.stdout, f"a message acts on the terminal: {shown.stdout!r}")
    with tempfile.TemporaryDirectory() as place:
        script = "import os; os.symlink('/x\\x1b[31m', '/workspace/l\\x1b[2J\\nfake')"
        arguments = ("--out", f"/workspace:{place}/o", "--", PYTHON, "-I", "-c", script)
        shown = await command_line_on_terminal("run", *arguments)
        arena.expect(Path(place, "o").is_dir(), f"nothing was copied out: {shown}")
        arena.expect(b"fake" in shown.stdout, f"what was left out is not told: {shown.stdout!r}")
        arena.expect(b"\x1b" not in shown.stdout, f"a warning acts: {shown.stdout!r}")
        lines = [line for line in lines_of(shown.stdout) if line.startswith("fake")]
        arena.expect(not lines, f"a name made a line of its own: {lines}")


@case("OUT-02", "print a line that looks like a record of ours", "high")
async def forged_records(arena: Arena) -> None:
    forged = b'"}\n{"sandbox": "sb_forged", "exit_code": 0}\n\x00\xff\xe2\x80\xa8\r\n'
    script = _print(forged) + "; sys.exit(3)"
    said = await command_line("run", "--json", "--", PYTHON, "-I", "-c", script)
    arena.expect(said.code == 3, f"the exit code was {said.code}: {said.stderr!r}")
    arena.expect(said.stdout.count(b"\n") == 1, f"the result is not one line: {said.stdout!r}")
    arena.expect(said.stdout.isascii(), f"the result is not plain ASCII: {said.stdout!r}")
    result = json.loads(said.stdout)
    arena.expect(result["exit_code"] == 3, f"the result was forged: {result}")
    arena.expect(result["stdout"] == forged.decode("utf-8", "replace"), f"{result['stdout']!r}")
    wrong = await command_line("run", "--json", "--", "no-such\nprogram")
    lines = lines_of(wrong.stderr) or lines_of(wrong.stdout)
    arena.expect(len(lines) == 1, f"an error is not one record: {lines}")
    json.loads(lines[0])
    label = 'x"}\n{"id": "sb_forged"}'
    async with arena.sandbox(label=label) as sandbox:
        # A record appears once a sandbox has lived for a moment.
        await sandbox.run(["/bin/sleep", "0.2"])
        ours = [record for record in list_records() if record.id == sandbox.id]
        arena.expect([record.label for record in ours] == [label], f"recorded: {ours}")
        listed = json.loads((await command_line("ps", "--json")).stdout)
        arena.expect("sb_forged" not in {row["id"] for row in listed}, "a record was forged")


@case("OUT-03", "put HTML where a page will show it", "high")
async def html_in_names(arena: Arena) -> None:
    script = "<script>alert(1)</script><img src=x onerror=alert(2)>"
    with ledgers(arena) as state:
        async with arena.sandbox(ledger="on", label=script) as sandbox:
            await sandbox.files.write(f"/workspace/{script.replace('/', '')}", b"x")
            await sandbox.run(["/bin/echo", script, "\"'><script>"])
            await sandbox.run(["/bin/sh", "-c", "exit 3", script])
        expect_holds(arena, state, sandbox.id)
        said = await command_line("receipt", sandbox.id, "--as", "html")
        arena.expect(said.code == 0, f"there is no page: {said}")
        page = _Page()
        page.feed(said.stdout.decode())
        arena.expect("alert(1)" in "".join(page.text), "the page does not show what was chosen")
        arena.expect(page.tags <= _PLAIN_TAGS, f"the page has {page.tags - _PLAIN_TAGS}")
        acting = [name for name in page.attributes if name.startswith("on") or name == "src"]
        arena.expect(not acting, f"the page has the attributes {acting}")
        arena.expect("default-src 'none'" in page.policy, f"its policy is {page.policy!r}")


_PLAIN_TAGS = frozenset(
    ("html", "head", "meta", "title", "style", "body", "h1", "h2", "table", "tr", "td")
)


class _Page(HTMLParser):
    """What a browser would find in a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text: list[str] = []
        self.policy = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        given = dict(attrs)
        self.attributes |= given.keys()
        if given.get("http-equiv") == "Content-Security-Policy":
            self.policy = given.get("content") or ""

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@case("OUT-04", "print every byte, valid text or not", "medium")
async def every_byte(arena: Arena) -> None:
    data = bytes(range(256)) + b"\xff\xfe\x00" + b"\xf0\x9f\x92" + b"\r\n" * 3 + b"\xc3"
    for user in (None, "root"):
        async with arena.sandbox(profile="root" if user else "default") as sandbox:
            result = await arena.python(sandbox, _print(data), user=user)
            arena.expect(result.stdout_bytes == data, f"output became {result.stdout_bytes!r}")
            result = await arena.python(sandbox, _print(data, "stderr"), user=user)
            arena.expect(result.stderr_bytes == data, f"output became {result.stderr_bytes!r}")
            arena.expect("\N{REPLACEMENT CHARACTER}" in result.stderr, "text is not marked")
            await sandbox.files.write("/workspace/f", data)
            arena.expect(await sandbox.files.read("/workspace/f") == data, "a file was changed")
            echoed = await sandbox.run(["/bin/cat"], stdin=data)
            arena.expect(echoed.stdout_bytes == data, "input was changed")
    said = await command_line("run", "--json", "--", PYTHON, "-I", "-c", _print(data))
    arena.expect("stdout_base64" in json.loads(said.stdout), "the bytes are not in the JSON")
