"""The wall of a machine of its own: another kernel, on emulated devices."""

from __future__ import annotations

from cloister.runtime.microvm.runtime import MicrovmRuntime

__all__ = ["MicrovmRuntime"]
