"""What a bench is given: how long it may take, where to work, and the peers found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benches.peers.peer import Peer


@dataclass(frozen=True, slots=True)
class Setting:
    """Handed to each bench; `scratch` is a directory on tmpfs that is removed afterwards."""

    quick: bool
    scratch: Path
    peers: Mapping[str, Peer]
    absent: Mapping[str, str]

    def rounds(self, full: int) -> int:
        return max(3, full // 10) if self.quick else full
