"""`cloister template`: names for an image, a policy and a program to start."""

from __future__ import annotations

import asyncio
import json
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cloister.cli import session
from cloister.cli.build_progress import BuildLines
from cloister.cli.ps import short_age
from cloister.cli.table import print_table
from cloister.errors import RequestError
from cloister.node import open_store
from cloister.policy import load_policy

if TYPE_CHECKING:
    from cloister.build.template_file import TemplateSpec
    from cloister.node.templates import TemplateRecord


@click.group()
def template() -> None:
    """Make, list and remove templates; `cloister run --template NAME` starts one.

    For example: `cloister template build dev --image debian --run "apt-get install -y git"`
    """


@template.command("build")
@click.option("--image", metavar="NAME", help="The image it stands on.")
@click.option("--run", "steps", metavar="LINE", multiple=True, help="Do this once. Repeatable.")
@click.option("--start", metavar="LINE", help="What every sandbox of it starts with.")
@click.option("--ready", metavar="LINE", help="It is ready once this succeeds.")
@click.option("--ready-port", type=int, metavar="PORT", help="It is ready once this port answers.")
@click.option("--ready-timeout", metavar="TIME", help="How long it may take; 60s unless told.")
@click.option(
    "--policy",
    "policy_file",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="What its sandboxes are and may do.",
)
@click.option("--no-cache", is_flag=True, help="Do every step again.")
@click.option("--quiet", is_flag=True, help="Do not show the steps.")
@click.option("--json", "as_json", is_flag=True, help="Print the template as one JSON object.")
@click.argument("what", metavar="FILE.toml|NAME")
def build(
    what: str,
    image: str | None,
    steps: tuple[str, ...],
    start: str | None,
    ready: str | None,
    ready_port: int | None,
    ready_timeout: str | None,
    policy_file: str | None,
    no_cache: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Run steps once on an image and keep the result, so that sandboxes of it start at once.

    A FILE.toml says all of it; otherwise the options do. Each build is a new version, and a name
    alone means the newest.

    For example: `cloister template build web --image python --run "pip install flask"
    --start "flask run" --ready-port 5000`
    """
    from cloister.build.template_file import TemplateSpec, load_template, make_ready

    if what.endswith(".toml"):
        given = (image, start, ready, ready_port, ready_timeout, policy_file)
        if steps or any(each is not None for each in given):
            raise RequestError(f"{what} says what the template is; leave the options out")
        spec = load_template(Path(what))
    else:
        spec = TemplateSpec(
            what,
            image=image,
            steps=steps,
            start=start or (),
            ready=make_ready(ready, ready_port, ready_timeout),
            policy=None if policy_file is None else load_policy(policy_file),
        )
    return session.run_until_signal(lambda: _build(spec, no_cache, quiet, as_json))


async def _build(spec: TemplateSpec, no_cache: bool, quiet: bool, as_json: bool) -> int:
    from cloister.build.template import build_template

    lines = BuildLines(quiet=quiet)
    made = await build_template(spec, use_cache=not no_cache, on_progress=lines.tell)
    click.echo(json.dumps(made.as_dict()) if as_json else f"{made.reference} {made.image}")
    return 0


@template.command("ls")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list, one object a version.")
def list_(as_json: bool) -> int:
    """List the templates and their versions.

    For example: `cloister template ls --json`
    """
    return session.run_until_signal(lambda: _list(as_json))


async def _list(as_json: bool) -> int:
    from cloister.node.templates import Templates

    found = await asyncio.to_thread(Templates(await open_store()).all)
    if as_json:
        click.echo(json.dumps([each.as_dict() for each in found]))
    else:
        print_table(("template", "start", "ready", "age"), [_row(each) for each in found])
    return 0


def _row(record: TemplateRecord) -> list[str]:
    ready = "-"
    if record.ready is not None:
        port = record.ready.port
        ready = shlex.join(record.ready.command) if port is None else f"port {port}"
    age = short_age(max(0.0, time.time() - record.created_at))
    return [record.reference, shlex.join(record.start) or "-", ready, age]


@template.command()
@click.option("--json", "as_json", is_flag=True, help="Print the template as one JSON object.")
@click.argument("name", metavar="NAME[:VERSION]")
def inspect(name: str, as_json: bool) -> int:
    """Show what one template is: its image, its steps, its policy.

    For example: `cloister template inspect web`
    """
    return session.run_until_signal(lambda: _inspect(name, as_json))


async def _inspect(name: str, as_json: bool) -> int:
    from cloister.node.templates import Templates

    found = (await asyncio.to_thread(Templates(await open_store()).find, name)).as_dict()
    if as_json:
        click.echo(json.dumps(found))
    else:
        print_table(("what", "is"), [[key, json.dumps(value)] for key, value in found.items()])
    return 0


@template.command()
@click.option("--json", "as_json", is_flag=True, help="Print what is gone as a JSON list.")
@click.argument("names", nargs=-1, required=True, metavar="NAME[:VERSION]...")
def rm(names: tuple[str, ...], as_json: bool) -> int:
    """Remove versions, or names with all their versions; images go with `cloister gc`.

    For example: `cloister template rm web:1`
    """
    return session.run_until_signal(lambda: _remove(names, as_json))


async def _remove(names: tuple[str, ...], as_json: bool) -> int:
    from cloister.node.templates import Templates

    templates = Templates(await open_store())
    gone = []
    for name in names:
        gone += await asyncio.to_thread(templates.remove, name)
    if as_json:
        click.echo(json.dumps(gone))
    else:
        for each in gone:
            click.echo(f"{each} is removed")
    return 0
