"""The archives hold what changed, for GNU tar and for whoever stacks image layers."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import subprocess
import tarfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hypothesis import given
from hypothesis import strategies as st

from cloister.store.changes import EntryType, Given, Owners, Skeleton, Stratum, TarStyle, write_tar

if TYPE_CHECKING:
    from conftest import Bench

Tree = dict[bytes, tuple[int, int, bytes, bytes]]


def members(data: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(data), errors="surrogateescape") as archive:
        return {member.name: member for member in archive}


def archived(bench: Bench, **how: Any) -> bytes:
    found = io.BytesIO()
    written = write_tar(found.write, [bench.stratum()], **how)
    data = found.getvalue()
    assert written.size_bytes == len(data)
    assert written.digest == "sha256:" + hashlib.sha256(data).hexdigest()
    return data


def test_the_same_tree_gives_the_same_bytes(bench: Bench) -> None:
    bench.run("mkdir d; echo > d/b; echo > d/a; ln d/a d/c; ln -s x l")
    first = archived(bench)
    assert first == archived(bench)
    assert list(members(first)) == ["d", "d/a", "d/b", "d/c", "l"]
    assert members(first)["d/c"].linkname == "d/a"


def test_an_archive_streams_into_a_pipe_and_gnu_tar_unpacks_it(
    bench: Bench, tmp_path: Path
) -> None:
    bench.run(
        "mkdir -m 750 d; head -c 3000000 /dev/urandom > d/big; ln d/big d/same; mkfifo p;"
        "long=$(printf '%0200d' 0); mkdir $long; echo x > $long/$long; ln -s $long/$long link;"
        "touch -d @-5 old; touch -d @9000000000 new; chmod 4711 old"
    )
    reader, writer = os.pipe()

    def write() -> None:
        write_tar(writer, [bench.stratum()])
        os.close(writer)

    thread = threading.Thread(target=write)
    thread.start()
    subprocess.run(["tar", "-xpf", "-", "-C", str(tmp_path)], stdin=reader, check=True)
    thread.join()
    os.close(reader)
    for path in bench.upper.rglob("*"):
        copy = tmp_path / path.relative_to(bench.upper)
        old, new = path.lstat(), copy.lstat()
        assert (old.st_mode, old.st_size) == (new.st_mode, new.st_size) or path.is_dir(), path
        if not path.is_symlink():
            assert int(old.st_mtime // 1) == int(new.st_mtime // 1), path
        if path.is_file():
            assert path.read_bytes() == copy.read_bytes()
    assert (tmp_path / "d" / "big").samefile(tmp_path / "d" / "same")


def test_a_sparse_file_of_terabytes_takes_kilobytes(bench: Bench, tmp_path: Path) -> None:
    bench.run(
        "truncate -s 4T hole; truncate -s 4T end; printf data | dd of=hole bs=4 seek=$((2**38))"
        " conv=notrunc status=none; printf x >> end; truncate -s 1M nothing"
    )
    data = archived(bench)
    assert len(data) < 100_000
    found = members(data)
    assert [found[name].size for name in ("hole", "end", "nothing")] == [2**42, 2**42 + 1, 2**20]
    subprocess.run(["tar", "-xf", "-", "-C", str(tmp_path)], input=data, check=True)
    with open(tmp_path / "hole", "rb") as file:
        file.seek(2**40)
        assert file.read(5) == b"data\0"
    assert (tmp_path / "end").stat().st_size == 2**42 + 1


def test_owners_and_attributes_are_those_of_the_inside(bench: Bench) -> None:
    bench.edit([("write", b"f", b"x"), ("xattr", b"f", b"a=b\n\xff")])
    owners = Owners(((os.getuid(), 3_000_000, 1),), ((os.getgid(), 7, 1),))
    data = archived(bench, owners=owners)
    member = members(data)["f"]
    assert (member.uid, member.gid) == (3_000_000, 7)
    assert b" SCHILY.xattr.user.test=a=b\n\xff\n" in data


def test_unchanged_directories_above_a_change_keep_their_modes(bench: Bench) -> None:
    (bench.lower / "d" / "e").mkdir(parents=True)
    (bench.lower / "other").mkdir()
    os.chmod(bench.lower / "d", 0o710)
    bench.run("echo > d/e/f; touch other")
    found = members(archived(bench))
    assert list(found) == ["d", "d/e", "d/e/f"]
    assert found["d"].mode == 0o710


def test_directories_above_an_overlay_of_its_own_are_not_mixed_up(bench: Bench) -> None:
    """The parents of such a place may not be in the root's upper, and so not in the walk."""
    for name in ("upper", "lower"):
        (bench.directory / name).mkdir()
    (bench.directory / "upper" / "f").write_text("x")
    (bench.lower / "abc" / "sub").mkdir(parents=True)
    bench.run("chmod 700 abc/sub; chmod 755 abc/sub")
    strata = [
        bench.stratum(),
        Stratum("/usr/local", bench.directory / "upper", (bench.directory / "lower",)),
    ]
    found = io.BytesIO()
    write_tar(found.write, strata)
    assert list(members(found.getvalue())) == ["usr/local", "usr/local/f"]


