"""What a sandbox may not put on a host, whatever else is agreed."""

from __future__ import annotations

from cloister.model import links
from cloister.model.changes import EntryType, escape
from cloister.store.changes.baseline import STAGING
from cloister.store.changes.standing import Standing


def why_refused(path: bytes, now: Standing) -> str | None:
    """Return why this may not be put on a host; None if it may."""
    if path.split(b"/", 1)[0] == STAGING:
        return "the name is kept for applying itself"
    kind, target = now.mark.type, now.mark.target
    if kind not in (EntryType.FILE, EntryType.DIRECTORY, EntryType.LINK):
        return f"a {kind} is not put on the host"
    if kind is EntryType.LINK:
        return f"a link out of the tree, to {escape(target)}" if leads_out(target, path) else None
    if now.set_id:
        return f"mode {now.mode:04o} would run as its owner or group"
    if now.has_capabilities:
        return "it carries capabilities"
    return None


def leads_out(target: bytes, path: bytes) -> bool:
    """Whether a link at a path of the tree could lead above its top."""
    return links.leads_out(target, path.count(b"/"))
