"""What tests of memory share: whether gVisor can be had here, and a program that is saved."""

from __future__ import annotations

import os

import pytest

from cloister.runtime.gvisor.program import candidates
from cloister.runtime.namespace.ids import find_sub_ids

_HAS_GVISOR = bool(candidates()) and (os.geteuid() == 0 or find_sub_ids() is not None)
needs_gvisor = pytest.mark.skipif(not _HAS_GVISOR, reason="gvisor cannot be built on this host")

COUNTING = """
import time
number = 0
while True:
    number += 1
    with open("/workspace/numbers", "a") as file:
        file.write(f"{number}\\n")
    time.sleep(0.01)
"""
