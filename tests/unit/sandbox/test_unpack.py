"""Whatever a parcel says, nothing outside its target changes, and what is honest arrives."""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloister.errors import CloisterError, Exhausted, ProtocolViolation, RequestError
from cloister.sandbox.parcel import (
    DIRECTORY,
    END,
    FILE,
    LINK,
    Entry,
    Source,
    Summary,
    encode_entry,
    pack,
)
from cloister.sandbox.unpack import unpack

Part = tuple[Entry, bytes]


def directory(path: bytes) -> Part:
    return Entry(DIRECTORY, 0o755, 0, 0, path, b""), b""


def file(path: bytes, content: bytes = b"x", mode: int = 0o644) -> Part:
    return Entry(FILE, mode, 0, len(content), path, b""), content


def link(path: bytes, target: bytes) -> Part:
    return Entry(LINK, 0o777, 0, 0, path, target), b""


def written(parts: Sequence[Part]) -> bytes:
    return b"".join(encode_entry(entry) + content for entry, content in parts) + bytes((END,))


async def unpack_bytes(
    data: bytes, target: Path, *, limit: int = 1 << 20, cut: int = 97
) -> Summary:
    chunks = [data[at : at + cut] for at in range(0, len(data), cut)]

    async def read() -> bytes:
        return chunks.pop(0) if chunks else b""

    return await unpack(Source(read), target, limit=limit, progress=None)


