"""The wall around modules of WebAssembly: wasmtime, inside the wall of the namespace runtime."""

from __future__ import annotations

from cloister.runtime.wasm.runtime import WasmGuest, WasmRuntime

__all__ = ["WasmGuest", "WasmRuntime"]
