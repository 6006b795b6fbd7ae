"""A release of runsc is installed if it has the digest that was said, and else nothing is done."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from cloister.errors import HostError, RequestError
from cloister.runtime.gvisor import obtain, program

RELEASE = b"#!/bin/sh\necho runsc version release-20300101.0\n"


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where it goes, in place of /usr/local/bin; as root, who alone may."""
    path = tmp_path / "bin" / "runsc"
    path.parent.mkdir()
    monkeypatch.setattr(obtain, "_TARGET", path)
    monkeypatch.setattr(program, "_PLACES", (str(path.parent),))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", "/nonexistent")
    program.find_runsc.cache_clear()
    return path


@pytest.fixture
def release(tmp_path: Path) -> Path:
    path = tmp_path / "download"
    path.write_bytes(RELEASE)
    return path


def test_a_release_with_the_digest_that_was_said_is_installed(target: Path, release: Path) -> None:
    digest = hashlib.sha256(RELEASE).hexdigest()
    told = obtain.install_file(release, digest.upper())
    program.find_runsc.cache_clear()
    assert "20300101.0" in told
    assert target.read_bytes() == RELEASE and target.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("digest", ["ab" * 32, "", "ab", "g" * 64])
def test_any_other_is_not(target: Path, release: Path, digest: str) -> None:
    with pytest.raises(RequestError, match=r"sha256|SHA-256"):
        obtain.install_file(release, digest)
    assert not [*target.parent.iterdir()]


def test_a_file_that_is_not_there_is_said_to_be(target: Path, tmp_path: Path) -> None:
    with pytest.raises(HostError, match="cannot be installed"):
        obtain.install_file(tmp_path / "absent", "ab" * 32)
    assert not [*target.parent.iterdir()]


def test_only_root_installs(target: Path, release: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(HostError, match="sudo"):
        obtain.install_file(release, hashlib.sha256(RELEASE).hexdigest())
    assert not target.exists()


def test_what_has_the_digest_and_is_no_runsc_takes_nobodys_place(
    target: Path, release: Path
) -> None:
    obtain.install_file(release, hashlib.sha256(RELEASE).hexdigest())
    release.write_bytes(b"#!/bin/sh\nexit 1\n")
    with pytest.raises(RequestError, match="not installed"):
        obtain.install_file(release, hashlib.sha256(release.read_bytes()).hexdigest())
    assert target.read_bytes() == RELEASE and [*target.parent.iterdir()] == [target]


def test_a_broken_one_is_not_said_to_be_mended_by_the_same_command(target: Path) -> None:
    target.write_bytes(b"#!/bin/sh\nexit 1\n")
    target.chmod(0o755)
    with pytest.raises(HostError, match="reinstall") as told:
        obtain.install_package()
    assert "run `cloister setup gvisor`" not in str(told.value)
