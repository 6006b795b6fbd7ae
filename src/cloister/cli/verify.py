"""`cloister verify`: the hostile catalogue against this very machine, and what held."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import AsyncIterator, Collection
from contextlib import aclosing
from dataclasses import asdict
from typing import TYPE_CHECKING, cast

import click

from cloister.cli import session
from cloister.cli.neutral import neutralise
from cloister.errors import RequestError
from cloister.model import quote
from cloister.policy import RuntimeName

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from cloister.verify import Outcome

_HELD, _NOT_HELD, _NOT_APPLICABLE = "held", "NOT HELD", "not applicable"
_STYLES = {_HELD: "green", _NOT_HELD: "bold red", _NOT_APPLICABLE: "yellow"}


@click.command()
@click.option("--only", metavar="ID", multiple=True, help="Run this case alone. Repeatable.")
@click.option(
    "--area", metavar="NAME", multiple=True, help="Run one area, such as LCH. Repeatable."
)
@click.option(
    "--runtime",
    type=click.Choice([name.value for name in RuntimeName]),
    help="The wall to attack; the cases are written for the first.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object with all outcomes.")
def verify(only: tuple[str, ...], area: tuple[str, ...], runtime: str | None, as_json: bool) -> int:
    """Attack sandboxes on this machine and say which walls held.

    Every case plants canaries, tries an attack that is also shown to work where it is allowed,
    and counts what is left behind. Exits with 1 if a wall did not hold.
    """
    return session.run_until_signal(lambda: _verify(only, area, runtime, as_json))


async def _verify(
    only: tuple[str, ...], area: tuple[str, ...], runtime: str | None, as_json: bool
) -> int:
    _require_known(only, area)
    if runtime == RuntimeName.WASM:
        raise click.UsageError("the attacks are programs, which the runtime wasm does not run")
    outcomes: list[Outcome] = []
    show = _Silent() if as_json else _Terminal() if sys.stdout.isatty() else _Plain()
    with show:
        async with aclosing(_run(only or None, area or None, runtime)) as running:
            async for outcome in running:
                outcomes.append(outcome)
                show.add(outcome)
    counts: Counter[str] = Counter(outcome.verdict for outcome in outcomes)
    if as_json:
        listed = [asdict(outcome) for outcome in outcomes]
        summary = {word: counts[word] for word in (_HELD, _NOT_HELD, _NOT_APPLICABLE)}
        click.echo(json.dumps({"summary": summary, "outcomes": listed}))
    else:
        said = ", ".join(f"{counts[word]} {word}" for word in (_HELD, _NOT_HELD, _NOT_APPLICABLE))
        click.echo(f"{len(outcomes)} cases: {said}")
    return 1 if counts[_NOT_HELD] else 0


def _run(
    only: Collection[str] | None, areas: Collection[str] | None, runtime: str | None
) -> AsyncGenerator[Outcome, None]:
    from cloister.verify import run_catalogue

    running: AsyncIterator[Outcome] = run_catalogue(only, areas, runtime)
    return cast("AsyncGenerator[Outcome, None]", running)


def _require_known(only: tuple[str, ...], area: tuple[str, ...]) -> None:
    # A misspelt name must not count as a run in which nothing failed.
    from cloister.verify import CATALOGUE, load_cases

    load_cases()
    ids, areas = {case.id for case in CATALOGUE}, {case.area for case in CATALOGUE}
    for name in only:
        if name not in ids:
            raise RequestError(f"no case {quote(name)}; `cloister verify --json` lists them all")
    for name in area:
        if name not in areas:
            raise RequestError(f"no area {quote(name)}; the areas are {', '.join(sorted(areas))}")


class _Silent:
    """Shows nothing while the cases run."""

    def __enter__(self) -> _Silent:
        return self

    def __exit__(self, *ending: object) -> None:
        return

    def add(self, outcome: Outcome) -> None:
        """Take the next outcome."""


class _Plain(_Silent):
    """One line a case, as it ends."""

    def add(self, outcome: Outcome) -> None:
        click.echo("  ".join(cell for cell in _cells(outcome) if cell))
        # A watcher of the pipe sees each line when it is true, not when a buffer is full.
        sys.stdout.flush()


class _Terminal(_Silent):
    """A table that grows, with the case that is running below it."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console()
        self._status = self._console.status("attacking")

    def __enter__(self) -> _Terminal:
        self._status.start()
        return self

    def __exit__(self, *ending: object) -> None:
        self._status.stop()

    def add(self, outcome: Outcome) -> None:
        from rich.text import Text

        id, verdict, severity, title, detail = _cells(outcome)
        line = Text(f"{id}  ")
        line.append(f"{verdict:<14}", style=_STYLES.get(outcome.verdict, ""))
        line.append(f"  {severity}  {title}")
        if detail:
            line.append(f"\n        {detail}", style="dim")
        self._console.print(line)


def _cells(outcome: Outcome) -> tuple[str, str, str, str, str]:
    detail = " ".join(neutralise(outcome.detail).split())
    return (
        outcome.id,
        f"{outcome.verdict:<14}",
        f"{outcome.severity:<8}",
        outcome.title,
        f"({detail})" if detail else "",
    )
