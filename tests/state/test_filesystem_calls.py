"""What the filesystem of the pool would do for anybody who asks, and does not for a sandbox."""

from __future__ import annotations

import json

import pytest

from cloister import Volume

from .conftest import WALL

# Each as a program inside would ask, of a directory that it owns. The second one makes a subvolume
# and says which quota groups it is in: none.
ASK = r"""
import ctypes, errno, fcntl, json, os, struct
os.chdir("/mnt/volume")
here = os.open(".", os.O_RDONLY)
answers = {}
def ask(name, call, argument):
    try:
        fcntl.ioctl(here, call, argument)
        answers[name] = "done"
    except OSError as error:
        answers[name] = errno.errorcode[error.errno]
named = bytearray(4096)
named[8:13] = b"plain"
ask("subvolume", 0x5000940E, named)
groups = ctypes.create_string_buffer(72)
named = bytearray(4096)
struct.pack_into("=qQQQQ", named, 0, 0, 0, 4, 72, ctypes.addressof(groups))
named[56:60] = b"free"
ask("free subvolume", 0x50009418, named)
ask("write out", 0x9408, 0)
ask("filesystem", 0x8400941F, bytearray(1024))
ask("subvolume's name", 0x81F8943C, bytearray(504))
with open("one", "w+b") as one, open("two", "wb") as two:
    one.write(bytes(65536))
    one.flush()
    try:
        fcntl.ioctl(two, 0x40049409, one.fileno())
        answers["clone"] = "done"
    except OSError as error:
        answers["clone"] = errno.errorcode[error.errno]
answers["names"] = sorted(os.listdir("."))
print(json.dumps(answers))
"""


@pytest.mark.parametrize("profile", ["default", "root"])
async def test_no_subvolume_is_made_inside_and_no_quota_escaped(
    make, store, driver, profile
) -> None:
    await Volume.create("volume", "unlimited")
    async with make(volumes=["volume:/mnt/volume"], profile=profile) as sandbox:
        result = await sandbox.run(["python3", "-c", ASK])
    answers = json.loads(result.check().stdout)
    # A machine's volume is a disk with a filesystem of its own, whatever that lies in.
    clones = driver == "btrfs" and WALL != "microvm"
    assert answers.pop("clone") == ("done" if clones else "ENOTSUP")
    assert answers.pop("names") == ["one", "two"]
    assert set(answers.values()) == {"ENOTTY"}, answers
