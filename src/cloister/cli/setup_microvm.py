"""`cloister setup microvm`: what machines need, fetched and made before it is needed."""

from __future__ import annotations

import asyncio
import json

import click

from cloister.cli.progress import Waiting


@click.command()
@click.option("--programs-only", is_flag=True, help="Fetch QEMU and a kernel; make no disks yet.")
@click.option("--json", "as_json", is_flag=True, help="Print what was done as a JSON list.")
def microvm(programs_only: bool, as_json: bool) -> None:
    """Have machines ready: QEMU, a kernel, a disk with this host's programs, a machine that booted.

    As root it installs QEMU through apt. The kernel is unpacked into the state directory
    and not installed. The disk takes as much room as the host's /usr, and a minute or more; it is
    made again when programs were installed or removed.

    For example: `cloister setup microvm`
    """
    from cloister.runtime.microvm.obtain import obtain_kernel, obtain_qemu

    done = []
    with Waiting("fetching QEMU"):
        done.append(obtain_qemu())
    with Waiting("fetching a kernel"):
        done.append(obtain_kernel())
    if not programs_only:
        with Waiting("making a disk of this host's programs, and booting a machine"):
            done.append(f"started: a sandbox in a machine, {asyncio.run(_start())}")
    click.echo(json.dumps(done) if as_json else "\n".join(done))


async def _start() -> str:
    from cloister.sandbox import Sandbox

    async with Sandbox(runtime="microvm", label="cloister setup") as sandbox:
        (await sandbox.run(["/bin/true"])).check()
        facts = sandbox.posture.facts
        return f"{facts['wall_version']}, {facts['wall_platform']}, {facts['kernel']}"
