"""What the tests of images share: archives, a store, and a registry on this machine."""

from __future__ import annotations

import io
import json
import os
import select
import socket
import subprocess
import tarfile
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from cloister import Image, Sandbox
from cloister.build.progress import BuildProgress, News
from cloister.image.manifest import machine_platform
from cloister.node import Node
from cloister.store import Store
from cloister.store.sub_ids import find_sub_ids

Entry = tuple[str, dict[str, Any]]
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
CONFIG = "application/vnd.oci.image.config.v1+json"


def make_tar(*entries: Entry) -> bytes:
    """Return a tar of (name, fields of its header, `content` and `pax` among them)."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, fields in entries:
            info = tarfile.TarInfo(name)
            content = fields.get("content", b"")
            info.size = len(content)
            info.type = fields.get("type", tarfile.REGTYPE)
            info.mode = fields.get("mode", 0o755 if info.isdir() else 0o644)
            info.uid = info.gid = fields.get("owner", 0)
            info.linkname = fields.get("link", "")
            info.devmajor, info.devminor = fields.get("device", (0, 0))
            info.pax_headers = fields.get("pax", {})
            info.mtime = 1_000_000_000
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def digest(data: bytes) -> str:
    return f"sha256:{sha256(data).hexdigest()}"


def described(data: bytes, media_type: str) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": digest(data), "size": len(data)}


@dataclass
class Parts:
    """An image in pieces, any of which a test may change before it is written or pushed."""

    layers: list[bytes]
    wishes: dict[str, Any] = field(default_factory=dict)
    packed: list[bytes] | None = None

    @property
    def config(self) -> bytes:
        system, architecture = machine_platform()
        rootfs = {"type": "layers", "diff_ids": [digest(layer) for layer in self.layers]}
        document = {"os": system, "architecture": architecture, "rootfs": rootfs}
        return json.dumps({**document, "config": self.wishes}).encode()

    @property
    def blobs(self) -> list[bytes]:
        return self.packed if self.packed is not None else self.layers

    @property
    def manifest(self) -> bytes:
        document = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": described(self.config, CONFIG),
            "layers": [described(blob, LAYER) for blob in self.blobs],
        }
        return json.dumps(document).encode()

    def write_layout(self, directory: Path, tag: str = "it") -> str:
        """Write it as a directory and return how to name it."""
        blobs = directory / "blobs" / "sha256"
        blobs.mkdir(parents=True, exist_ok=True)
        for data in (self.config, self.manifest, *self.blobs):
            (blobs / sha256(data).hexdigest()).write_bytes(data)
        (directory / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
        named = {"annotations": {"org.opencontainers.image.ref.name": tag}}
        index = {
            "schemaVersion": 2,
            "manifests": [{**described(self.manifest, MANIFEST), **named}],
        }
        (directory / "index.json").write_text(json.dumps(index))
        return f"oci:{directory}:{tag}"

    def write_archive(self, file: Path, tag: str = "example/it:1") -> str:
        """Write it as `docker save` does and return how to name it."""
        names = [f"{index}/layer.tar" for index in range(len(self.blobs))]
        listed = [{"Config": "config.json", "RepoTags": [tag], "Layers": names}]
        entries: list[Entry] = [
            (name, {"content": blob}) for name, blob in zip(names, self.blobs, strict=True)
        ]
        entries.append(("config.json", {"content": self.config}))
        entries.append(("manifest.json", {"content": json.dumps(listed).encode()}))
        file.write_bytes(make_tar(*entries))
        return f"docker-archive:{file}"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An empty store."""
    with Store.open(tmp_path / "state") as opened:
        yield opened


@pytest.fixture(autouse=True)
async def nothing_stays() -> AsyncIterator[None]:
    """Sandboxes of a test end with it."""
    yield
    await Node.current().close()


@dataclass(frozen=True)
class LiveRegistry:
    """A registry that runs, and what it keeps."""

    address: str
    files: Path
    log: Path

    def push(self, name: str, parts: Parts, tag: str = "latest") -> str:
        """Put an image there by its own protocol and return how to name it."""
        for blob in (parts.config, *parts.blobs):
            self.push_blob(name, blob)
        self.push_manifest(name, parts.manifest, tag, MANIFEST)
        return f"docker://{self.address}/{name}:{tag}"

    def push_blob(self, name: str, blob: bytes) -> None:
        begun = self._call("POST", f"/v2/{name}/blobs/uploads/")
        place = begun.headers["Location"].removeprefix(f"http://{self.address}")
        self._call("PUT", f"{place}&digest={digest(blob)}", blob, "application/octet-stream")

    def push_manifest(self, name: str, data: bytes, tag: str, kind: str) -> None:
        self._call("PUT", f"/v2/{name}/manifests/{tag}", data, kind)

    def _call(self, method: str, path: str, body: bytes = b"", kind: str = "") -> Any:
        import http.client

        connection = http.client.HTTPConnection(self.address, timeout=30)
        connection.request(method, path, body, {"Content-Type": kind} if kind else {})
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        assert answer.status < 300, (answer.status, text)
        return answer

    def blob_file(self, blob: bytes) -> Path:
        """Return the file a blob is kept in, for tests that damage it."""
        name = sha256(blob).hexdigest()
        return self.files / "docker/registry/v2/blobs/sha256" / name[:2] / name / "data"

    def requests(self, part: str) -> int:
        """Return how many requests it has answered whose line holds `part`."""
        return sum(part in line for line in self.log.read_text().splitlines())


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveRegistry]:
    """Debian's `docker-registry`, on a port of its own."""
    directory = tmp_path_factory.mktemp("registry")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    files, log = directory / "files", directory / "log"
    config = directory / "config.yml"
    config.write_text(
        f"version: 0.1\nlog: {{level: info}}\n"
        f"storage: {{filesystem: {{rootdirectory: {files}}}, delete: {{enabled: true}}}}\n"
        f"http: {{addr: '127.0.0.1:{port}'}}\n"
    )
    with open(log, "wb") as output:
        process = subprocess.Popen(
            ["docker-registry", "serve", str(config)], stdout=output, stderr=output
        )
    try:
        wait_listening(port, process)
        yield LiveRegistry(f"127.0.0.1:{port}", files, log)
    finally:
        process.kill()
        process.wait()


