"""What sandboxes are shown for sessions of code is installed by programs of the host's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloister.e2b.interpreter.library import install_library
from cloister.errors import HostError


def test_nothing_of_the_directory_it_is_installed_from_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    for name in ("pip", "compileall", "ipykernel"):
        (checkout / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()")
    monkeypatch.chdir(checkout)
    monkeypatch.setenv("CLOISTER_STATE", str(tmp_path / "state"))
    # Then it is the real one that says what is missing, without asking anybody.
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(HostError, match="No matching distribution found"):
        install_library("python3")
    assert not (tmp_path / "ran").exists()
