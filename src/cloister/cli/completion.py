"""`cloister completion`: the script that lets a shell complete our commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(command: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    For bash, add `eval "$(cloister completion bash)"` to ~/.bashrc; likewise for zsh. For fish,
    write it to ~/.config/fish/completions/cloister.fish.
    """
    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"no completion for {shell} in this version of click")
    root = command.find_root().command
    click.echo(kind(root, {}, "cloister", "_CLOISTER_COMPLETE").source())
