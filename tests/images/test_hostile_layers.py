"""Layers that attack whoever unpacks them: each is refused, and its honest twin is not."""

from __future__ import annotations

import gzip
import os
import stat
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cloister.build import LayerLimits, pull_image, unpack_layer, unpacking
from cloister.errors import Exhausted, ImageRefused
from cloister.image import LayerFacts
from cloister.store import Staging, Store

DIR, LINK, HARD = tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE
Entries = list[tuple[str, dict[str, Any]]]


@dataclass(frozen=True)
class Attack:
    """A layer that tries something, what the refusal says, and a layer that does it honestly."""

    entries: Entries
    words: str
    twin: Entries


def through(link: dict[str, Any], name: str) -> Entries:
    return [("way", link), (name, {"content": b"attack"})]


# OUTSIDE stands for the directory beside the layer, in which the canary is.
ATTACKS = {
    "climb": Attack(
        [("../canary", {"content": b"x"})], "climbs", [("..canary", {"content": b"x"})]
    ),
    "climb in the middle": Attack(
        [("a/../../canary", {"content": b"x"})], "climbs", [("a/b/canary", {"content": b"x"})]
    ),
    "climb by an extended name": Attack(
        [("plain", {"content": b"x", "pax": {"path": "../canary"}})],
        "climbs",
        [("plain", {"content": b"x", "pax": {"path": "other/canary"}})],
    ),
    "write through an absolute link": Attack(
        through({"type": LINK, "link": "OUTSIDE"}, "way/canary"),
        "link or a file",
        through({"type": DIR}, "way/canary"),
    ),
    "write through a relative link": Attack(
        through({"type": LINK, "link": "../.."}, "way/canary"),
        "link or a file",
        [("way", {"type": LINK, "link": "../.."}), ("canary", {"content": b"x"})],
    ),
    "write through a chain of links": Attack(
        [
            ("a", {"type": LINK, "link": "b"}),
            ("b", {"type": LINK, "link": ".."}),
            ("a/canary", {"content": b"x"}),
        ],
        "link or a file",
        [
            ("a", {"type": LINK, "link": "b"}),
            ("b", {"type": DIR}),
            ("b/canary", {"content": b"x"}),
        ],
    ),
    "remove through a link": Attack(
        [("way", {"type": LINK, "link": "OUTSIDE"}), ("way/.wh.canary", {})],
        "link or a file",
        [("way", {"type": DIR}), ("way/.wh.canary", {})],
    ),
    "hide through a link": Attack(
        [("way", {"type": LINK, "link": "OUTSIDE"}), ("way/.wh..wh..opq", {})],
        "link or a file",
        [("way", {"type": DIR}), ("way/.wh..wh..opq", {})],
    ),
    "hard link to a host file": Attack(
        [("canary", {"type": HARD, "link": "OUTSIDE/canary"})],
        "not in the layer",
        [("there", {"content": b"x"}), ("canary", {"type": HARD, "link": "/there"})],
    ),
    "hard link through a link": Attack(
        [
            ("way", {"type": LINK, "link": "OUTSIDE"}),
            ("canary", {"type": HARD, "link": "way/canary"}),
        ],
        "not in the layer",
        [
            ("way", {"type": DIR}),
            ("way/canary", {"content": b"x"}),
            ("canary", {"type": HARD, "link": "way/canary"}),
        ],
    ),
    "hard link to a removed name": Attack(
        [(".wh.gone", {}), ("back", {"type": HARD, "link": "gone"})],
        "not in the layer",
        [(".wh.gone", {}), ("gone", {}), ("back", {"type": HARD, "link": "gone"})],
    ),
    "remove the directory itself": Attack([("a/.wh..", {})], "cannot be", [("a/.wh...x", {})]),
    "remove the directory above": Attack([("a/.wh...", {})], "cannot be", [("a/.wh.b", {})]),
    "an entry inside of a removal": Attack(
        [(".wh.a/b", {"content": b"x"})], "marks something", [("a/b", {"content": b"x"})]
    ),
    "a file on the way": Attack(
        [("a", {"content": b"x"}), ("a/b", {"content": b"x"})],
        "link or a file",
        [("a", {"content": b"x"}), ("a", {"type": DIR}), ("a/b", {"content": b"x"})],
    ),
    "deeper than any path": Attack(
        [("/".join(["d"] * 300), {"content": b"x"})],
        "deeper",
        [("/".join(["d"] * 200), {"content": b"x"})],
    ),
}


