"""Runs a server from its settings to its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cloister.server.app import App, Door, House, open_house
from cloister.server.listeners import listen
from cloister.server.settings import Settings

# What makes another protocol's door, once there is something behind it.
MakeDoor = Callable[[House], Door]


async def serve(
    settings: Settings,
    on_ready: Callable[[list[str]], None],
    doors: Sequence[MakeDoor] = (),
) -> None:
    """Serve until told to end; then everything that runs is ended, and what is kept stays."""
    async with open_house(settings) as house:
        app = App(house, [make(house) for make in doors])
        await listen(app, settings, on_ready)