def wait_listening(port: int, process: subprocess.Popen[bytes]) -> None:
    """Return when somebody answers there; fail when the process has ended instead."""
    ended = os.pidfd_open(process.pid)
    try:
        for _ in range(200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return
            # Its end is the event; until then it is asked again.
            assert not select.select([ended], [], [], 0.05)[0], "docker-registry ended at once"
    finally:
        os.close(ended)
    raise AssertionError("docker-registry does not listen")


Make = Callable[..., bytes]


@pytest.fixture
def tar() -> Make:
    """Makes archives."""
    return make_tar


@pytest.fixture
def parts() -> type[Parts]:
    """Makes images."""
    return Parts


PROGRAMS = (
    "sh",
    "bash",
    "cat",
    "ls",
    "mkdir",
    "id",
    "touch",
    "rm",
    "stat",
    "ln",
    "sleep",
    "env",
    "perl",
)
ACCOUNTS = {
    "etc/passwd": "root:x:0:0::/root:/bin/sh\napp:x:101:102::/:/bin/sh\n",
    "etc/group": "root:x:0:\napp:x:102:\n",
}


def write_rootfs(path: Path) -> None:
    """Write it as a tar: programs with what they are linked to, links like a merged /usr has."""
    with tarfile.open(path, "w") as archive:
        for name in ("usr", "usr/bin", "usr/lib", "usr/lib64", "etc"):
            _add(archive, name, tarfile.DIRTYPE, 0o755)
        _add(archive, "tmp", tarfile.DIRTYPE, 0o1777)
        for name in ("bin", "lib", "lib64"):
            _add(archive, name, tarfile.SYMTYPE, 0o777, link=f"usr/{name}")
        for name, source in sorted(_files().items()):
            _add(archive, name, tarfile.REGTYPE, 0o755, content=Path(source).read_bytes())
        for name, text in ACCOUNTS.items():
            _add(archive, name, tarfile.REGTYPE, 0o644, content=text.encode())


def _files() -> dict[str, str]:
    found = {}
    for program in PROGRAMS:
        source = os.path.realpath(f"/bin/{program}")
        found[f"usr/bin/{program}"] = source
        listed = subprocess.run(["ldd", source], capture_output=True, text=True).stdout
        for word in listed.split():
            if word.startswith("/"):
                name = word.lstrip("/")
                found[name if name.startswith("usr/") else f"usr/{name}"] = os.path.realpath(word)
    return found


def _add(
    archive: tarfile.TarFile,
    name: str,
    kind: bytes,
    mode: int,
    *,
    content: bytes = b"",
    link: str = "",
) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.size, info.linkname = kind, mode, len(content), link
    archive.addfile(info, io.BytesIO(content))


@pytest.fixture
def several_ids() -> None:
    """Asked for by tests in which files have, or somebody becomes, another user."""
    if os.geteuid() != 0 and find_sub_ids() is None:
        pytest.skip("a sandbox with a single id has no other user to become")


@pytest.fixture(scope="session")
def rootfs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tar of a small root filesystem."""
    path = tmp_path_factory.mktemp("rootfs") / "rootfs.tar"
    write_rootfs(path)
    return path


class Told(list[BuildProgress]):
    """What a build told."""

    def done(self) -> list[int]:
        return [each.index for each in self if each.news is News.DONE]

    def cached(self) -> list[int]:
        return [each.index for each in self if each.news is News.CACHED]

    @property
    def output(self) -> str:
        return b"".join(each.output for each in self).decode()

    @property
    def notes(self) -> list[str]:
        return [each.text for each in self if each.news is News.NOTE]


class Yard:
    """A context, and builds of it on the small root filesystem."""

    def __init__(self, context: Path) -> None:
        self.context = context
        self.told = Told()

    async def build(self, text: str, *, on_base: bool = True, **options: Any) -> Image:
        self.told = Told()
        before = "FROM base\n" if on_base else ""
        (self.context / "Dockerfile").write_text(before + text)
        return await Image.build(self.context, "it", on_progress=self.told.append, **options)

    async def look(self, line: str, *, image: str = "it", **settings: Any) -> str:
        async with Sandbox(image=image, **settings) as sandbox:
            return (await sandbox.run(line, cwd="/")).check().stdout


@pytest.fixture
async def yard(tmp_path: Path, rootfs: Path, monkeypatch: pytest.MonkeyPatch) -> Yard:
    monkeypatch.setenv("CLOISTER_STATE", str(tmp_path / "state"))
    await Image.import_(f"tar:{rootfs}", name="base")
    context = tmp_path / "context"
    context.mkdir()
    return Yard(context)