@pytest.fixture
def outside(store: Store) -> Iterator[Path]:
    """A directory with a canary in it, beside `layer`, which is a layer in the making."""
    with in_making(store, 1) as staging:
        place = staging.path.parent
        (place / "canary").write_text("untouched")
        (place / "layer").symlink_to(staging.path.name)
        yield place


def in_making(store: Store, number: int) -> Staging:
    staging = store.layers.begin(f"sha256:{number:064x}")
    assert staging is not None
    return staging


def settled(entries: Entries, outside: Path) -> Entries:
    """Put the real place in."""
    return [
        (name, {**fields, "link": fields.get("link", "").replace("OUTSIDE", str(outside))})
        for name, fields in entries
    ]


def seen(outside: Path) -> tuple[str, set[str]]:
    return (outside / "canary").read_text(), {path.name for path in outside.iterdir()}


@pytest.mark.parametrize("name", ATTACKS)
async def test_img01_nothing_of_a_layer_lands_outside(
    name: str, outside: Path, tar: Callable[..., bytes]
) -> None:
    attack = ATTACKS[name]
    before = seen(outside)
    with pytest.raises(ImageRefused, match=attack.words):
        archive = tar(*settled(attack.entries, outside))
        await unpack_layer(outside / "layer", iter([archive]))
    assert seen(outside) == before


@pytest.mark.parametrize("name", ATTACKS)
async def test_img01_the_honest_twin_of_an_attack_is_unpacked(
    name: str, outside: Path, tar: Callable[..., bytes]
) -> None:
    before = seen(outside)
    entries = settled(ATTACKS[name].twin, outside)
    facts = await unpack_layer(outside / "layer", iter([tar(*entries)]))
    assert facts.entries == len(entries)
    assert seen(outside) == before


async def test_img01_an_absolute_name_lands_in_the_layer(
    outside: Path, tar: Callable[..., bytes]
) -> None:
    archive = tar((str(outside / "canary"), {"content": b"inside"}))
    await unpack_layer(outside / "layer", iter([archive]))
    assert (outside / "canary").read_text() == "untouched"
    landed = outside / "layer" / str(outside / "canary").lstrip("/")
    assert landed.read_text() == "inside"


async def test_img01_a_link_is_data_and_is_replaced_not_followed(
    outside: Path, tar: Callable[..., bytes]
) -> None:
    link = ("way", {"type": LINK, "link": str(outside / "canary")})
    again = ("second", {"type": HARD, "link": "way"})
    archive = tar(link, again, ("way", {"content": b"file"}))
    await unpack_layer(outside / "layer", iter([archive]))
    assert seen(outside)[0] == "untouched"
    assert (outside / "layer/way").read_text() == "file"
    assert os.readlink(outside / "layer/second") == str(outside / "canary")


async def test_img01_devices_are_left_out_and_marks_cannot_be_forged(
    outside: Path, tar: Callable[..., bytes]
) -> None:
    archive = tar(
        ("disk", {"type": tarfile.BLKTYPE, "device": (7, 0)}),
        ("mark", {"type": tarfile.CHRTYPE, "device": (0, 0)}),
        ("dir", {"type": DIR, "pax": {"SCHILY.xattr.user.overlay.opaque": "y"}}),
        ("file", {"pax": {"SCHILY.xattr.security.capability": "x"}}),
        ("kept", {"pax": {"SCHILY.xattr.user.note": "kept"}}),
    )
    facts = await unpack_layer(outside / "layer", iter([archive]))
    layer = outside / "layer"
    assert (facts.devices, facts.attributes) == (2, 2)
    assert sorted(path.name for path in layer.iterdir()) == ["dir", "file", "kept"]
    assert os.listxattr(layer / "dir") == os.listxattr(layer / "file") == []
    assert os.getxattr(layer / "kept", "user.note") == b"kept"


