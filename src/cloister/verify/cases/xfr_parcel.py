"""XFR: hostile parcels. There is no tar or zip here: trees travel in our own format, so the tricks
of archives are tried on that one, against the unpacker that writes to the host."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from cloister.errors import CloisterError, Exhausted, ProtocolViolation
from cloister.sandbox.parcel import DIRECTORY, END, FILE, LINK, Entry, Source, Summary, encode_entry
from cloister.sandbox.unpack import MAX_ENTRIES, unpack
from cloister.verify.arena import Arena
from cloister.verify.case import NotHeld, case
from cloister.verify.impostor import resident_bytes

_MIB = 1024 * 1024
_TOP = encode_entry(Entry(DIRECTORY, 0o755, 0, 0, b"", b""))


def _file(path: bytes, content: bytes = b"planted", mode: int = 0o644) -> bytes:
    return encode_entry(Entry(FILE, mode, 0, len(content), path, b"")) + content


def _directory(path: bytes) -> bytes:
    return encode_entry(Entry(DIRECTORY, 0o755, 0, 0, path, b""))


def _link(path: bytes, target: bytes) -> bytes:
    return encode_entry(Entry(LINK, 0o777, 0, 0, path, target))


class _Yard:
    """A target on the host, with neighbours that must stay as they are."""

    def __init__(self, place: str) -> None:
        self.place = Path(place)
        self.target = self.place / "target"
        (self.place / "beside").mkdir()
        (self.place / "beside" / "file").write_text("untouched")

    async def receive(self, *parts: bytes, limit: int = 64 * _MIB) -> Summary | CloisterError:
        """Unpack a parcel as `copy_out` does; return its summary or its error."""
        return await self.receive_stream(iter((_TOP, *parts, bytes((END,)))), limit)

    async def receive_stream(
        self, chunks: Iterator[bytes], limit: int = 64 * _MIB
    ) -> Summary | CloisterError:
        async def read() -> bytes:
            return next(chunks, b"")

        try:
            return await unpack(Source(read), self.target, limit=limit, progress=None)
        except CloisterError as error:
            return error

    def require_untouched(self, what: str) -> None:
        """Nothing beside the target changed, and nothing below it is more than it should be."""
        beside = sorted(path.name for path in self.place.iterdir())
        if beside not in (["beside"], ["beside", "target"]):
            raise NotHeld(f"{what} made something beside the target: {beside}")
        if (self.place / "beside" / "file").read_text() != "untouched":
            raise NotHeld(f"{what} changed a file beside the target")
        if os.listdir(self.place / "beside") != ["file"]:
            raise NotHeld(f"{what} made a file beside the target")
        for path in self.below():
            mode = path.lstat().st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
                raise NotHeld(f"{what} made {path.name}, which is no file, directory or link")
            if not stat.S_ISLNK(mode) and mode & 0o7000:
                raise NotHeld(f"{what} kept special bits on {path.name}")
            if stat.S_ISLNK(mode) and not self.leads_inside(path):
                raise NotHeld(f"{what} made a link that leads out: {path} to {os.readlink(path)}")

    def below(self) -> Iterator[Path]:
        """Everything in the target."""
        for folder, folders, names in os.walk(self.target):
            yield from (Path(folder) / name for name in (*folders, *names))

    def leads_inside(self, path: Path) -> bool:
        """Whether a link ends below the target, or nowhere."""
        try:
            return path.resolve().is_relative_to(self.target.resolve())
        except RuntimeError:
            # A circle.
            return True


@case("XFR-06", "parcel names that climb, absolute names, writing through a link", "critical")
async def climbing_parcels(arena: Arena) -> None:
    flag = os.fsencode(arena.canary.flag)
    hostile = {
        "a name with ..": [_file(b"../beside/file")],
        "a deep name with ..": [_directory(b"a"), _file(b"a/../../beside/file")],
        "an absolute name": [_file(flag)],
        "a name with an empty part": [_file(b"a//b")],
        "a name with a dot": [_file(b"./a")],
        "a name with NUL": [_file(b"a\0b")],
        "a name of 256 bytes": [_file(b"n" * 256)],
        "a second top": [_file(b"")],
        "a file through a link": [_link(b"l", b"d"), _directory(b"d"), _file(b"l/f")],
        "a directory through a link": [_link(b"l", os.path.dirname(flag)), _directory(b"l/d")],
        "an unknown kind (a device)": [bytes((4,)) + _file(b"null")[1:]],
        "a link with content": [bytes((LINK,)) + _file(b"l")[1:]],
    }
    await _expect_each_refused(arena, hostile)
    with tempfile.TemporaryDirectory() as place:
        yard = _Yard(place)
        os.symlink(arena.canary.directory, yard.target)
        error = await yard.receive(_file(b"flag"))
        arena.expect(isinstance(error, CloisterError), f"a target that is a link gave {error!r}")


async def _expect_each_refused(arena: Arena, hostile: dict[str, list[bytes]]) -> None:
    for what, parts in hostile.items():
        with tempfile.TemporaryDirectory() as place:
            yard = _Yard(place)
            error = await yard.receive(_file(b"honest"), *parts)
            arena.expect(isinstance(error, ProtocolViolation), f"{what} gave {error!r}")
            # The twin: what came before it, in the same parcel, has arrived.
            arena.expect((yard.target / "honest").exists(), f"{what}: nothing was unpacked at all")
            yard.require_untouched(what)


@case("XFR-07", "chains of links that lead out only together", "critical")
async def link_chains(arena: Arena) -> None:
    flag_directory = os.fsencode(arena.canary.directory)
    chains = {
        "up and over": [_link(b"out", b"../beside")],
        "absolute": [_link(b"out", flag_directory)],
        "up from below": [_directory(b"a"), _link(b"a/out", b"../../beside")],
        "a hop to the top, then up": [_link(b"here", b"."), _link(b"out", b"here/../beside")],
        "a hop up inside, then up": [
            *(_directory(b"a"), _directory(b"a/b"), _link(b"a/b/up", b"../..")),
            _link(b"out", b"a/b/up/../beside"),
        ],
        "many hops": [
            *(_link(b"h%d" % n, b"h%d" % (n + 1)) for n in range(20)),
            *(_link(b"h20", b"."), _link(b"out", b"h0/../beside")),
        ],
        "an overlong target": [_link(b"out", b"x/../" * 800 + b"../beside")],
        "an empty target": [_link(b"out", b"")],
    }
    for what, parts in chains.items():
        with tempfile.TemporaryDirectory() as place:
            yard = _Yard(place)
            summary = await yard.receive(*parts, _file(b"honest"))
            arena.expect(isinstance(summary, Summary), f"{what} gave {summary!r}")
            arena.expect((yard.target / "honest").exists(), f"{what}: nothing was unpacked at all")
            yard.require_untouched(what)
            arena.expect(not (yard.target / "out").is_symlink(), f"{what}: the link was made")
    with tempfile.TemporaryDirectory() as place:
        yard = _Yard(place)
        parts = [_directory(b"a"), _file(b"f"), _link(b"a/l", b"../f"), _link(b"m", b"a/l")]
        await yard.receive(*parts)
        arena.expect((yard.target / "m").read_text() == "planted", "honest links do not arrive")


@case("XFR-08", "names said twice, with backslashes, drives and odd bytes", "critical")
async def odd_names(arena: Arena) -> None:
    odd = [
        b"..\\..\\beside\\file",
        b"C:\\x",
        b"C:",
        b"a\\b",
        b"-rf",
        b"\xff\xfe",
        b"a\nb",
        b"...",
        b" ",
    ]
    with tempfile.TemporaryDirectory() as place:
        yard = _Yard(place)
        summary = await yard.receive(*(_file(name) for name in odd))
        arena.expect(isinstance(summary, Summary), f"odd names gave {summary!r}")
        made = sorted(os.fsencode(path.name) for path in yard.below())
        arena.expect(made == sorted(odd), f"odd names became {made}")
        yard.require_untouched("odd names")
    for first, second in (
        (_file(b"f", b"first"), _file(b"f", b"second")),
        (_link(b"f", b"g"), _file(b"f", b"second")),
        (_file(b"f", b"first"), _link(b"f", b"g")),
    ):
        with tempfile.TemporaryDirectory() as place:
            yard = _Yard(place)
            error = await yard.receive(first, second)
            arena.expect(isinstance(error, CloisterError), f"a name said twice gave {error!r}")
            yard.require_untouched("a name said twice")


@case("XFR-09", "parcels that grow: huge sizes, many files, many entries", "high")
async def bombs(arena: Arena) -> None:
    """Nothing is compressed, so there is no ratio; bytes and entries are counted."""
    with tempfile.TemporaryDirectory() as place:
        yard = _Yard(place)
        files = (_file(b"%d" % number, bytes(1000)) for number in range(10_000))
        error = await yard.receive_stream(iter((_TOP, *files)), limit=_MIB)
        arena.expect(isinstance(error, Exhausted), f"ten times the limit gave {error!r}")
        total = sum(path.stat().st_size for path in yard.below())
        arena.expect(0 < total <= _MIB, f"{total} bytes were written; the limit was {_MIB}")
        drafts = [path.name for path in yard.below() if path.name.startswith(".cloister")]
        arena.expect(not drafts, f"drafts were left: {drafts}")


@case("XFR-10", "a download of millions of entries, huge names and sizes", "high")
async def hostile_download(arena: Arena) -> None:
    header = encode_entry(Entry(FILE, 0o644, 0, 1 << 40, b"sparse", b""))
    long_name = bytes((FILE,)) + bytes(20) + (1 << 20).to_bytes(4, "little")
    for what, parts, kind in (
        ("a file of 1 TiB", (_TOP, header), Exhausted),
        ("a file of 16 EiB", (_TOP, header[:13] + b"\xff" * 8 + header[21:]), Exhausted),
        ("a name of 1 MiB", (_TOP, long_name, b"n" * (1 << 20)), ProtocolViolation),
        ("a target of 4 GiB", (_TOP, bytes((LINK,)) + bytes(24) + b"\xff" * 4), ProtocolViolation),
    ):
        with tempfile.TemporaryDirectory() as place:
            yard = _Yard(place)
            error = await yard.receive_stream(iter(parts))
            arena.expect(isinstance(error, kind), f"{what} gave {error!r}")
            yard.require_untouched(what)
    with tempfile.TemporaryDirectory() as place:
        yard = _Yard(place)
        before = resident_bytes()
        error = await yard.receive_stream(_endless())
        arena.expect(isinstance(error, Exhausted), f"endless entries gave {error!r}")
        grown = resident_bytes() - before
        arena.expect(grown < 32 * _MIB, f"endless entries made the host grow by {grown} bytes")


def _endless() -> Iterator[bytes]:
    """More links that lead out than a copy may have entries, in pieces as a pipe gives them."""
    yield _TOP
    piece = _link(b"l", b"/" + b"t" * 15) * 1024
    for _ in range(2 * MAX_ENTRIES // 1024):
        yield piece
