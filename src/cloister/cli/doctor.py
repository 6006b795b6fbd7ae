"""x"""

from __future__ import annotations

import click


@click.command()
def doctor() -> None:
    """x"""
