"""Images come in whole and as what they say they are, or not at all."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import stat
import subprocess
import tarfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import zstandard

from cloister import Sandbox
from cloister.build import pull_image
from cloister.errors import ImageRefused, NotFound
from cloister.image import Image, LayoutWriter, Library, Progress, Stage
from cloister.image.manifest import machine_platform
from cloister.model import User
from cloister.store import Store

Tar = Callable[..., bytes]
INDEX = "application/vnd.oci.image.index.v1+json"
DIR = {"type": tarfile.DIRTYPE}


def content(image: Image, name: str) -> bytes | None:
    """Return a file as the image shows it; good for files that no layer removes."""
    for layer in image.layers:
        if (layer / name).is_file():
            return (layer / name).read_bytes()
    return None


async def test_an_image_is_pulled_from_a_registry(
    store: Store, registry: Any, tar: Tar, parts: Any
) -> None:
    made = parts([tar(("a", {"content": b"lower"})), tar(("b", {"content": b"upper"}))])
    image = await pull_image(store, registry.push("plain", made))
    assert image.names == (f"{registry.address}/plain:latest",)
    assert (content(image, "a"), content(image, "b")) == (b"lower", b"upper")
    assert [layer.name for layer in image.layers] == ["bench", "bench"]
    assert Library(store).find(image.names[0]) == image


@pytest.mark.parametrize("packing", ["none", "gzip", "two gzip members", "zstd"])
async def test_layers_come_in_every_compression(
    store: Store, registry: Any, tar: Tar, parts: Any, packing: str
) -> None:
    layer = tar(("file", {"content": os.urandom(3_000_000)}))
    half = len(layer) // 2
    packed = {
        "none": layer,
        "gzip": gzip.compress(layer),
        "two gzip members": gzip.compress(layer[:half]) + gzip.compress(layer[half:]),
        "zstd": zstandard.compress(layer),
    }[packing]
    reference = registry.push("packed", parts([layer], packed=[packed]), tag=packing[:3])
    image = await pull_image(store, reference, name="it")
    assert content(image, "file") is not None
    assert image.content_bytes >= 3_000_000


async def test_every_place_gives_the_same_layers(
    store: Store, registry: Any, tmp_path: Path, tar: Tar, parts: Any
) -> None:
    layer = tar(("file", {"content": b"same"}))
    made = parts([layer])
    (tmp_path / "root.tar.gz").write_bytes(gzip.compress(layer))
    references = [
        registry.push("same", made),
        made.write_layout(tmp_path / "layout"),
        made.write_archive(tmp_path / "archive"),
        f"tar:{tmp_path / 'root.tar.gz'}",
    ]
    images = [await pull_image(store, reference, name="it") for reference in references]
    assert len({image.layer_digests for image in images}) == 1
    # The registry and the directory hold the same manifest; the others have none.
    assert len({image.digest for image in images[:2]}) == 1
    assert all(content(image, "file") == b"same" for image in images)


async def test_an_index_leads_to_the_image_for_this_machine(
    store: Store, registry: Any, tar: Tar, parts: Any
) -> None:
    made = parts([tar(("here", {}))])
    registry.push("many", made, tag="one")
    system, architecture = machine_platform()
    entry = {
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "size": len(made.manifest),
    }

    def index(*platforms: tuple[str, str]) -> bytes:
        own = f"sha256:{sha256(made.manifest).hexdigest()}"
        entries = [
            {**entry, "digest": own, "platform": {"os": one, "architecture": two}}
            for one, two in platforms
        ]
        return json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries}).encode()

    both = (("linux", "s390x"), (system, architecture))
    registry.push_manifest("many", index(*both), "all", INDEX)
    registry.push_manifest("many", index(("linux", "s390x")), "other", INDEX)
    address = f"docker://{registry.address}/many"
    image = await pull_image(store, f"{address}:all")
    assert content(image, "here") == b""
    whole = f"sha256:{sha256(index(*both)).hexdigest()}"
    assert Library(store).find(f"any@{whole}").digest == image.digest
    assert (await pull_image(store, f"{address}@{whole}")).digest == image.digest
    Library(store).remove(f"{registry.address}/many:all")
    assert Library(store).find(f"{registry.address}/many@{whole}").digest == image.digest
    with pytest.raises(ImageRefused, match="s390x"):
        await pull_image(store, f"{address}:other")


async def test_a_digest_pins_what_a_tag_does_not(
    store: Store, registry: Any, tar: Tar, parts: Any
) -> None:
    old, new = parts([tar(("old", {}))]), parts([tar(("new", {}))])
    first = await pull_image(store, registry.push("moving", old))
    registry.push("moving", new)
    second = await pull_image(store, f"docker://{registry.address}/moving:latest")
    assert first.digest != second.digest
    pinned = f"{registry.address}/moving@{first.digest}"
    assert (await pull_image(store, f"docker://{pinned}")).digest == first.digest
    library = Library(store)
    assert library.find(pinned).digest == first.digest
    assert library.find(f"any-name@{first.digest}").digest == first.digest
    assert library.find(f"{registry.address}/moving").digest == second.digest
    with pytest.raises(NotFound):
        library.find(f"moving@sha256:{'0' * 64}")


async def test_an_image_that_is_not_there_is_said_to_be_missing(
    store: Store, registry: Any
) -> None:
    with pytest.raises(NotFound, match="there is no image"):
        await pull_image(store, f"docker://{registry.address}/nothing:1")


async def test_the_same_image_pulled_at_once_is_fetched_once(
    store: Store, registry: Any, tar: Tar, parts: Any
) -> None:
    made = parts([tar(("big", {"content": os.urandom(5_000_000)})), tar(("small", {}))])
    reference = registry.push("busy", made)
    stages: list[list[Stage]] = [[] for _ in range(8)]

    def record(to: list[Stage]) -> Callable[[Progress], None]:
        return lambda progress: to.append(progress.stage)

    pulls = (
        pull_image(store, reference, name=f"n{number}", on_progress=record(seen))
        for number, seen in enumerate(stages)
    )
    images = await asyncio.gather(*pulls)
    assert len({image.digest for image in images}) == 1
    # Each layer is fetched by one of them, and found by all others.
    assert sum(seen.count(Stage.DONE) for seen in stages) == 2
    assert sum(seen.count(Stage.PRESENT) for seen in stages) == 14
    assert registry.requests("GET /v2/busy/blobs/") == 2 + 8


async def test_a_cancelled_pull_leaves_nothing_and_can_be_repeated(
    store: Store, registry: Any, tar: Tar, parts: Any
) -> None:
    made = parts([tar(("big", {"content": os.urandom(20_000_000)}))])
    reference = registry.push("cut", made)
    begun = asyncio.Event()

    def begin(progress: Progress) -> None:
        if progress.stage is Stage.FETCHING:
            begun.set()

    pull = asyncio.create_task(pull_image(store, reference, on_progress=begin))
    await begun.wait()
    pull.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pull
    assert list((store.driver.root / "layers").iterdir()) == []
    image = await pull_image(store, reference)
    assert (image.layers[0] / "big").stat().st_size == 20_000_000


async def test_progress_ends_at_the_whole(
    store: Store, registry: Any, tar: Tar, parts: Any
) -> None:
    seen: list[Progress] = []
    made = parts([tar(("big", {"content": os.urandom(2_500_000)}))])
    await pull_image(store, registry.push("shown", made), on_progress=seen.append)
    fetching = [each.done_bytes for each in seen if each.stage is Stage.FETCHING]
    assert fetching == sorted(fetching) and len(fetching) >= 3
    assert seen[-1].stage is Stage.DONE
    assert seen[-1].done_bytes == seen[-1].total_bytes == len(made.layers[0])


async def test_a_layer_that_stands_twice_or_is_empty_is_no_trouble(
    store: Store, tmp_path: Path, tar: Tar, parts: Any
) -> None:
    one, two, empty = tar(("a", {"content": b"1"})), tar(("a", {"content": b"2"})), tar()
    made = parts([one, empty, two, empty, one])
    image = await pull_image(store, made.write_layout(tmp_path / "twice"), name="twice")
    assert len(image.layers) == 2
    assert content(image, "a") == b"1"


async def test_a_layer_that_hides_everything_is_the_lowest(
    store: Store, tmp_path: Path, tar: Tar, parts: Any
) -> None:
    made = parts([tar(("old", {})), tar((".wh..wh..opq", {}), ("new", {}))])
    image = await pull_image(store, made.write_layout(tmp_path / "fresh"), name="fresh")
    assert len(image.layers) == 1
    assert content(image, "old") is None and content(image, "new") == b""


@pytest.mark.parametrize("wall", ["gvisor", "microvm"])
async def test_what_a_layer_removed_is_gone_whichever_wall_is_for_the_inside(
    store: Store,
    tmp_path: Path,
    tar: Tar,
    parts: Any,
    wall: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CLOISTER_RUNTIMES", f"internal={wall}")
    made = parts([tar(("old", {}), ("kept", {})), tar((".wh.old", {}))])
    image = await pull_image(store, made.write_layout(tmp_path / "less"), name="less")
    mark = (image.layers[0] / "old").lstat()
    assert stat.S_ISCHR(mark.st_mode) and mark.st_rdev == 0
    assert content(image, "kept") == b""


async def test_what_is_written_as_a_layout_is_read_again(
    store: Store, tmp_path: Path, tar: Tar
) -> None:
    writer = LayoutWriter(tmp_path / "out")
    layer = writer.add_layer(iter([tar(("file", {"content": b"out"}))]))
    wishes = {"Env": ["A=b"], "WorkingDir": "/srv", "User": "7:8", "Cmd": ["run"]}
    digest = writer.add_image("first", [layer], wishes)
    writer.add_image("second", [layer, layer], {})
    image = await pull_image(store, f"oci:{tmp_path / 'out'}:first", name="again")
    assert image.digest == digest
    assert (image.env, image.workdir, image.user) == ({"A": "b"}, "/srv", User(7, 8))
    assert (image.cmd, content(image, "file")) == (("run",), b"out")


async def test_names_are_given_taken_and_removed(
    store: Store, tmp_path: Path, tar: Tar, parts: Any
) -> None:
    library = Library(store)
    one = parts([tar(("one", {}))]).write_layout(tmp_path / "one")
    two = parts([tar(("two", {}))]).write_layout(tmp_path / "two")
    first = await pull_image(store, one, name="dev")
    second = await pull_image(store, two, name="dev")
    assert library.find("dev").digest == second.digest
    assert {image.digest for image in library.list()} == {first.digest, second.digest}
    library.remove("dev")
    with pytest.raises(NotFound):
        library.find("dev")


def shell_entries() -> list[tuple[str, dict[str, Any]]]:
    """Return the host's shell and the libraries it needs, as entries of a layer."""
    shell = os.path.realpath("/bin/sh")
    told = subprocess.run(["ldd", shell], capture_output=True, text=True, check=True).stdout
    libraries = [word for word in told.split() if word.startswith("/")]
    entries = [
        (name.strip("/"), {"content": Path(name).read_bytes(), "mode": 0o755}) for name in libraries
    ]
    return [("bin/sh", {"content": Path(shell).read_bytes(), "mode": 0o755}), *entries]


