"""The host writes and reads exactly the bytes of wire/golden.txt; the tests of cell do the same."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cloister.errors import ProtocolViolation
from cloister.runtime.plan import (
    WHOLE,
    Directory,
    DiskPlan,
    GroupLimit,
    HostMount,
    IdRange,
    Kernel,
    Layer,
    Plan,
    Room,
)
from cloister.sandbox import entries, parcel
from cloister.wire import (
    FIRST_OF_GUEST,
    Accepted,
    Asked,
    Assembler,
    Close,
    Credit,
    Data,
    Exited,
    Failed,
    Held,
    Hello,
    Message,
    Pong,
    Refused,
    Started,
    decode_message,
)
from cloister.wire.messages import (
    Flag,
    Operation,
    Reach,
    encode_answer,
    encode_close,
    encode_credit,
    encode_data,
    encode_dial,
    encode_file,
    encode_hold,
    encode_ping,
    encode_proceed,
    encode_renew,
    encode_resize,
    encode_signal,
    encode_start,
    encode_strings,
)

ROOM = Room(
    hostname="cell",
    limits=(GroupLimit(0, "memory.limit_in_bytes", "1024"), GroupLimit(255, "pids.max", "2")),
    disk_bytes=1 << 31,
    inodes=200_000,
    shm_bytes=1 << 26,
    layers=(
        Layer(("/usr",), "usr", True, False),
        Layer(("/opt", "/srv/lower"), "opt/a b", False, True),
        Layer(("/srv/image",), "", False, True),
    ),
    links=(("bin", "usr/bin"),),
    directories=(Directory("workspace", 1000, 1001, 0o755),),
    masks=("/proc/kcore",),
    rlimits=((4, 0, 0), (7, 4096, 65_536)),
    open_files=1024,
    bounding=1,
    guest_capabilities=2,
    root_capabilities=4,
    allow_ptrace=False,
    deny_set_id_bits=True,
    landlock=True,
    egress=True,
)
PLAN = Plan(
    room=ROOM,
    uid_map=(IdRange(0, 300_000, 65_536),),
    gid_map=(IdRange(0, 300_000, 1000), IdRange(1000, 365_536, 64_536)),
    allow_setgroups=True,
    init_uid=0,
    init_gid=1,
    mounts=(
        HostMount(b"/srv/\xff", "data", False, None),
        HostMount(b"/srv/w", "w", True, ((1, 300_001), (2, 300_002))),
    ),
    stream_transport=True,
)

FILE_DETAILS: dict[str, Any] = {
    "other": b"/b",
    "mode": 0o640,
    "flags": Flag.REPLACE | Flag.PARENTS,
    "offset": 1 << 40,
    "length": 7,
}

WRITTEN: dict[str, bytes] = {
    "to-guest-start": encode_start(
        1,
        uid=1000,
        gid=1001,
        pty=None,
        tell=False,
        stdin=True,
        cwd=b"/workspace",
        argv=(b"/bin/echo", b"", b"\xff"),
        env=encode_strings((b"A=1",)),
    ),
    "to-guest-start-terminal": encode_start(
        2,
        uid=0,
        gid=0,
        pty=(24, 80),
        tell=True,
        stdin=False,
        cwd=b"/",
        argv=(b"sh",),
        env=encode_strings(()),
    ),
    "to-guest-signal-process": encode_signal(3, 1, Reach.PROCESS),
    "to-guest-signal-group": encode_signal(3, 15, Reach.GROUP),
    "to-guest-signal-tree": encode_signal(3, 9, Reach.TREE),
    "to-guest-resize": encode_resize(4, 50, 132),
    "to-guest-dial": encode_dial(5, 8080),
    "to-guest-file": encode_file(6, Operation.MOVE, uid=1000, gid=1000, path=b"/a", **FILE_DETAILS),
    "to-guest-data": encode_data(7, 0, b"in\x00\xff"),
    "to-guest-data-empty": encode_data(7, 0, b""),
    "to-guest-close": encode_close(8, 0),
    "to-guest-credit": encode_credit(9, 2, 65_536),
    "to-guest-ping": encode_ping(0xFFFF_FFFF),
    "to-guest-hold": encode_hold(10),
    "to-guest-proceed": encode_proceed(11),
    "to-guest-renew": encode_renew(12, 3, b"\0\xff", "sb-1"),
    "to-guest-answer": encode_answer(FIRST_OF_GUEST, b"a\0\xff"),
    "plan": PLAN.encoded,
    "plan-drill": replace(
        PLAN,
        mounts=(HostMount(b"/srv/volume", "v", True, WHOLE),),
        disk=DiskPlan("/srv/disk", ("/srv/newer", "/srv/older"), True, False),
        kernel=Kernel(
            ("/runsc", "run"),
            (("runsc", "/usr/bin/runsc"),),
            (("c.json", b"{}"),),
            5,
            (("image", "/run/i"),),
        ),
        stream_transport=False,
        drill=("pause", "root"),
    ).encoded,
}

READ: dict[str, tuple[int, Message]] = {
    "from-guest-hello": (0, Hello(3, b"uid=0\n")),
    "from-guest-started": (1, Started(42)),
    "from-guest-exited": (2, Exited(3, 0, 0, 4, 5, 6, 7, 8, 9)),
    "from-guest-exited-signal": (3, Exited(0, 9, 3, 0, 0, (1 << 64) - 1, 0, 0, (1 << 32) - 1)),
    "from-guest-failed": (4, Failed(2, "execute", b"/no/\xff")),
    "from-guest-data": (5, Data(1, b"out\x00\xff")),
    "from-guest-data-empty": (5, Data(2, b"")),
    "from-guest-close": (6, Close(255)),
    "from-guest-credit": (7, Credit(0, 262_144)),
    "from-guest-pong": (0xFFFF_FFFF, Pong()),
    "from-guest-held": (10, Held()),
    "from-guest-accepted": (FIRST_OF_GUEST, Accepted(0, 0xC612_0001, 443)),
    "from-guest-asked": (FIRST_OF_GUEST + 1, Asked(b"q\0\xff")),
    "from-guest-refused": (FIRST_OF_GUEST + 2, Refused(b"r\0\xff")),
}
# What ends with bytes of any number.
TO_THE_END = ("from-guest-data", "from-guest-asked", "from-guest-refused")

PARCEL = (
    parcel.Entry(parcel.DIRECTORY, 0o755, 1_700_000_000_000_000_001, 0, b"", b""),
    parcel.Entry(parcel.DIRECTORY, 0o700, -1, 0, b"d", b""),
    parcel.Entry(parcel.FILE, 0o640, 0, 3, b"d/f\xff", b""),
    parcel.Entry(parcel.LINK, 0o777, 0, 0, b"d/l", b"../d"),
)
PARCEL_CONTENT = b"\x00\xffz"

OTHERS = {
    *("to-launcher-configure-root", "to-launcher-configure-ranges", "to-launcher-configure-single"),
    *("to-launcher-launch", "to-launcher-destroy", "to-launcher-freeze"),
    *(
        "from-launcher-awake",
        "from-launcher-ready",
        "from-launcher-launched",
        "from-launcher-failed",
    ),
    *("from-launcher-gone", "from-launcher-frozen"),
    *("parcel-tree", "parcel-file", "record", "change"),
}


def test_every_golden_line_is_checked_here(golden: dict[str, bytes]) -> None:
    assert set(golden) == WRITTEN.keys() | READ.keys() | OTHERS


@pytest.mark.parametrize("name", WRITTEN)
def test_what_the_host_writes_is_golden(golden: dict[str, bytes], name: str) -> None:
    assert WRITTEN[name].hex() == golden[name].hex()


@pytest.mark.parametrize("name", READ)
def test_what_the_guest_writes_is_understood(golden: dict[str, bytes], name: str) -> None:
    (frame,) = Assembler().feed(golden[name])
    assert (frame.id, decode_message(frame)) == READ[name]


@pytest.mark.parametrize("name", READ)
def test_one_byte_more_or_less_is_refused(golden: dict[str, bytes], name: str) -> None:
    (frame,) = Assembler().feed(golden[name])
    if "data" not in name and name not in TO_THE_END:
        with pytest.raises(ProtocolViolation):
            decode_message(frame._replace(payload=frame.payload + b"\0"))
    if frame.payload and name not in TO_THE_END:
        with pytest.raises(ProtocolViolation):
            decode_message(frame._replace(payload=frame.payload[:-1]))


def test_a_parcel_is_written_and_read(golden: dict[str, bytes]) -> None:
    written = b"".join(
        parcel.encode_entry(entry) + (PARCEL_CONTENT if entry.size else b"") for entry in PARCEL
    )
    assert (written + bytes((parcel.END,))).hex() == golden["parcel-tree"].hex()
    assert asyncio.run(_read_parcel(golden["parcel-tree"])) == (list(PARCEL), PARCEL_CONTENT)


async def _read_parcel(data: bytes) -> tuple[list[parcel.Entry], bytes]:
    left = [data]

    async def read() -> bytes:
        return left.pop() if left else b""

    source = parcel.Source(read)
    entries, content = [], b""
    while (entry := await source.entry()) is not None:
        entries.append(entry)
        async for chunk in parcel.content(source, entry.size):
            content += chunk
    return entries, content


def test_a_single_file_is_packed_as_golden(golden: dict[str, bytes], tmp_path: Path) -> None:
    path = tmp_path / "any-name"
    path.write_bytes(b"one")
    path.chmod(0o751)
    os.utime(path, ns=(0, 1_234_567_890_123_456_789))
    assert b"".join(parcel.pack(path, parcel.Summary())).hex() == golden["parcel-file"].hex()


def test_a_record_is_understood(golden: dict[str, bytes]) -> None:
    assert entries.parse_entry(golden["record"][4:]) == entries.Entry(
        name="l\udcff",
        kind=entries.Kind.LINK,
        size=9,
        mode=0o777,
        uid=1000,
        gid=1001,
        mtime_ns=-5,
        target="/t",
    )


def test_a_change_is_understood(golden: dict[str, bytes]) -> None:
    length, record = golden["change"][:4], golden["change"][4:]
    assert int.from_bytes(length, "little") == len(record)
    assert record == bytes((entries._READY,)) + b"/"
    assert entries.parse_change(record) is None
    assert entries.parse_change(b"\x01/a") == entries.Change(entries.ChangeKind.CREATED, "/a")
