"""The catalogue's attacks, one file for each area."""

from __future__ import annotations

import importlib
from importlib.util import find_spec

# The area SYS is in sysc: a module named sys would read as the standard library's.
AREAS = (
    *("lch", "lch_identity", "sysc", "sysc_ability", "prc", "prc_root"),
    *("fsm", "res", "lif", "agt", "xfr", "out", "out_counts", "img", "img_state", "cfg"),
    *(
        "net",
        "dns_names",
        "dns_answers",
        "dom",
        "pxy",
        "sec",
        "apr",
        "aud",
        "aud_store",
        "tir",
        "tir_machine",
    ),
)


def load_cases() -> None:
    """Import every area, which registers its cases."""
    for area in AREAS:
        name = f"{__name__}.{area}"
        if find_spec(name) is not None:
            importlib.import_module(name)
