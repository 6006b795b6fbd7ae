"""The wall of gVisor: a kernel in user space answers every system call of the sandbox."""

from __future__ import annotations

from cloister.runtime.gvisor.runtime import GvisorRuntime

__all__ = ["GvisorRuntime"]