async def test_a_sandbox_stands_on_an_image(
    store: Store, tmp_path: Path, tar: Tar, parts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The far end: what the layers and the configuration say is what a program inside finds."""
    monkeypatch.setenv("CLOISTER_STATE", str(store.directory))
    lower = tar(
        *shell_entries(),
        ("etc/passwd", {"content": b"root:x:0:0::/root:/bin/sh\nworker:x:1000:1000::/:/bin/sh\n"}),
        ("etc/removed", {"content": b"x"}),
        ("data", DIR),
        ("data/old", {"content": b"x"}),
    )
    upper = tar(("etc/.wh.removed", {}), ("data/.wh..wh..opq", {}), ("data/new", {}))
    wishes = {"Env": ["GREETING=hello"], "WorkingDir": "/data", "User": "worker"}
    made = parts([lower, upper], wishes)
    await pull_image(store, made.write_layout(tmp_path / "root"), name="root")
    command = "echo /etc/*; echo /data/*; echo $GREETING; pwd; while read l; do echo $l; done"
    async with Sandbox(image="root") as sandbox:
        asked = await sandbox.run(f"{command} </proc/self/status")
    lines = asked.check().stdout.splitlines()
    assert lines[:4] == ["/etc/passwd", "/data/new", "hello", "/data"]
    assert next(line for line in lines if line.startswith("Uid:")).split()[1] == "1000"