class Yard:
    """A place for a target, with things beside it that must not change."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.target = place / "target"
        self.beside = place / "beside"
        self.beside.mkdir()
        (self.beside / "flag").write_text("canary")
        self.before = self.seen()

    def seen(self) -> list[tuple[str, int, bytes]]:
        """Everything that is not the target: name, mode, content."""
        found = []
        for folder, folders, names in os.walk(self.place):
            if folder == str(self.place) and "target" in folders:
                folders.remove("target")
            for name in (*folders, *names):
                path = Path(folder) / name
                if path == self.target:
                    continue
                status = path.lstat()
                content = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
                found.append((str(path), status.st_mode, content))
        return sorted(found)

    def require_untouched(self) -> None:
        assert self.seen() == self.before


@pytest.fixture
def yard(tmp_path: Path) -> Yard:
    return Yard(tmp_path)


# Names that lead nowhere, names that lead out, and a few that meet each other.
names = st.sampled_from(
    [
        b"",
        b"a",
        b"b",
        b"a/b",
        b"a/b/c",
        b"l",
        b"l/x",
        b"a/l",
        b"..",
        b"../beside/flag",
        b"a/../b",
        b"/etc/passwd",
        b".",
        b"a//b",
        b"a/./b",
        b"a\x00b",
        b"\xff",
        b"n" * 255,
        b"n" * 256,
        b"..a",
    ]
)
targets = st.sampled_from(
    [
        b"",
        b"a",
        b"..",
        b"../beside",
        b"/",
        b"/etc",
        b".",
        b"a/..",
        b"l/..",
        b"../target",
        b"\x00",
        b"../..",
        b"a/b/../../..",
        b"t" * 4095,
        b"t" * 4096,
    ]
)
parts = st.one_of(
    names.map(directory),
    st.builds(file, names, st.binary(max_size=50), st.integers(0, 0o777)),
    st.builds(link, names, targets),
)


@settings(deadline=None)
@given(st.lists(parts, max_size=12), st.booleans())
def test_arbitrary_entries_never_change_anything_outside(
    sent: list[Part], honest_top: bool
) -> None:
    with tempfile.TemporaryDirectory() as place:
        yard = Yard(Path(place))
        data = written([directory(b""), *sent] if honest_top else sent)
        with contextlib.suppress(CloisterError, OSError):
            asyncio.run(unpack_bytes(data, yard.target))
        yard.require_untouched()
        for path in links_below(yard.target):
            assert leads_into(path, yard.target), f"{path} -> {os.readlink(path)}"


@settings(deadline=None)
@given(st.binary(max_size=400))
def test_arbitrary_bytes_are_a_parcel_or_a_violation(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as place:
        yard = Yard(Path(place))
        with contextlib.suppress(ProtocolViolation, Exhausted, RequestError):
            asyncio.run(unpack_bytes(data, yard.target))
        yard.require_untouched()


def links_below(top: Path) -> Iterator[Path]:
    for folder, folders, entries in os.walk(top):
        yield from (p for name in (*folders, *entries) if (p := Path(folder) / name).is_symlink())


def leads_into(path: Path, top: Path) -> bool:
    # A link to itself leads nowhere.
    try:
        place = path.resolve()
    except RuntimeError:
        return True
    return place.is_relative_to(top.resolve())


async def test_an_honest_tree_arrives(yard: Yard) -> None:
    sent = [directory(b""), directory(b"d"), file(b"d/f", b"content", 0o751), link(b"d/l", b"f")]
    summary = await unpack_bytes(written(sent), yard.target)
    assert (yard.target / "d" / "l").read_bytes() == b"content"
    assert stat.S_IMODE((yard.target / "d" / "f").stat().st_mode) == 0o751
    assert (summary.files, summary.bytes, summary.skipped) == (1, 7, [])
    yard.require_untouched()


async def test_a_file_is_not_written_through_a_link_of_the_same_parcel(yard: Yard) -> None:
    sent = [directory(b""), directory(b"d"), link(b"l", b"d"), file(b"l/flag")]
    with pytest.raises(ProtocolViolation, match="no directory"):
        await unpack_bytes(written(sent), yard.target)
    assert not (yard.target / "d" / "flag").exists()


async def test_a_file_replaces_a_link_instead_of_writing_through_it(yard: Yard) -> None:
    yard.target.mkdir()
    (yard.target / "f").symlink_to(yard.beside / "flag")
    await unpack_bytes(written([directory(b""), file(b"f", b"new")]), yard.target)
    assert not (yard.target / "f").is_symlink()
    assert (yard.target / "f").read_bytes() == b"new"
    yard.require_untouched()


@pytest.mark.parametrize("top", [link(b"", b"beside"), link(b"", b"/")])
async def test_the_top_is_never_a_link(yard: Yard, top: Part) -> None:
    with pytest.raises(ProtocolViolation, match="top is a link"):
        await unpack_bytes(written([top]), yard.target)
    assert not yard.target.is_symlink()


async def test_a_target_that_is_a_link_on_the_host_is_not_followed(yard: Yard) -> None:
    yard.target.symlink_to(yard.beside)
    with pytest.raises(RequestError, match="is no directory"):
        await unpack_bytes(written([directory(b""), file(b"flag", b"new")]), yard.target)
    yard.require_untouched()


@pytest.mark.parametrize(
    "chain",
    [
        [link(b"out", b"..")],
        [link(b"out", b"/etc")],
        [directory(b"a"), link(b"a/out", b"../..")],
        # Each hop stays inside by its own letters; together they climb.
        [directory(b"a"), directory(b"a/b"), link(b"a/b/up", b"../.."), link(b"out", b"a/b/up/..")],
        [link(b"here", b"."), link(b"out", b"here/../..")],
    ],
)
async def test_links_that_lead_out_are_left_out_and_listed(yard: Yard, chain: list[Part]) -> None:
    summary = await unpack_bytes(written([directory(b""), *chain]), yard.target)
    assert [name.rpartition("/")[2] for name, _ in summary.skipped] == ["out"]
    assert all(leads_into(path, yard.target) for path in links_below(yard.target))


async def test_links_that_climb_inside_the_tree_are_kept(yard: Yard) -> None:
    sent = [directory(b""), directory(b"a"), file(b"f"), link(b"a/l", b"../f"), link(b"m", b"a/l")]
    summary = await unpack_bytes(written(sent), yard.target)
    assert summary.skipped == []
    assert (yard.target / "m").read_bytes() == b"x"


async def test_set_id_bits_and_owners_do_not_travel(yard: Yard) -> None:
    await unpack_bytes(written([directory(b""), file(b"f", b"x", 0o6777)]), yard.target)
    status = (yard.target / "f").stat()
    assert stat.S_IMODE(status.st_mode) == 0o755
    assert status.st_uid == os.geteuid()


async def test_a_promised_size_over_the_limit_is_refused_before_a_byte_is_read(yard: Yard) -> None:
    entry = Entry(FILE, 0o644, 0, 2**63, b"", b"")
    with pytest.raises(Exhausted, match="would take more"):
        await unpack_bytes(encode_entry(entry), yard.target, limit=1000)
    assert os.listdir(yard.place) == ["beside"]


async def test_many_files_together_stop_at_the_limit(yard: Yard) -> None:
    sent = [directory(b""), *(file(b"%d" % n, bytes(300)) for n in range(10))]
    with pytest.raises(Exhausted):
        await unpack_bytes(written(sent), yard.target, limit=1000)
    assert sorted(os.listdir(yard.target)) == ["0", "1", "2"]


async def test_a_million_links_outside_do_not_fill_the_summary(yard: Yard) -> None:
    sent = [
        directory(b""),
        *(link(b"%d" % n, b"/" + bytes(4000).replace(b"\0", b"t")) for n in range(3000)),
    ]
    summary = await unpack_bytes(written(sent), yard.target, cut=65_536)
    assert (len(summary.skipped), summary.skipped_total) == (1000, 3000)


@pytest.mark.parametrize("left", [1, 3, 30])
async def test_a_parcel_that_breaks_off_leaves_the_old_file_and_no_draft(
    yard: Yard, left: int
) -> None:
    yard.target.write_bytes(b"old")
    data = written([file(b"", b"new content, longer than what will arrive")])
    with pytest.raises(ProtocolViolation, match="ended in the middle"):
        await unpack_bytes(data[:-left], yard.target)
    assert sorted(os.listdir(yard.place)) == ["beside", "target"]
    # Only the last byte is missing: the file was whole, and is in place.
    assert yard.target.read_bytes() == (b"old" if left > 1 else data[-42:-1])


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (file(b"f", b"1"), file(b"f", b"2")),
        (file(b"f", b"1"), link(b"f", b"g")),
        (link(b"f", b"g"), file(b"f", b"2")),
        (directory(b"f"), directory(b"f")),
    ],
)
async def test_a_copy_does_not_replace_what_it_has_just_made(
    yard: Yard, first: Part, second: Part
) -> None:
    """Where case counts for nothing, two names inside are one here; this is how that looks."""
    with pytest.raises(RequestError, match="would replace another"):
        await unpack_bytes(written([directory(b""), first, second]), yard.target)
    await unpack_bytes(written([directory(b""), first]), yard.place / "fresh")
    await unpack_bytes(written([directory(b""), first]), yard.place / "fresh")


async def test_descriptors_are_closed_however_it_ends(yard: Yard) -> None:
    before = len(os.listdir("/proc/self/fd"))
    deep = [directory(b"/".join([b"d"] * n)) for n in range(1, 40)]
    await unpack_bytes(written([directory(b""), *deep]), yard.target)
    with pytest.raises(ProtocolViolation):
        await unpack_bytes(written([directory(b""), *deep, file(b"../x")]), yard.target)
    assert len(os.listdir("/proc/self/fd")) == before


class TestPack:
    """The other direction: a host tree as a parcel."""

    async def test_what_was_packed_is_unpacked_the_same(self, yard: Yard) -> None:
        source = yard.place / "source"
        (source / "d").mkdir(parents=True)
        (source / "d" / "f").write_bytes(b"\0\xff")
        (source / "l").symlink_to("d/f")
        data = b"".join(pack(source, Summary()))
        await unpack_bytes(data, yard.target)
        assert (yard.target / "l").read_bytes() == b"\0\xff"

    def test_links_are_not_followed_and_pipes_not_opened(self, yard: Yard) -> None:
        source = yard.place / "source"
        source.mkdir()
        (source / "l").symlink_to(yard.beside / "flag")
        os.mkfifo(source / "pipe")
        summary = Summary()
        data = b"".join(pack(source, summary))
        assert b"canary" not in data
        assert summary.skipped == [("pipe", "neither a file nor a directory")]

    def test_a_file_that_shrinks_is_padded_to_the_promised_size(self, yard: Yard) -> None:
        source = yard.place / "source"
        source.write_bytes(bytes(10))
        chunks = pack(source, Summary())
        next(chunks)
        os.truncate(source, 4)
        assert b"".join(chunks) == bytes(10) + bytes((END,))
