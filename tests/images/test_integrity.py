"""Images that are not what they say, and configurations that ask for too much."""

from __future__ import annotations

import gzip
import random
import tarfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from cloister.build import pull_image
from cloister.errors import ImageRefused, NotFound
from cloister.image import Library
from cloister.model import User
from cloister.store import Store

Tar = Callable[..., bytes]


def nothing_kept(store: Store) -> bool:
    return not store.images.list() and not list((store.driver.root / "layers").iterdir())


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "one byte changed": lambda data: data[:600] + bytes([data[600] ^ 1]) + data[601:],
    "cut off": lambda data: data[:-512],
    "empty": lambda data: b"",
    "longer": lambda data: data + bytes(512),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("packed", [False, True])
async def test_img02_a_damaged_layer_is_refused(
    store: Store, tmp_path: Path, tar: Tar, parts: Any, damage: str, packed: bool
) -> None:
    layer = tar(("file", {"content": random.Random(1).randbytes(5000)}))
    made = parts([layer], packed=[gzip.compress(layer, mtime=0)] if packed else None)
    reference = made.write_layout(tmp_path / "image")
    (blob,) = made.blobs
    file = tmp_path / "image/blobs/sha256" / sha256(blob).hexdigest()
    file.write_bytes(DAMAGE[damage](blob))
    with pytest.raises(ImageRefused):
        await pull_image(store, reference, name="it")
    assert nothing_kept(store)
    file.write_bytes(blob)
    assert (await pull_image(store, reference, name="it")).layers


async def test_img02_a_layer_that_the_registry_has_damaged_is_refused(
    store: Store, registry: Any, tar: Tar, parts: Any
) -> None:
    layer = tar(("file", {"content": b"genuine"}))
    reference = registry.push("damaged", parts([layer]))
    file = registry.blob_file(layer)
    file.write_bytes(layer.replace(b"genuine", b"forgery"))
    with pytest.raises(ImageRefused, match="another than was asked for"):
        await pull_image(store, reference)
    assert nothing_kept(store)
    file.write_bytes(layer)
    image = await pull_image(store, reference)
    assert (image.layers[0] / "file").read_bytes() == b"genuine"


async def test_img02_a_layer_must_be_the_one_its_configuration_names(
    store: Store, tmp_path: Path, tar: Tar, parts: Any
) -> None:
    """The blob is genuine, and the configuration speaks of another content."""
    honest, other = tar(("honest", {})), tar(("other", {}))
    swapped = parts([honest], packed=[gzip.compress(other)])
    with pytest.raises(ImageRefused, match="another than the image says"):
        await pull_image(store, swapped.write_layout(tmp_path / "swapped"), name="it")
    assert nothing_kept(store)
    twin = parts([honest], packed=[gzip.compress(honest)])
    assert await pull_image(store, twin.write_layout(tmp_path / "twin"), name="it")


async def test_img02_more_layers_than_the_configuration_knows_are_refused(
    store: Store, tmp_path: Path, tar: Tar, parts: Any
) -> None:
    layer = tar(("file", {}))
    made = parts([layer], packed=[layer, layer])
    with pytest.raises(ImageRefused, match="2 layers, and its configuration speaks of 1"):
        await pull_image(store, made.write_layout(tmp_path / "more"), name="it")
    assert nothing_kept(store)


@pytest.mark.parametrize("place", ["index", "manifest", "config"])
async def test_img02_a_document_that_was_changed_is_refused(
    store: Store, tmp_path: Path, tar: Tar, parts: Any, place: str
) -> None:
    made = parts([tar(("file", {}))])
    reference = made.write_layout(tmp_path / "image")
    blobs = tmp_path / "image/blobs/sha256"
    if place == "index":
        file = tmp_path / "image/index.json"
        file.write_text(file.read_text().replace('"size": ', '"size": 1'))
    else:
        data = made.manifest if place == "manifest" else made.config
        file = blobs / sha256(data).hexdigest()
        file.write_bytes(data.replace(b'"os": "linux"', b'"os": "LINUX"') + b" ")
    with pytest.raises(ImageRefused):
        await pull_image(store, reference, name="other")


