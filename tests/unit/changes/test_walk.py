"""Every kind of change that overlayfs can hold is found, and nothing else."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cloister.errors import GuestError, RequestError
from cloister.model.changes import Aspect, Change, ChangeKind, EntryType
from cloister.store.changes import Given, Owners, Skeleton, Stratum, summary, walk

if TYPE_CHECKING:
    from conftest import Bench

ADDED, CHANGED, DELETED = ChangeKind


def shown(bench: Bench, **how: bool) -> list[str]:
    return [change.display() for change in walk([bench.stratum()], **how)]


def by_path(*strata: Stratum) -> dict[str, Change]:
    return {os.fsdecode(change.path): change for change in walk(strata)}


def test_an_untouched_sandbox_has_no_changes(bench: Bench) -> None:
    (bench.lower / "etc").mkdir()
    bench.run("true")
    assert shown(bench) == []


def test_added_changed_and_deleted_files_are_told_apart(bench: Bench) -> None:
    for name in ("same", "edited", "gone"):
        (bench.lower / name).write_text("old\n")
    bench.run("echo new > edited; rm gone; mkdir d; echo x > d/new; cat same")
    assert shown(bench) == ["A /d/", "A /d/new", "C /edited  (content)", "D /gone"]


def test_a_file_copied_up_and_the_same_is_no_change(bench: Bench) -> None:
    (bench.lower / "d").mkdir()
    (bench.lower / "d" / "f").write_text("x" * 3_000_000)
    bench.run("chmod 600 d/f; chmod 644 d/f; touch d/f; chmod 700 d; chmod 755 d")
    assert (bench.upper / "d" / "f").exists()
    assert shown(bench) == []


def test_one_byte_in_a_copied_up_file_is_a_change(bench: Bench) -> None:
    (bench.lower / "f").write_bytes(b"x" * 3_000_000)
    bench.run("printf y | dd of=f bs=1 seek=2999999 conv=notrunc status=none")
    assert shown(bench) == ["C /f  (content)"]


def test_changes_of_mode_link_and_xattrs_alone_are_named(bench: Bench) -> None:
    for name in ("mode", "xattr", "d"):
        (bench.lower / name).mkdir() if name == "d" else (bench.lower / name).write_text("x")
    (bench.lower / "link").symlink_to("a")
    bench.run(
        "chmod 600 mode; ln -sfn b link; chmod 2700 d;"
        'python3 -c \'import os; os.setxattr("xattr", "user.a", b"1")\''
    )
    assert shown(bench) == [
        "C /d/  (mode, 0755 to 2700)",
        "C /link -> b  (link)",
        "C /mode  (mode, 0644 to 0600)",
        "C /xattr  (xattrs)",
    ]


def test_a_change_of_owner_is_named_in_the_ids_of_the_inside(tmp_path: Path) -> None:
    shutil.copy("/etc/passwd", tmp_path)
    shutil.copystat("/etc", tmp_path)
    uid, gid = os.getuid(), os.getgid()
    if uid == 0:
        uid, gid = 1000, 1001
        os.chown(tmp_path / "passwd", uid, gid)
    owners = Owners(((0, 5000, 65_536),), ((0, 7000, 65_536),))
    stratum = Stratum("/etc", tmp_path, (Path("/etc"),))
    found = {change.path: change for change in walk([stratum], owners=owners)}
    assert found[b"/etc/passwd"].aspects == {Aspect.OWNER}
    assert (found[b"/etc/passwd"].uid, found[b"/etc/passwd"].gid) == (uid + 5000, gid + 7000)


def test_an_id_outside_every_range_is_nobody() -> None:
    owners = Owners(((1000, 0, 10),), ((1000, 0, 10),))
    assert owners.inside(1009, 1010) == (9, 65_534)
    assert Owners().inside(7, 8) == (7, 8)


def test_a_program_inside_cannot_forge_the_marks_of_the_overlay(bench: Bench) -> None:
    (bench.lower / "d").mkdir()
    (bench.lower / "d" / "kept").write_text("x")
    bench.run(
        'python3 -c \'import os; os.setxattr("d", "user.overlay.opaque", b"y");'
        'open("w", "w"); os.setxattr("w", "user.overlay.whiteout", b"y")\''
    )
    assert shown(bench) == ["C /d/  (xattrs)", "A /w"]


def test_a_directory_removed_and_made_again_is_compared_with_the_old_one(bench: Bench) -> None:
    (bench.lower / "d" / "sub").mkdir(parents=True)
    for name in ("same", "other", "gone", "sub/deep"):
        (bench.lower / "d" / name).write_text("old\n")
    bench.run(
        "rm -r d; mkdir d; echo old > d/same; echo new > d/other; mkdir d/sub; echo > d/sub/n"
    )
    assert shown(bench) == [
        "D /d/gone",
        "C /d/other  (content)",
        "D /d/sub/deep",
        "A /d/sub/n",
    ]


def test_a_directory_becomes_a_file_and_a_file_a_directory(bench: Bench) -> None:
    (bench.lower / "d" / "sub").mkdir(parents=True)
    (bench.lower / "d" / "sub" / "f").write_text("x")
    (bench.lower / "f").write_text("x")
    bench.run("rm -r d; echo > d; rm f; mkdir f; echo > f/inner; chmod 755 d")
    assert shown(bench) == ["C /d  (type, was directory)", *_became(bench), "A /f/inner"]
    assert shown(bench, deep=True)[1:3] == ["D /d/sub/", "D /d/sub/f"]


def _became(bench: Bench) -> list[str]:
    return [line for line in shown(bench) if line.startswith("C /f/")]


def test_a_file_that_became_a_directory_and_a_file_again_is_no_change(bench: Bench) -> None:
    (bench.lower / "f").write_text("x\n")
    bench.run("rm f; mkdir f; rmdir f; echo x > f")
    assert shown(bench) == []


def test_a_deleted_directory_is_one_change_or_all_that_was_in_it(bench: Bench) -> None:
    (bench.lower / "d" / "sub").mkdir(parents=True)
    (bench.lower / "d" / "sub" / "f").write_text("x")
    bench.run("rm -r d")
    assert shown(bench) == ["D /d/"]
    assert shown(bench, deep=True) == ["D /d/", "D /d/sub/", "D /d/sub/f"]


def test_a_whiteout_of_what_was_never_there_is_no_change(tmp_path: Path) -> None:
    (tmp_path / "upper").mkdir()
    (tmp_path / "lower").mkdir()
    os.mknod(tmp_path / "upper" / "gone", stat.S_IFCHR, 0)
    assert list(walk([Stratum("/", tmp_path / "upper", (tmp_path / "lower",))])) == []


@pytest.mark.parametrize("marked", [True, False])
def test_an_empty_file_is_a_whiteout_only_when_it_is_marked(tmp_path: Path, marked: bool) -> None:
    for name in ("upper", "lower"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").write_text("" if name == "upper" else "x")
    if marked:
        os.setxattr(tmp_path / "upper" / "f", "user.overlay.whiteout", b"y")
    (change,) = walk([Stratum("/", tmp_path / "upper", (tmp_path / "lower",))])
    assert change.kind is (DELETED if marked else CHANGED)


def test_whiteouts_and_opaque_directories_in_lowers_are_obeyed(bench: Bench) -> None:
    for name in ("a", "b"):
        (bench.lower / name).mkdir()
        (bench.lower / name / "f").write_text("image\n")
    bench.run("rm a/f; rm -r b; mkdir b; echo layer > b/g")
    bench.layer()
    bench.run("echo image > a/f; echo image > b/f; rm b/g")
    assert shown(bench) == ["A /a/f", "A /b/f", "D /b/g"]
    assert [change.display() for change in walk([bench.whole()])] == []


def test_sealed_layers_are_part_of_what_changed(bench: Bench) -> None:
    (bench.lower / "f").write_text("1\n")
    (bench.lower / "d").mkdir()
    (bench.lower / "d" / "x").write_text("1\n")
    bench.run("echo 2 > f; echo > new; rm -r d")
    bench.layer()
    bench.run("rm new; echo > newer; mkdir d")
    assert shown(bench) == ["A /d/", "D /new", "A /newer"]
    assert [c.display() for c in walk([bench.whole()])] == ["D /d/x", "C /f  (content)", "A /newer"]


def test_hard_links_name_the_first_of_them(bench: Bench) -> None:
    (bench.lower / "old").write_text("x")
    bench.run("echo > b; ln b a; ln b c; ln old d")
    found = by_path(bench.stratum())
    assert [found[name].hard_link for name in ("/a", "/b", "/c")] == [None, b"/a", b"/a"]
    assert found["/d"].hard_link is None
    assert "/old" not in found
    assert str(summary(found.values())) == "4 added, 0 changed, 0 deleted, 2B in files"


def test_sparse_files_of_any_size_are_compared_at_once(bench: Bench) -> None:
    for name in ("same", "other"):
        with open(bench.lower / name, "wb") as file:
            file.truncate(2**43)
            file.seek(2**42)
            file.write(b"data")
    bench.run(
        "for f in same other; do rm $f; truncate -s $((2**43)) $f;"
        "printf data | dd of=$f bs=4 seek=$((2**40)) conv=notrunc status=none; done;"
        "printf x | dd of=other bs=1 seek=$((2**42 + 4096)) conv=notrunc status=none"
    )
    assert shown(bench) == ["C /other  (content)"]


def test_links_pipes_and_sockets_are_listed_and_never_opened(bench: Bench) -> None:
    for name in ("f", "p"):
        (bench.lower / name).write_text("x")
    bench.edit(
        [
            ("symlink", b"abs", b"/etc/shadow"),
            ("remove", b"f"),
            ("fifo", b"f"),
            ("remove", b"p"),
            ("symlink", b"p", b"/dev/zero"),
            ("socket", b"s"),
        ]
    )
    found = by_path(bench.stratum())
    assert found["/abs"].target == b"/etc/shadow"
    assert [found[name].type for name in ("/f", "/p", "/s")] == [
        EntryType.FIFO,
        EntryType.LINK,
        EntryType.SOCKET,
    ]


def test_an_overlay_inside_another_shows_its_own_changes_in_order(bench: Bench) -> None:
    usr = Path(bench.directory / "usr")
    for name in ("upper", "lower"):
        (usr / name / "bin").mkdir(parents=True)
    (usr / "upper" / "bin" / "tool").write_text("x")
    bench.run("mkdir -p usr/hidden usr.d; echo > a; echo > z")
    strata = [Stratum("/usr", usr / "upper", (usr / "lower",)), bench.stratum()]
    paths = [os.fsdecode(change.path) for change in walk(strata)]
    assert paths == ["/a", "/usr/bin/tool", "/usr.d", "/z"]
    below = [os.fsdecode(change.path) for change in walk(strata, below="/usr/bin")]
    assert below == ["/usr/bin/tool"]


def test_only_the_tree_that_was_asked_for_is_walked(bench: Bench) -> None:
    bench.run("mkdir -p work/a workshop; echo > work/a/f; echo > workshop/g")
    paths = [change.path for change in walk([bench.stratum()], below="/work")]
    assert paths == [b"/work", b"/work/a", b"/work/a/f"]
    with pytest.raises(RequestError):
        next(walk([bench.stratum()], below="/work/../etc"))


SKELETON = Skeleton(
    {
        b"/home": Given(EntryType.DIRECTORY, 0o755),
        b"/home/user": Given(EntryType.DIRECTORY, 0o755),
        b"/bin": Given(EntryType.LINK, 0o777, target=b"usr/bin"),
        b"/opt": Given(EntryType.DIRECTORY, 0o755),
    }
)


def test_what_every_sandbox_is_given_is_no_change(bench: Bench) -> None:
    bench.run("mkdir -p home/user opt; ln -s usr/bin bin; echo > home/user/f")
    assert [c.display() for c in walk([bench.stratum()], SKELETON)] == ["A /home/user/f"]


def test_what_is_not_as_it_was_given_is_a_change(bench: Bench) -> None:
    bench.run("mkdir -p home/user; ln -s elsewhere bin; chmod 700 home/user")
    assert [c.display() for c in walk([bench.stratum()], SKELETON)] == [
        "C /bin -> elsewhere  (link)",
        "C /home/user/  (mode, 0755 to 0700)",
        "D /opt/",
    ]


def test_an_open_descriptor_is_an_upper_too(bench: Bench) -> None:
    bench.run("echo > f")
    handle = os.open(bench.upper, os.O_PATH | os.O_DIRECTORY)
    try:
        found = list(walk([Stratum("/", handle, (bench.lower,))]))
    finally:
        os.close(handle)
    assert [change.path for change in found] == [b"/f"]


def test_trees_deeper_than_any_path_are_walked(bench: Bench) -> None:
    bench.run('n=$(printf "%0100d" 0); for i in $(seq 300); do mkdir $n; cd $n; done; echo > f')
    before = len(os.listdir("/proc/self/fd"))
    found = list(walk([bench.stratum()]))
    assert len(found) == 301
    assert len(found[-1].path) == 300 * 101 + 2
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_path_beyond_all_reason_ends_the_walk(bench: Bench) -> None:
    bench.run(
        'python3 -c \'import os\nfor _ in range(1100): os.mkdir("d" * 250); os.chdir("d" * 250)\''
    )
    with pytest.raises(GuestError, match="deep"):
        list(walk([bench.stratum()]))