def test_a_tree_is_cut_out_with_names_of_its_own(bench: Bench) -> None:
    bench.run("mkdir -p work/d; echo > work/d/a; ln work/d/a work/d/b; echo > else")
    found = members(archived(bench, below="/work"))
    assert list(found) == ["d", "d/a", "d/b"]
    assert found["d/b"].linkname == "d/a"


def test_a_layer_says_what_is_gone(bench: Bench) -> None:
    (bench.lower / "d" / "old").mkdir(parents=True)
    (bench.lower / "gone").write_text("x")
    (bench.lower / "d" / "same").write_text("same\n")
    bench.run("rm gone; rm -r d; mkdir d; echo same > d/same")
    data = archived(bench, style=TarStyle.OCI)
    assert list(members(data)) == ["d", "d/.wh..wh..opq", "d/same", ".wh.gone"]


def test_a_layer_leaves_out_names_that_would_delete(bench: Bench) -> None:
    (bench.lower / "etc").mkdir()
    bench.run("echo > etc/.wh.passwd; ln etc/.wh.passwd etc/z; mkdir etc/.wh..wh..opq")
    found = io.BytesIO()
    written = write_tar(found.write, [bench.stratum()], style=TarStyle.OCI)
    assert [path for path, _ in written.left_out] == [b"/etc/.wh..wh..opq", b"/etc/.wh.passwd"]
    assert list(members(found.getvalue())) == ["etc", "etc/z"]
    assert members(found.getvalue())["etc/z"].isreg()
    # The same names are no danger in a plain archive.
    assert "etc/.wh.passwd" in members(archived(bench))


def test_what_is_left_out_is_said(bench: Bench) -> None:
    (bench.lower / "gone").write_text("x")
    bench.edit([("socket", b"s"), ("remove", b"gone")])
    written = write_tar(io.BytesIO().write, [bench.stratum()])
    assert written.left_out == [
        (b"/gone", "deleted"),
        (b"/s", "a socket has no place in an archive"),
    ]


def test_given_directories_are_in_a_layer_only_above_changes(bench: Bench) -> None:
    bench.run("mkdir -m 700 workspace opt; echo > workspace/f")
    directory = Given(EntryType.DIRECTORY, 0o700)
    skeleton = Skeleton({b"/workspace": directory, b"/opt": directory, b"/srv": directory})
    data = archived(bench, skeleton=skeleton, style=TarStyle.OCI)
    assert list(members(data)) == ["workspace", "workspace/f"]


@given(st.data())
def test_layers_on_top_of_what_was_give_what_is(
    make_bench: Callable[[], Bench], edits: Any, data: st.DataObject
) -> None:
    bench = make_bench()
    bench.edit(data.draw(edits))
    before = unmarked(bench.read())
    bench.layer()
    bench.edit(data.draw(edits))
    after = unmarked(bench.read())
    if any(b"/.wh." in path for path in (*before, *after)):
        return
    found = io.BytesIO()
    write_tar(found.write, [bench.stratum()], style=TarStyle.OCI)
    assert stacked(before, found.getvalue()) == after
    found = io.BytesIO()
    write_tar(found.write, [bench.stratum()])
    plain = stacked(before, found.getvalue())
    assert {path: plain[path] for path in after} == after


def unmarked(tree: Tree) -> Tree:
    return {path: (kind, mode, data, b"") for path, (kind, mode, data, _) in tree.items()}


def stacked(before: Tree, data: bytes) -> Tree:
    """Put a layer on a tree the way the OCI image specification says."""
    tree = dict(before)
    mine: set[bytes] = set()
    with tarfile.open(fileobj=io.BytesIO(data), errors="surrogateescape") as archive:
        for member in archive:
            path = b"/" + os.fsencode(member.name)
            above, _, name = path.rpartition(b"/")
            if name == b".wh..wh..opq":
                for old in [p for p in tree if p.startswith(above + b"/") and p not in mine]:
                    del tree[old]
            elif name.startswith(b".wh."):
                remove(tree, above + b"/" + name[4:])
            else:
                place(tree, path, member, archive)
                mine.add(path)
    return tree


def remove(tree: Tree, path: bytes) -> None:
    assert path in tree
    for old in [p for p in tree if p == path or p.startswith(path + b"/")]:
        del tree[old]


def place(tree: Tree, path: bytes, member: tarfile.TarInfo, archive: tarfile.TarFile) -> None:
    if path in tree and not (member.isdir() and tree[path][0] == stat.S_IFDIR):
        remove(tree, path)
    if member.islnk():
        tree[path] = tree[b"/" + os.fsencode(member.linkname)]
    elif member.issym():
        tree[path] = (stat.S_IFLNK, 0o777, os.fsencode(member.linkname), b"")
    elif member.isdir():
        tree[path] = (stat.S_IFDIR, member.mode, b"", b"")
    elif member.isfifo():
        tree[path] = (stat.S_IFIFO, member.mode, b"", b"")
    else:
        content = archive.extractfile(member)
        assert content is not None
        tree[path] = (stat.S_IFREG, member.mode, content.read(), b"")
