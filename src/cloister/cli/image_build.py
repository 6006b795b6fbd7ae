"""`cloister image build`: an image from a Dockerfile, or a Debian base."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cloister.cli import session
from cloister.cli.build_progress import BuildLines
from cloister.errors import RequestError
from cloister.model import quote
from cloister.policy import load_policy

if TYPE_CHECKING:
    from cloister.build.stock import Image

_NOT_IN_A_NAME = re.compile(r"[^a-z0-9._-]+")


@click.command("build")
@click.option(
    "-f", "--file", "dockerfile", metavar="FILE", help="Dockerfile; CONTEXT/Dockerfile unless told."
)
@click.option(
    "-t", "--name", metavar="NAME", help="What to call it; the context's own name unless told."
)
@click.option(
    "--build-arg",
    "arguments",
    metavar="NAME=VALUE",
    multiple=True,
    help="A value for an ARG of the Dockerfile. Repeatable.",
)
@click.option("--target", metavar="STAGE", help="Build up to this stage.")
@click.option(
    "--policy",
    "policy_file",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Policy of the steps: their limits, and what they may reach.",
)
@click.option("--no-cache", is_flag=True, help="Do every step again.")
@click.option("--debian", "suite", metavar="RELEASE", help="Make a Debian base instead.")
@click.option(
    "--include", metavar="PACKAGES", help="Packages for the Debian base, separated by commas."
)
@click.option(
    "--variant", metavar="NAME", help="Which packages it has anyway: minbase unless told."
)
@click.option("--mirror", metavar="URL", help="Where to get them, instead of the host's sources.")
@click.option("--quiet", is_flag=True, help="Do not show the steps.")
@click.option("--json", "as_json", is_flag=True, help="Print the image as one JSON object.")
@click.argument("what", metavar="CONTEXT|NAME", default=".")
def build(
    what: str,
    dockerfile: str | None,
    name: str | None,
    arguments: tuple[str, ...],
    target: str | None,
    policy_file: str | None,
    no_cache: bool,
    suite: str | None,
    include: str | None,
    variant: str | None,
    mirror: str | None,
    quiet: bool,
    as_json: bool,
) -> int:
    """Build an image. CONTEXT is the directory that COPY takes files from.

    Every step runs in a sandbox without network, unless --policy allows some. With --debian, NAME
    is what to call the base.

    For example: `cloister image build -t app .`, or
    `cloister image build --debian bookworm --include git,python3-pip dev`
    """
    lines = BuildLines(quiet=quiet)
    if suite is not None:
        _refuse_beside("--debian", dockerfile, arguments, target, policy_file, no_cache)
        chosen = name or what

        async def make() -> Image:
            from cloister.build.stock import Image

            return await Image.debian(
                suite,
                chosen,
                include=_packages(include),
                variant=variant or "minbase",
                mirror=mirror,
                on_progress=lines.tell,
            )
    else:
        _refuse_beside("a Dockerfile", include, variant, mirror)
        chosen = name or _name_of(Path(what))
        policy = None if policy_file is None else load_policy(policy_file)
        values = dict(_argument(text) for text in arguments)

        async def make() -> Image:
            from cloister.build.stock import Image

            return await Image.build(
                what,
                chosen,
                dockerfile=dockerfile,
                arguments=values,
                target=target,
                policy=policy,
                use_cache=not no_cache,
                on_progress=lines.tell,
            )

    async def work() -> int:
        made = await make()
        if as_json:
            click.echo(json.dumps(made.stored.as_dict()))
        else:
            click.echo(f"{chosen} {made.digest}")
        return 0

    return session.run_until_signal(work)


def _refuse_beside(what: str, *values: object) -> None:
    if any(value not in (None, (), False) for value in values):
        raise RequestError(
            f"an option does not go with {what}; "
            "--include, --variant and --mirror are for --debian, the others for a Dockerfile"
        )


def _packages(text: str | None) -> list[str]:
    return [] if text is None else [each for each in re.split(r"[,\s]+", text) if each]


def _argument(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise RequestError(f"--build-arg is {quote(text)}; write it as NAME=VALUE")
    return name, value


def _name_of(context: Path) -> str:
    name = _NOT_IN_A_NAME.sub("-", context.resolve().name.lower()).strip("-._")
    if not name:
        raise RequestError(f"{context} has no name to call the image by; add -t NAME")
    return name
