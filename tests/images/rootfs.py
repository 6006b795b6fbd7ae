"""A small root filesystem out of the host's programs, for tests that run something in an image."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

PROGRAMS = ("sh", "bash", "cat", "ls", "mkdir", "id", "touch", "rm", "stat", "ln", "sleep", "env")
ACCOUNTS = {
    "etc/passwd": "root:x:0:0::/root:/bin/sh\napp:x:1001:1002::/:/bin/sh\n",
    "etc/group": "root:x:0:\napp:x:1002:\n",
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
