"""What a machine begins with: memory and devices of one that has booted, or of one that ran."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from cloister.errors import Unsupported
from cloister.runtime.memory import Memory
from cloister.runtime.microvm.held import hold
from cloister.runtime.microvm.layers import Layer, Standing
from cloister.runtime.microvm.machine import Shape
from cloister.runtime.microvm.saving import ACCELERATOR, KERNEL, STATE
from cloister.runtime.microvm.settled import SettledMemories
from cloister.runtime.microvm.template import Template


@dataclass(frozen=True, slots=True)
class Begun:
    """Descriptors of memory and devices, the kernel that is in there, and what it stands on."""

    memory: int
    state: int
    kernel: str
    standing: Standing


def begun_from_template(held: ExitStack, made: Template) -> Begun:
    """Return what a machine begins with that has booted; closed with `held`, as the template is."""
    held.callback(made.close)
    state = hold(held, made.opened_state())
    standing = Standing((Layer(made.name),), began_from_lowest=True)
    return Begun(made.memory, state, made.kernel, standing)


async def begun_from_memory(
    held: ExitStack, settled: SettledMemories, shape: Shape, memory: Memory
) -> Begun:
    """Return what a machine begins with that ran; closed with `held`."""
    _require_same_accelerator(memory.files, shape)
    first, standing = await settled.of(shape, memory)
    hold(held, first)
    state = hold(held, os.open(memory.files / STATE, os.O_RDONLY | os.O_CLOEXEC))
    return Begun(first, state, _saved_kernel(memory.files), standing)


def _require_same_accelerator(files: Path, shape: Shape) -> None:
    """Refuse to go on with another processor than the one that was saved."""
    saved = (files / ACCELERATOR).read_text()
    if saved != shape.accelerator:
        raise Unsupported(
            f"the machine was saved under {saved} and would go on under {shape.accelerator}; set "
            f"CLOISTER_MICROVM_ACCEL={saved}"
        )


def _saved_kernel(files: Path) -> str:
    """Return the release of the kernel that was saved; memory of earlier releases has none."""
    try:
        return (files / KERNEL).read_text()
    except FileNotFoundError:
        return "unknown"