async def test_img01_removals_become_what_an_overlay_understands(
    outside: Path, tar: Callable[..., bytes]
) -> None:
    archive = tar(
        ("etc", {"type": DIR}), ("etc/.wh.gone", {}), ("var/.wh..wh..opq", {}), ("etc/new", {})
    )
    facts = await unpack_layer(outside / "layer", iter([archive]))
    gone = os.lstat(outside / "layer/etc/gone")
    assert stat.S_ISCHR(gone.st_mode) and gone.st_rdev == 0
    assert os.getxattr(outside / "layer/var", "user.overlay.opaque") == b"y"
    assert (facts.whiteouts, facts.opaque) == (1, 1)


LIMITS = LayerLimits(entries=50, bytes=100_000)
# (what is too much, what is not)
BOMBS: dict[str, tuple[Entries, Entries]] = {
    "entries": (
        [(f"f{number}", {}) for number in range(51)],
        [(f"f{number}", {}) for number in range(50)],
    ),
    "bytes of one file": (
        [("big", {"content": bytes(100_001)})],
        [("big", {"content": bytes(100_000)})],
    ),
    "bytes of all files": (
        [(f"f{number}", {"content": bytes(3000)}) for number in range(40)],
        [(f"f{number}", {"content": bytes(3000)}) for number in range(30)],
    ),
    "a header": (
        [("f", {"pax": {"comment": "x" * 2_000_000}})],
        [("f", {"pax": {"comment": "x" * 20_000}})],
    ),
}


@pytest.mark.parametrize("bomb", BOMBS)
async def test_img03_a_bomb_stops_at_its_limit(
    bomb: str, outside: Path, store: Store, tar: Callable[..., bytes]
) -> None:
    too_much, enough = BOMBS[bomb]
    with pytest.raises(ImageRefused, match=r"limit|more than|may be"):
        await unpack_layer(outside / "layer", iter([tar(*too_much)]), limits=LIMITS)
    with in_making(store, 2) as twin:
        facts = await unpack_layer(twin.path, iter([tar(*enough)]), limits=LIMITS)
    assert isinstance(facts, LayerFacts)


async def test_img03_a_bomb_leaves_nothing_in_the_store(
    store: Store, tmp_path: Path, tar: Callable[..., bytes], parts: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr("cloister.image.arrival.MAXIMUM_BLOB_BYTES", 1_000_000)
    layer = tar(("zeros", {"content": bytes(2_000_000)}))
    bomb = parts([layer], packed=[gzip.compress(layer)])
    with pytest.raises(ImageRefused, match="unfolds to more than"):
        await pull_image(store, bomb.write_layout(tmp_path / "bomb"), name="bomb")
    assert store.images.list() == []
    assert list((store.driver.root / "layers").iterdir()) == []
    small = tar(("zeros", {"content": bytes(900_000)}))
    twin = parts([small], packed=[gzip.compress(small)])
    image = await pull_image(store, twin.write_layout(tmp_path / "twin"), name="twin")
    assert (image.layers[0] / "zeros").stat().st_size == 900_000


async def test_img03_a_layer_is_unpacked_only_while_others_have_room_beside_it(
    store: Store, tmp_path: Path, tar: Any, parts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*paths: Path) -> None:
        raise Exhausted("nearly full", limit="disk")

    monkeypatch.setattr(unpacking, "require_room", refuse)
    small, large = (parts([tar(("file", {"content": bytes(size)}))]) for size in (2**20, 2**23))
    with pytest.raises(Exhausted, match="nearly full"):
        await pull_image(store, large.write_layout(tmp_path / "large"), name="large")
    assert not list((store.driver.root / "layers").iterdir())
    assert (await pull_image(store, small.write_layout(tmp_path / "small"), name="small")).layers
