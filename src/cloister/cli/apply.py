"""`cloister apply`: what a kept sandbox made of a directory, put on that directory of the host."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from cloister.cli import session
from cloister.cli.gates import pass_gate, plan_details, plan_digest
from cloister.cli.kept import Compared, find_kept, opened_trees, policy_of
from cloister.cli.progress import Waiting
from cloister.cli.telling import note
from cloister.errors import RequestError
from cloister.model import parse_absolute_path, quote
from cloister.policy import Effect
from cloister.sandbox import baselines
from cloister.store.changes import Applied, Baseline, Plan, perform, plan_apply
from cloister.store.changes.obeyed import is_obeyed_by_tools
from cloister.store.stand_in import as_reader

_SHOWN = 200
_OBEYED = "  (programs of the host run or obey this by themselves)"


@click.command()
@click.option("--from", "below", metavar="PATH", default="/workspace", help="The directory inside.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Show what would be done, and do nothing.")
@click.option("--skip-refused", is_flag=True, help="Leave out what may not be put on a host.")
@click.option("--json", "as_json", is_flag=True, help="Print what was done as one JSON object.")
@click.argument("name")
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
def apply(
    name: str,
    directory: Path,
    below: str,
    yes: bool,
    dry_run: bool,
    skip_refused: bool,
    as_json: bool,
) -> int:
    """Put what the kept sandbox NAME changed below /workspace on the host's DIRECTORY.

    What would be done is shown first, and asked about on a terminal. Nothing is done if the host
    has changed one of the same paths since it was copied in, or if it cannot all be done. Only
    what is inside DIRECTORY is written, and never through a link.

    For example: `cloister apply task-42 .`
    """
    tree = parse_absolute_path(below, "--from")
    asked = Asked(yes, dry_run, skip_refused, as_json)
    return session.run_until_signal(lambda: _apply(name, directory, tree, asked))


@dataclass(frozen=True, slots=True)
class Asked:
    """How a person wants it."""

    yes: bool
    dry_run: bool
    skip_refused: bool
    as_json: bool


def require_somebody(asked: Asked) -> None:
    """Refuse to do what nobody can be asked about."""
    if not asked.yes and not asked.dry_run and not session.is_terminal(0):
        raise click.UsageError("nobody is here to ask; add --yes, or --dry-run to look first")


async def _apply(name: str, directory: Path, below: str, asked: Asked) -> int:
    store, kept = await find_kept(name)
    policy = policy_of(kept)
    baseline = await asyncio.to_thread(baselines.read, store, name, below)
    require_somebody(asked)
    async with opened_trees(name) as (compared, ask):
        with Waiting(f"comparing {below} with {directory}"):
            plan = await asyncio.to_thread(
                as_reader, _plan, compared, directory.absolute(), below, baseline
            )
        code = await agree(plan, name, asked)
        if code is not None:
            return code
        await pass_gate(
            *("apply", policy, ask),
            subject=f"{name} to {plan.directory}",
            content=plan_digest(plan),
            details=plan_details(plan),
        )
        if policy.gates.apply is Effect.ASK:
            # While it waited, somebody may have changed what was asked about.
            again = await asyncio.to_thread(
                as_reader, _plan, compared, directory.absolute(), below, baseline
            )
            if plan_digest(again) != plan_digest(plan):
                raise RequestError("it has changed since it was asked about; nothing was done")
        with Waiting(f"writing to {directory}"):
            done = await asyncio.to_thread(as_reader, _perform, plan, asked.skip_refused)
    if baseline is not None:
        # What was put there is from now on what the host had.
        await asyncio.to_thread(baselines.renew, store, name, below, baseline, plan.steps)
    return tell(plan, done.steps, asked)


async def agree(plan: Plan, name: str, asked: Asked) -> int | None:
    """Show a plan and have it agreed to; what to exit with, where nothing is to be done."""
    if not asked.as_json:
        for line in shown(plan, whole=asked.dry_run):
            click.echo(line)
    _require_agreed(plan, name, asked)
    if not plan.steps or asked.dry_run:
        return tell(plan, 0, asked)
    if not asked.yes and not await asyncio.to_thread(_confirm, plan):
        note("nothing was done")
        return 1
    return None


def _plan(compared: Compared, directory: Path, below: str, baseline: Baseline | None) -> Plan:
    strata, skeleton, owners = compared
    return plan_apply(strata, directory, skeleton, owners, below=below, baseline=baseline)


def _perform(plan: Plan, skip_refused: bool) -> Applied:
    return perform(plan, leave_out_refused=skip_refused)


def shown(plan: Plan, *, whole: bool) -> Iterator[str]:
    """Yield the lines to show: not all, but each that programs of the host obey by themselves."""
    left_out = 0
    for count, step in enumerate(plan.steps, 1):
        is_obeyed = step.after is not None and is_obeyed_by_tools(step.path)
        if whole or is_obeyed or count <= _SHOWN:
            yield step.display() + (_OBEYED if is_obeyed else "")
        else:
            left_out += 1
    if left_out:
        yield f"and {left_out} more; --dry-run shows all"
    for kind, objections in (("conflict", plan.conflicts), ("refused", plan.refused)):
        for objection in objections:
            yield f"{kind}: {objection.display()}"


def _require_agreed(plan: Plan, name: str, asked: Asked) -> None:
    if plan.conflicts:
        first = plan.conflicts[0].display()
        raise RequestError(
            f"{len(plan.conflicts)} paths of {plan.directory} cannot be changed, the first is "
            f"{first}; nothing was done: move them away, or take the changes with "
            f"`cloister export {name} --as patch`"
        )
    if plan.refused and not asked.skip_refused:
        raise RequestError(
            f"{len(plan.refused)} paths may not be put on a host, the first is "
            f"{plan.refused[0].display()}; nothing was done: add --skip-refused to leave them out"
        )


def _confirm(plan: Plan) -> bool:
    return click.confirm(f"change {len(plan.steps)} paths in {quote(str(plan.directory))}?")


def tell(plan: Plan, done: int, asked: Asked) -> int:
    """Say what was done."""
    if asked.as_json:
        steps = [each.display() for each in plan.steps]
        refused = [each.display() for each in plan.refused]
        click.echo(json.dumps({"steps": steps, "refused": refused, "done": done}))
    elif not plan.steps:
        click.echo("nothing to do")
    elif done:
        click.echo(f"{done} paths changed in {plan.directory}")
    return 0