WISHES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "workdir by descriptor": ({"WorkingDir": "/proc/self/fd/8"}, {"WorkingDir": "/processes"}),
    "workdir above": ({"WorkingDir": "/a/../../b"}, {"WorkingDir": "/a/b/"}),
    "workdir relative": ({"WorkingDir": "a"}, {"WorkingDir": "/a"}),
    "workdir with a zero": ({"WorkingDir": "/a\0b"}, {"WorkingDir": "/a b"}),
    "user too large": ({"User": "65536"}, {"User": "65534"}),
    "user negative": ({"User": "-1"}, {"User": "1:1"}),
    "user unknown": ({"User": "somebody"}, {"User": "worker"}),
    "group unknown": ({"User": "worker:some"}, {"User": "worker:crew"}),
    "user in three parts": ({"User": "a:b:c"}, {"User": "0:0"}),
    "entrypoint as text": ({"Entrypoint": "sh -c x"}, {"Entrypoint": ["sh", "-c", "x"]}),
    "entrypoint of a mapping": ({"Entrypoint": {"a": 1}}, {"Entrypoint": None}),
    "command with a zero": ({"Cmd": ["a\0b"]}, {"Cmd": ["a", "b"]}),
    "command too long": ({"Cmd": ["x" * 200_000]}, {"Cmd": ["x" * 100_000]}),
    "env without a value": ({"Env": ["NAME"]}, {"Env": ["NAME="]}),
    "env without a name": ({"Env": ["=value"]}, {"Env": ["NAME=a=b"]}),
    "env with a zero": ({"Env": ["NAME=a\0b"]}, {"Env": ["NAME=a\nb"]}),
    "env of a mapping": ({"Env": {"A": "b"}}, {"Env": []}),
}
ACCOUNTS = (
    ("etc/passwd", {"content": b"root:x:0:0::/:/bin/sh\nworker:x:77:78::/:/bin/sh\nbad:x:y:z\n"}),
    ("etc/group", {"content": b"root:x:0:\ncrew:x:99:worker\n"}),
)


@pytest.mark.parametrize("wish", WISHES)
async def test_img04_a_configuration_is_held_to_the_rules_of_the_api(
    store: Store, tmp_path: Path, tar: Tar, parts: Any, wish: str
) -> None:
    refused, granted = WISHES[wish]
    layer = tar(*ACCOUNTS)
    with pytest.raises(ImageRefused):
        reference = parts([layer], refused).write_layout(tmp_path / "refused")
        await pull_image(store, reference, name="it")
    assert not store.images.list()
    reference = parts([layer], granted).write_layout(tmp_path / "granted")
    assert (await pull_image(store, reference, name="it")).digest


async def test_img04_volumes_and_the_like_are_ignored_and_said(
    store: Store, tmp_path: Path, tar: Tar, parts: Any
) -> None:
    wishes = {"Volumes": {"/": {}}, "OnBuild": ["RUN x"], "ExposedPorts": {"80/tcp": {}}}
    made = parts([tar(*ACCOUNTS)], {**wishes, "User": "worker:crew"})
    image = await pull_image(store, made.write_layout(tmp_path / "image"), name="it")
    assert len(image.notes) == 3 and "volumes are not made" in image.notes[0]
    assert image.user == User(77, 99)


async def test_img04_a_list_of_users_that_is_a_link_is_not_followed(
    store: Store, tmp_path: Path, tar: Tar, parts: Any
) -> None:
    """Followed on the host, it would answer with the host's own users."""
    link = {"type": tarfile.SYMTYPE, "link": "/etc/passwd"}
    for entries in ([("etc/passwd", link)], [("etc", {**link, "link": "/etc"})]):
        made = parts([tar(*entries)], {"User": "daemon"})
        with pytest.raises(ImageRefused, match="has none"):
            await pull_image(store, made.write_layout(tmp_path / "linked"), name="it")
    named = ("etc/passwd", {"content": b"daemon:x:1:1::/:/bin/sh\n"})
    made = parts([tar(named)], {"User": "daemon"})
    image = await pull_image(store, made.write_layout(tmp_path / "own"), name="it")
    assert image.user == User(1, 1)


async def test_img02_no_image_takes_the_name_of_another_digest(
    store: Store, tmp_path: Path, tar: Tar, parts: Any
) -> None:
    made = parts([tar(("file", {"content": b"forgery"}))])
    wanted = f"python@sha256:{'5' * 64}"
    archive = made.write_archive(tmp_path / "saved.tar", wanted)
    with pytest.raises(ImageRefused, match="another digest"):
        await pull_image(store, archive)
    layout = made.write_layout(tmp_path / "image")
    with pytest.raises(ImageRefused, match="another digest"):
        await pull_image(store, layout, name=wanted)
    with pytest.raises(NotFound):
        Library(store).find(wanted)
    image = await pull_image(store, layout, name="python")
    own = f"python@{image.digest}"
    assert (await pull_image(store, layout, name=own)).digest == image.digest
    assert Library(store).find(own).digest == image.digest
