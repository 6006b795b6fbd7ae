"""The `namespace` runtime: kernel namespaces, a system call allow-list, control groups."""

from __future__ import annotations

from cloister.runtime.namespace.runtime import NamespaceRuntime

__all__ = ["NamespaceRuntime"]
