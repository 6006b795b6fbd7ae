"""What is said of a volume that the user inside cannot get to, and of one that it can."""

from __future__ import annotations

import pytest

from cloister.cli import telling
from cloister.model import VolumeMount
from cloister.policy import Policy


@pytest.mark.parametrize(
    ("target", "profile", "is_said"),
    [
        ("/root/.cache", "default", True),
        ("/root/.cache", "root", False),
        ("/home/user/.cache", "default", False),
        ("/rooted", "default", False),
    ],
)
def test_a_volume_in_roots_home_is_pointed_out_to_who_cannot_enter_it(
    target: str,
    profile: str,
    is_said: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    telling.warn_unreachable(Policy(volumes=[VolumeMount("cache", target)], profile=profile))
    assert ("--profile root" in capsys.readouterr().err) is is_said
