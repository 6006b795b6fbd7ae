"""Attacks by images: layers that climb, lie or burst, and configurations that ask too much."""

from __future__ import annotations

import json
import tarfile
import time
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any

from cloister.build import LayerLimits, unpack_layer
from cloister.build.stock import Image
from cloister.errors import CloisterError, ImageRefused, RequestError
from cloister.image import LayerFacts
from cloister.store import Store
from cloister.verify.arena import Arena
from cloister.verify.case import NotHeld, case
from cloister.verify.cases.shelter import (
    Entry,
    digest,
    make_tar,
    shell_layer,
    shelter,
    write_layout,
)

_DIRECTORY, _LINK, _HARD = tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE
_FILE = {"content": b"from a layer"}
_LIMITS = LayerLimits(wall_s=60)


def _escapes(outside: Path) -> dict[str, list[Entry]]:
    """Every way out of a layer's directory, to the flag file's place."""
    up = "../" * 12 + str(outside).lstrip("/")
    return {
        "climbing": [(f"{up}/new", _FILE)],
        "climbing in the middle": [(f"a/{up}/new", _FILE)],
        "an extended name": [("plain", {**_FILE, "pax": {"path": f"{up}/new"}})],
        "through an absolute link": [
            ("way", {"type": _LINK, "link": str(outside)}),
            ("way/new", _FILE),
        ],
        "through a relative link": [("way", {"type": _LINK, "link": up}), ("way/new", _FILE)],
        "through two links": [
            ("one", {"type": _LINK, "link": "two"}),
            ("two", {"type": _LINK, "link": str(outside)}),
            ("one/new", _FILE),
        ],
        "over a link to the flag": [
            ("way", {"type": _LINK, "link": str(outside)}),
            ("way/flag", _FILE),
        ],
        "a hard link to the flag": [("got", {"type": _HARD, "link": f"{up}/flag"})],
        "a hard link through a link": [
            ("way", {"type": _LINK, "link": str(outside)}),
            ("got", {"type": _HARD, "link": "way/flag"}),
        ],
        "a removal through a link": [
            ("way", {"type": _LINK, "link": str(outside)}),
            ("way/.wh.flag", {}),
        ],
        "a removal that climbs": [(f"{up}/.wh.flag", {})],
        "hiding through a link": [
            ("way", {"type": _LINK, "link": str(outside)}),
            ("way/.wh..wh..opq", {}),
        ],
    }


_HONEST: list[Entry] = [
    ("a", {"type": _DIRECTORY}),
    ("a/..new", _FILE),
    ("/absolute/new", _FILE),
    ("a/link", {"type": _LINK, "link": "/etc/shadow"}),
    ("a/hard", {"type": _HARD, "link": "a/..new"}),
    ("a/.wh.removed", {}),
]


@case("IMG-01", "a layer with names and links that lead out, and removals through them", "critical")
async def escape_from_a_layer(arena: Arena) -> None:
    outside = arena.canary.directory
    async with shelter(arena) as store:
        before = sorted(path.name for path in outside.iterdir())
        for name, entries in _escapes(outside).items():
            refused = await _refused(_unpacked(store, make_tar(entries)))
            found = sorted(path.name for path in outside.iterdir())
            arena.expect(found == before, f"{name}: the host has {set(found) ^ set(before)}")
            arena.expect(refused, f"{name} was taken")
        facts = await _unpacked(store, make_tar(_HONEST))
        arena.expect(facts.entries >= 5, f"an honest layer gave {facts.entries} entries")


async def _unpacked(
    store: Store, archive: bytes | Iterator[bytes], limits: LayerLimits = _LIMITS
) -> LayerFacts:
    name = digest(archive if isinstance(archive, bytes) else b"made while it is read")
    staging = store.layers.begin(name)
    if staging is None:
        raise NotHeld("a layer that was never kept is there")
    pieces = iter([archive]) if isinstance(archive, bytes) else archive
    try:
        return await unpack_layer(staging.path, pieces, limits=limits)
    finally:
        staging.abort()


async def _refused(attempt: Awaitable[object]) -> bool:
    try:
        await attempt
    except ImageRefused:
        return True
    return False


@case("IMG-02", "an image whose bytes are not those that its documents name", "high")
async def confuse_digests(arena: Arena) -> None:
    honest = make_tar([("file", _FILE)])
    other = make_tar([("file", {"content": b"from somebody else"})])
    changed = bytearray(honest)
    changed[600] ^= 1
    attempts: dict[str, dict[str, Any]] = {
        "one bit": {"stored": [bytes(changed)]},
        "another layer": {"stored": [other]},
        "cut short": {"stored": [honest[:700]]},
        "longer than it says": {"stored": [honest + bytes(512)]},
        "another layer's id in the configuration": {"diff_ids": [digest(other)]},
        "one id too many": {"diff_ids": [digest(honest), digest(other)]},
    }
    async with shelter(arena) as store:
        for number, (name, lies) in enumerate(attempts.items()):
            reference = write_layout(arena.canary.directory / f"lie{number}", [honest], **lies)
            arena.expect(
                await _refused(Image.import_(reference, name="lie")), f"{name}: the image was taken"
            )
            arena.expect(not store.images.list(), f"{name}: an image was kept")
            layers = list((store.driver.root / "layers").iterdir())
            arena.expect(not layers, f"{name}: a layer was kept")
        reference = write_layout(arena.canary.directory / "truth", [honest])
        image = await Image.import_(reference, name="truth")
        arena.expect("truth" in image.names, f"an honest image is {image.names}")


def _endless(size: int) -> Iterator[bytes]:
    yield make_tar([("big", {"size": size})])[:1536].ljust(1536, b"\0")[:512]
    while True:
        yield bytes(2**20)


