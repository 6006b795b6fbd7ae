"""Installs runsc: through apt, from a file whose digest is known, or built from its source."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from cloister.errors import HostError, RequestError
from cloister.model import quote
from cloister.runtime.gvisor.program import candidates, find_runsc, version_of

_TARGET = Path("/usr/local/bin/runsc")
_PACKAGE = "runsc"
_FETCH_S = 600.0
_BUILD_S = 3600.0
_APT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
# The branch of gVisor that the go tool builds as it is, and what its module must hash to.
_MODULE = "gvisor.dev/gvisor"
_VERSION = "v0.0.0-20260905035102-160fafc42237"
_SUM = "h1:AU5+CtCvnBnxdZRNcZt1NfSLqgkXZVT3N/u6u1aXg44="
_DIGEST = re.compile(r"[0-9a-f]{64}")


def install_package() -> str:
    """Install the distribution's runsc if there is none; return what was done."""
    if candidates():
        found = find_runsc()
        return f"kept: {found.path}, {found.version}"
    _require_root()
    if shutil.which("apt-get") is None:
        raise HostError(
            "this host has no apt; get a release of runsc and name it with --from and --sha256"
        )
    apt = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", _PACKAGE]
    _run(apt, _APT, _FETCH_S)
    find_runsc.cache_clear()
    if not candidates():
        raise HostError(
            f"apt says that {_PACKAGE} is installed, and there is none that everybody may "
            f"execute; run `apt-get install --reinstall {_PACKAGE}`"
        )
    return f"installed: {_PACKAGE}, {find_runsc().version}"


def install_file(path: Path, digest: str) -> str:
    """Install a release of runsc whose SHA-256 is `digest`; return what was done."""
    wanted = digest.strip().lower()
    if _DIGEST.fullmatch(wanted) is None:
        raise RequestError(f"--sha256 is {quote(digest)}; write 64 hexadecimal digits")
    _require_root()
    part = _TARGET.with_name(f".runsc-{secrets.token_hex(4)}")
    try:
        # The copy is what is looked at, so that nobody changes it in between.
        shutil.copyfile(path, part)
        found = _digest_of(part)
        if found != wanted:
            raise RequestError(
                f"{path} has the SHA-256 {found}, not {wanted}; it was not installed"
            )
        part.chmod(0o755)
        version = version_of(part)
        if version is None:
            raise RequestError(
                f"{path} does not answer `runsc --version` as a runsc does; it was not installed"
            )
        part.rename(_TARGET)
    except OSError as error:
        raise HostError(f"{path} cannot be installed as {_TARGET}: {error.strerror}") from error
    finally:
        part.unlink(missing_ok=True)
    find_runsc.cache_clear()
    newest = find_runsc()
    used = "" if newest.path == _TARGET else f"; {newest.path}, {newest.version}, is newer and used"
    return f"installed: {_TARGET}, {version}{used}"


def build() -> str:
    """Build the release this program knows the digest of, and install it; return what was done."""
    _require_root()
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin:/usr/lib/go/bin")
    if go is None:
        raise HostError("building runsc needs go; install it, or use --from and --sha256")
    with tempfile.TemporaryDirectory(prefix="cloister-runsc-") as place:
        # Everything of it is in there, and gone afterwards.
        env = {
            "PATH": f"{Path(go).parent}:/usr/bin:/bin",
            "HOME": place,
            "GOBIN": place,
            "GOFLAGS": "-buildvcs=false -modcacherw",
            "CGO_ENABLED": "0",
        }
        module = f"{_MODULE}@{_VERSION}"
        (Path(place) / "go.mod").write_text("module cloister.invalid/runsc\n")
        told = _run([go, "mod", "download", "-json", module], env, _FETCH_S, place)
        found = json.loads(told).get("Sum")
        if found != _SUM:
            raise HostError(f"{module} is {found}, and should be {_SUM}; it was not built")
        name = f"-X {_MODULE}/runsc/version.version=release-{_VERSION[7:15]}.0"
        _run([go, "install", "-ldflags", name, f"{_MODULE}/runsc@{_VERSION}"], env, _BUILD_S, "/")
        made = Path(place) / "runsc"
        return install_file(made, _digest_of(made))


def _require_root() -> None:
    if os.geteuid() != 0:
        raise HostError("runsc is installed for everybody by root; run this with sudo")


def _digest_of(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _run(words: Sequence[str], env: Mapping[str, str], most_s: float, cwd: str = "/") -> str:
    try:
        done = subprocess.run(words, capture_output=True, env=dict(env), cwd=cwd, timeout=most_s)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostError(f"{words[0]} did not finish: {error}; see docs/runtimes.md") from error
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip()[-500:]
        raise HostError(f"`{' '.join(words)}` failed: {said}; see docs/runtimes.md")
    return done.stdout.decode("utf-8", "replace")
