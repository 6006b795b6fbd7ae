"""XFR: files between host and sandbox, while the inside does its worst with paths and links."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

from cloister.errors import CloisterError, FileError, NotFound, RequestError
from cloister.model import Mount
from cloister.verify.arena import Arena
from cloister.verify.case import case, not_testable

# Register the rest of the area.
from cloister.verify.cases import xfr_parcel as xfr_parcel
from cloister.verify.cases import xfr_streams as xfr_streams
from cloister.verify.cases.started import in_time, start_probe

not_testable(
    "XFR-12",
    "it is about `cloister serve`, which has names in headers as percent-encoded text only; here "
    "they travel as bytes (XFR-08)",
)


async def settled(work: Awaitable[Any]) -> Any:
    """Return the value, or the error of our tree."""
    try:
        return await in_time("a transfer", work)
    except CloisterError as error:
        return error


@case("XFR-01", "download paths that climb, double slashes, encodings, NUL", "critical")
async def climbing_paths(arena: Arena) -> None:
    flag = str(arena.canary.flag)
    async with arena.sandbox() as sandbox:
        paths = [
            flag,
            f"/..{flag}",
            f"/workspace/../../../..{flag}",
            f"//{flag}",
            f"/workspace/..//..//.{flag}",
            "/%2e%2e" + flag,
            "/workspace/..%2f..%2f" + flag.replace("/", "%2f"),
            "/workspace/..\\..\\" + flag.replace("/", "\\"),
            os.fsdecode(b"/workspace/\xc0\xae\xc0\xae" + os.fsencode(flag)),
            f"/proc/self/root{flag}",
            f"/proc/1/root{flag}",
            f"/proc/self/cwd/../..{flag}",
        ]
        for path in paths:
            answer = await settled(sandbox.files.read(path))
            arena.expect(isinstance(answer, NotFound | FileError), f"{path} gave {answer!r}")
        for path in (f"/workspace/x\0{flag}", flag.lstrip("/"), "../" * 9 + flag, ""):
            answer = await settled(sandbox.files.read(path))
            arena.expect(isinstance(answer, RequestError), f"{path!r} gave {answer!r}")
        # The twin: the very same paths lead to the sandbox's own file once there is one.
        await sandbox.files.write(flag, "inside")
        for path in (*paths[:5], paths[9]):
            answer = await settled(sandbox.files.read(path))
            arena.expect(answer == b"inside", f"{path} gave {answer!r} inside")
        shadow = await settled(sandbox.files.read("/etc/shadow"))
        arena.expect(isinstance(shadow, CloisterError), "the sandbox has an /etc/shadow")


@case("XFR-02", "download links that point to absolute host paths", "critical")
async def links_to_host(arena: Arena) -> None:
    flag = str(arena.canary.flag)
    targets = [flag, f"/proc/self/root{flag}", f"/proc/1/root{flag}", f"../../../..{flag}"]
    async with arena.sandbox() as sandbox:
        await sandbox.files.write("/workspace/own", "inside")
        await sandbox.run(["/bin/ln", "-s", "/workspace/own", "/workspace/honest"])
        arena.expect(await sandbox.files.read("/workspace/honest") == b"inside", "a link is dead")
        with tempfile.TemporaryDirectory() as place:
            for number, target in enumerate(targets):
                link = f"/workspace/l{number}"
                await sandbox.run(["/bin/ln", "-s", target, link])
                answer = await settled(sandbox.files.read(link))
                arena.expect(isinstance(answer, CloisterError), f"{target} gave {answer!r}")
                answer = await settled(sandbox.files.copy_out(link, f"{place}/{number}"))
                arena.expect(isinstance(answer, CloisterError), f"{target} copied: {answer!r}")
                shown = await sandbox.files.stat(link, follow=False)
                arena.expect(shown.target == target, f"the link was shown as {shown.target}")
            arena.expect(not os.listdir(place), f"something was copied: {os.listdir(place)}")
            await sandbox.files.copy_out("/workspace/honest", f"{place}/honest")
            arena.expect(Path(place, "honest").read_text() == "inside", "an honest copy failed")


_FLIP = """
def attempt(path, target):
    file, link = path + ".file", path + ".link"
    with open(file, "w") as out:
        out.write("inside")
    os.symlink(target, link)
    os.symlink(target, path)
    ready(True)
    # RENAME_EXCHANGE: at every moment there is something there.
    a, b, link = (os.fsencode(p) for p in (path, file, link))
    while True:
        for _ in range(1000):
            syscall(316, -100, a, -100, b, 2)
        if not (os.path.islink(path) or os.path.islink(file)):
            # An upload has taken the link's place.
            os.symlink(target, path + ".again")
            os.replace(path + ".again", path)
        if not os.path.lexists(file):
            with open(file, "w") as out:
                out.write("inside")
        if not os.path.lexists(path):
            os.symlink(target, path)