@case("IMG-03", "layers that are too large, too many entries, too deep, or never end", "high")
async def burst_a_layer(arena: Arena) -> None:
    small = LayerLimits(entries=500, bytes=8 * 2**20, wall_s=30)
    many = make_tar([(f"f{number}", {}) for number in range(600)])
    few = make_tar([(f"f{number}", {}) for number in range(400)])
    deep = make_tar([("d/" * 3000 + "end", _FILE)])
    attempts: dict[str, bytes | Iterator[bytes]] = {
        "entries": many,
        "a file that says it is too large": _endless(2**40),
        "a file that is too large": _endless(16 * 2**20),
        "depth": deep,
    }
    async with shelter(arena) as store:
        for name, archive in attempts.items():
            begun = time.monotonic()
            arena.expect(await _refused(_unpacked(store, archive, small)), f"{name}: taken")
            took = time.monotonic() - begun
            arena.expect(took < 20, f"{name}: refused after {took:.0f} s")
            left = list((store.driver.root / "layers").iterdir())
            arena.expect(not left, f"{name}: something of it is left")
        facts = await _unpacked(store, few, small)
        arena.expect(facts.entries == 400, f"a layer within the limits gave {facts.entries}")


_WHO = """
echo "at $PWD"
while read -r name rest; do
  case $name in Uid:|CapEff:) echo "$name $rest";; esac
done < /proc/self/status
for place in /proc/self/fd/*; do [ -e $place/flag ] && echo "reached $place"; done
[ -r FLAG ] && echo reached
echo "said $SAID"
"""

# What an image may ask for that would be the host's, or more than its user has.
_WISHES: dict[str, dict[str, Any]] = {
    "a directory behind a descriptor": {"WorkingDir": "/proc/self/fd/8"},
    "a directory that climbs": {"WorkingDir": "../../../../.."},
    "a directory behind init": {"WorkingDir": "/proc/1/cwd"},
    "to be root": {"User": "root"},
    "to be number 0": {"User": "0:0"},
    "to be nobody that there is": {"User": "4294967295"},
    "a library before all others": {"Env": ["LD_PRELOAD=FLAG", "BASH_ENV=FLAG", "ENV=FLAG"]},
    "volumes of the host": {"Volumes": {"FLAG": {}, "/etc": {}}},
}


@case("IMG-04", "an image that asks for places, users and variables of the host", "high")
async def ask_too_much(arena: Arena) -> None:
    flag = str(arena.canary.flag)
    layer = shell_layer()
    look = ["/bin/bash", "-c", _WHO.replace("FLAG", flag)]
    async with shelter(arena):
        for number, (name, wishes) in enumerate(_WISHES.items()):
            asked = json.loads(json.dumps(wishes).replace("FLAG", flag))
            reference = write_layout(arena.canary.directory / f"ask{number}", [layer], asked)
            try:
                await Image.import_(reference, name=f"ask{number}")
                async with arena.sandbox(image=f"ask{number}") as sandbox:
                    said = (await sandbox.run(look)).stdout
            except RequestError:
                # Refused in words, at the import or at the start.
                continue
            arena.expect("reached" not in said, f"{name}: the host's flag file is there")
            arena.expect("Uid:" in said and "Uid: 0" not in said, f"{name}: it runs as {said!r}")
            arena.expect("CapEff: 0000000000000000" in said, f"{name}: {said!r}")
        twin = {"WorkingDir": "/srv/app", "User": "1000:1000", "Env": ["SAID=yes"]}
        files = make_tar([("srv/app", {"type": _DIRECTORY})])
        reference = write_layout(arena.canary.directory / "twin", [layer, files], twin)
        await Image.import_(reference, name="twin")
        async with arena.sandbox(image="twin") as sandbox:
            said = (await sandbox.run(look)).stdout
            arena.expect("at /srv/app" in said and "said yes" in said, f"the twin says {said!r}")


@case("IMG-10", "a step of a build reaches for the host's files and network", "high")
async def build_outwards(arena: Arena) -> None:
    context = arena.canary.directory / "context"
    context.mkdir()
    port, flag = arena.far_end.tcp_port, arena.canary.flag
    tries = f"(echo hello > /dev/tcp/127.0.0.1/{port}) 2> /dev/null && echo connected > /reached"
    reads = f'[ -e {flag} ] && echo read > /reached; [ -n "$CANARY" ] && echo $CANARY > /reached'
    (context / "Dockerfile").write_text(
        f"FROM shell\nRUN {tries}; {reads}; echo done > /done\nCOPY file /copied\n"
    )
    (context / "file").write_text("in the context")
    (context / "way").symlink_to(flag)
    async with shelter(arena):
        layout = write_layout(arena.canary.directory / "shell", [shell_layer()])
        await Image.import_(layout, name="shell")
        await Image.build(context, "built")
        async with arena.sandbox(image="built") as sandbox:
            look = "read -r a < /done; read -r b < /copied; echo $a $b; [ -e /reached ] && echo out"
            said = (await sandbox.run(["/bin/bash", "-c", look], cwd="/")).stdout
            arena.expect(said.startswith("done in the context"), f"the build did nothing: {said!r}")
            arena.expect("out" not in said, "a step reached the host")
        for path in ("../flag", str(flag), "way"):
            (context / "Dockerfile").write_text(f"FROM shell\nCOPY {path} /got\n")
            try:
                await Image.build(context, "leaking")
            except CloisterError:
                continue
            async with arena.sandbox(image="leaking") as sandbox:
                read = 'read -r line < /got && echo "$line"'
                got = (await sandbox.run(["/bin/bash", "-c", read], cwd="/")).stdout_bytes
                arena.expect(not arena.canary.leaked(got), f"COPY {path} took the flag")
