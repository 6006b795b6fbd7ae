"""x"""

from __future__ import annotations

import click


@click.command()
def verify() -> None:
    """x"""
