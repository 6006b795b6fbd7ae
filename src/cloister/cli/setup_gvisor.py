"""`cloister setup gvisor`: installs runsc, and proves it by starting a sandbox."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import click

from cloister.cli.progress import Waiting
from cloister.errors import RequestError


@click.command()
@click.option("--from", "path", type=Path, metavar="FILE", help="A release of runsc to install.")
@click.option("--sha256", "digest", metavar="DIGEST", help="What FILE must have; needed with it.")
@click.option("--build", is_flag=True, help="Build the release that is known here, by go.")
@click.option("--json", "as_json", is_flag=True, help="Print what was done as a JSON list.")
def gvisor(path: Path | None, digest: str | None, build: bool, as_json: bool) -> None:
    """Have gVisor ready: runsc from apt, from a file, or built from its source.

    Run it as root. What is installed goes to /usr/local/bin/runsc. Where several are found, the
    newest is used.

    For example: `cloister setup gvisor --from ./runsc --sha256 9f86d081884c7d659a2feaa0c55ad015…`
    """
    from cloister.runtime.gvisor import obtain

    if (path is None) != (digest is None):
        raise RequestError("--from and --sha256 go together: name the file and its digest")
    if path is not None and build:
        raise RequestError("--from installs a file, --build makes one; leave one of them out")
    done = []
    with Waiting("installing runsc"):
        if path is not None and digest is not None:
            done.append(obtain.install_file(path, digest))
        elif build:
            done.append(obtain.build())
        else:
            done.append(obtain.install_package())
    with Waiting("starting a sandbox behind it"):
        done.append(f"started: a sandbox, {asyncio.run(_start())}")
    click.echo(json.dumps(done) if as_json else "\n".join(done))


async def _start() -> str:
    from cloister.sandbox import Sandbox

    async with Sandbox(runtime="gvisor", label="cloister setup") as sandbox:
        (await sandbox.run(["/bin/true"])).check()
        facts = sandbox.posture.facts
        return f"{facts['wall_version']}, {facts['wall_platform']}"
