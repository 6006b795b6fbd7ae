"""LCH: what a launch leaves open, inherited or told: descriptors, environment, keys, terminals."""

from __future__ import annotations

from cloister.verify.arena import Arena
from cloister.verify.case import case

_CONNECT_ABSTRACT = """
def attempt(name):
    with socket.socket(socket.AF_UNIX) as client:
        client.connect("\\0" + name)
"""


@case("LCH-07", "connect to an abstract unix socket of the host", "critical")
async def abstract_socket(arena: Arena) -> None:
    name = arena.far_end.abstract_name
    async with arena.far_end.expecting("abstract"):
        arena.expect_allowed(await arena.attempt_on_host(_CONNECT_ABSTRACT, name))
    async with arena.sandbox() as sandbox:
        attempt = await arena.attempt(sandbox, _CONNECT_ABSTRACT, name)
        arena.expect_denied(attempt, "ECONNREFUSED", "EPERM")
