"""Whoever pulls may be killed at any moment; the next one finds nothing half-made."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cloister.build import pull_image
from cloister.store import Store

# Says "begun" when the first bytes of the layer have come, and then takes no more of it.
PULLER = """
import asyncio, sys
from pathlib import Path
from cloister.build import pulling, unpacking
from cloister.store import Store

async def stuck(directory, archive, *, executor=None):
    def part():
        for count, chunk in enumerate(archive):
            yield chunk
            if count == 2:
                print("begun", flush=True)
                sys.stdin.read()
    return await unpacking.unpack_layer(directory, part(), executor=executor)

async def main():
    pulling.unpack_layer = stuck
    with Store.open(Path(sys.argv[1])) as store:
        await pulling.pull_image(store, sys.argv[2], name="it")

asyncio.run(main())
"""


@pytest.mark.parametrize("waiting", [False, True])
async def test_a_killed_pull_leaves_nothing_and_holds_nobody_up(
    tmp_path: Path, tar: Callable[..., bytes], parts: Any, waiting: bool
) -> None:
    made = parts([tar(("big", {"content": os.urandom(8 * 2**20)}))])
    reference = made.write_layout(tmp_path / "image")
    state = tmp_path / "state"
    puller = subprocess.Popen(
        [sys.executable, "-c", PULLER, str(state), reference],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    with puller:
        assert puller.stdout is not None and puller.stdout.readline() == b"begun\n"
        with Store.open(state) as store:
            layers = store.driver.root / "layers"
            assert len(list(layers.iterdir())) == 1 and store.images.list() == []
            if waiting:
                # Somebody waits for the layer while its puller dies, and then brings it.
                asked = asyncio.Event()
                pulling = asyncio.create_task(
                    pull_image(store, reference, name="it", on_progress=lambda _: asked.set())
                )
                await asked.wait()
                puller.kill()
                image = await pulling
            else:
                puller.kill()
                puller.wait()
                image = await pull_image(store, reference, name="it")
            assert (image.layers[0] / "big").stat().st_size == 8 * 2**20
            assert len(list(layers.iterdir())) == 1
    assert [path.name for path in state.iterdir() if path.name.startswith("tmp")] == []
