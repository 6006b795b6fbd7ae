"""Sandboxes of several tenants behind one door: HTTP and WebSocket, tokens, quotas, records."""

from __future__ import annotations
