"""What of a policy the words of `Sandbox(...)` change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cloister.errors import RequestError
from cloister.model import VolumeMount, parse_volume
from cloister.policy import Egress, ImageRoot, Root


def policy_changes(
    *,
    root: Root | None,
    image: str | None,
    egress: Egress | Sequence[str] | None,
    volumes: Sequence[VolumeMount | str] | None,
    **others: Any,
) -> dict[str, Any]:
    """Return those that were said; the shorter ways of saying something written out."""
    if image is not None and root is not None:
        raise RequestError("image and root are both given; a sandbox has one root")
    changes: dict[str, Any] = {
        **others,
        "root": root if image is None else ImageRoot(image),
        "egress": egress if egress is None or isinstance(egress, Egress) else Egress(egress),
        "volumes": None if volumes is None else [_volume(each) for each in volumes],
    }
    return {name: value for name, value in changes.items() if value is not None}


def _volume(value: VolumeMount | str) -> VolumeMount:
    return value if isinstance(value, VolumeMount) else parse_volume(value)