"""


@case("XFR-03", "flip a path between file and link while the host copies it", "critical")
async def flipping_path(arena: Arena) -> None:
    flag = str(arena.canary.flag)
    async with arena.sandbox() as sandbox:
        await sandbox.files.make("/workspace/tree")
        flipper, _ = await start_probe(arena, sandbox, _FLIP, "/workspace/tree/p", flag)
        seen: set[str] = set()
        with tempfile.TemporaryDirectory() as place:
            source = Path(place) / "source"
            source.write_text("uploaded")
            for number in range(150):
                answer = await settled(sandbox.files.read("/workspace/tree/p"))
                seen.add("read" if answer in (b"inside", b"uploaded") else type(answer).__name__)
                arena.record(answer if isinstance(answer, bytes) else b"")
                target = f"{place}/{number}"
                await settled(sandbox.files.copy_out("/workspace/tree", target))
                for path in Path(target).rglob("*") if Path(target).exists() else ():
                    arena.expect(not path.is_symlink(), f"a link to {flag} was copied out")
                    arena.record(path.read_bytes())
                await settled(sandbox.files.copy_in(source, "/workspace/tree/p"))
                await settled(sandbox.files.write("/workspace/tree/p", "uploaded"))
        flipper.kill()
        await flipper.wait()
        arena.expect("read" in seen, f"the file was never read, only {seen}")
        arena.expect(bool(seen & {"NotFound", "FileError"}), f"the link was never met: {seen}")


@case("XFR-04", "upload below a parent that is a link to somewhere else", "critical")
async def linked_parents(arena: Arena) -> None:
    canary = str(arena.canary.directory)
    with tempfile.TemporaryDirectory() as place:
        shared, source = Path(place) / "shared", Path(place) / "source"
        shared.mkdir()
        source.write_text("uploaded")
        mounts = [Mount(source=shared, target="/data", mode="write")]
        if await arena.is_host_read_only(shared):
            mounts = []
        async with arena.sandbox(mounts=mounts) as sandbox:
            await sandbox.files.make("/workspace/real")
            await sandbox.run(["/bin/ln", "-s", "/workspace/real", "/workspace/honest"])
            await sandbox.files.write("/workspace/honest/f", "x")
            arena.expect(await sandbox.files.read("/workspace/real/f") == b"x", "a link is dead")
            for folder in ("/workspace", *(mount.target for mount in mounts)):
                for number, target in enumerate((canary, "/proc/1/root", "/proc/self/fd", "/dev")):
                    link = f"{folder}/out{number}"
                    await sandbox.run(["/bin/ln", "-s", target, link])
                    await settled(sandbox.files.write(f"{link}/flag", "planted"))
                    await settled(sandbox.files.append(f"{link}/flag", "planted"))
                    await settled(sandbox.files.copy_in(source, f"{link}/flag"))
                    await settled(sandbox.files.make(f"{link}/made/below"))
                    await settled(sandbox.files.move("/workspace/real/f", f"{link}/flag"))
                    await settled(sandbox.files.remove(f"{link}/flag"))
            names = sorted(os.listdir(arena.canary.directory))
            arena.expect(names == ["flag"], f"beside the flag there is now {names}")
            made = {path.name for path in shared.rglob("*") if not path.is_symlink()}
            arena.expect(not made, f"the shared directory now has {made}")
            for mount in mounts:
                await sandbox.files.write(f"{mount.target}/honest", "x")
                arena.expect((shared / "honest").read_text() == "x", "the shared directory is dead")


_TREE = """
def attempt(flag):
    os.makedirs("/workspace/t/deep/er")
    os.chdir("/workspace/t")
    for name in ("plain", "suid", "noread"):
        with open(name, "w") as out:
            out.write(name)
    os.link("plain", "hard")
    os.symlink("plain", "inside")
    os.symlink(flag, "absolute")
    os.symlink("../../../.." + flag, "climbing")
    os.symlink("deep/er/../../../../tmp", "through")
    os.mkfifo("pipe")
    socket.socket(socket.AF_UNIX).bind("socket")
    special = tried(os.chmod, "suid", 0o6755)
    tried(os.chmod, "deep", 0o1777)
    owner = tried(os.chown, "plain", 12345, 54321)
    device = tried(os.mknod, "null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    return {"suid": special, "owner": owner, "device": device}
"""


@case("XFR-05", "copy out links, hard links, pipes, sockets, set-id files, odd owners", "critical")
async def odd_tree(arena: Arena) -> None:
    async with arena.sandbox(profile="root") as sandbox:
        made = arena.expect_allowed(await arena.attempt(sandbox, _TREE, str(arena.canary.flag)))
        arena.expect(made["suid"] == "ok" and made["owner"] == "ok", f"the tree lacks {made}")
        arena.expect(made["device"] == "EPERM", f"a device node gave {made['device']}")
        with tempfile.TemporaryDirectory() as place:
            target = Path(place) / "out"
            summary = await in_time("a copy", sandbox.files.copy_out("/workspace/t", target))
            found = {str(path.relative_to(target)) for path in target.rglob("*")}
            wanted = {"plain", "suid", "noread", "hard", "inside", "deep", "deep/er"}
            arena.expect(found == wanted, f"copied: {sorted(found)}")
            skipped = {name for name, _ in summary.skipped}
            arena.expect(skipped == {"absolute", "climbing", "through"}, f"left out: {skipped}")
            for path in (target, *target.rglob("*")):
                status = path.lstat()
                arena.expect(status.st_uid == os.geteuid(), f"{path.name} kept a foreign owner")
                if not path.is_symlink():
                    arena.expect(
                        not stat.S_IMODE(status.st_mode) & 0o7022, f"{path.name} kept its mode"
                    )
            arena.expect((target / "inside").read_text() == "plain", "an honest link is dead")
            one = (target / "plain").stat().st_ino, (target / "hard").stat().st_ino
            arena.expect(one[0] != one[1], "a hard link is still one with its other name")
            arena.expect(os.listdir(place) == ["out"], f"beside it: {os.listdir(place)}")


@case("XFR-16", "copy out names that differ by case, normalisation, a dot or a space", "low")
async def colliding_names(arena: Arena) -> None:
    names = ["File", "file", "FILE", "e\u0301", "\u00e9", "dot", "dot.", "dot "]
    names += ["\u00df", "ss", "\u017f", "s"]
    async with arena.sandbox() as sandbox:
        for name in names:
            await sandbox.files.write(f"/workspace/n/{name}", name)
        place = arena.canary.directory / "copies"
        place.mkdir()
        target = place / "out"
        answer = await settled(sandbox.files.copy_out("/workspace/n", target))
        if isinstance(answer, RequestError):
            # A filesystem that folds names: refused, so nothing was overwritten unseen.
            arena.expect("would replace another" in str(answer), f"the copy failed: {answer}")
            return
        arena.expect(answer.files == len(names), f"{answer.files} of {len(names)} were copied")
        for name in names:
            content = (target / name).read_text()
            arena.expect(content == name, f"{name!r} holds the content of {content!r}")
