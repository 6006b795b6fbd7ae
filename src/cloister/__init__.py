"""Cloister: an isolated execution environment for autonomous agents.

>>> from cloister import Limits, Sandbox
>>> async with Sandbox(limits=Limits(memory="1GiB")) as sandbox:
...     result = await sandbox.run("python3 --version")
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from cloister.errors import (
    AlreadyExists,
    Busy,
    CannotEnforce,
    CloisterError,
    Denied,
    Exhausted,
    FileError,
    GuestError,
    GuestGone,
    HostError,
    LaunchFailed,
    NotFound,
    PolicyError,
    ProcessFailed,
    ProtocolViolation,
    RequestError,
    RuntimeGone,
    ScopeMissing,
    TokenRefused,
    Unsupported,
)
from cloister.model import Limits, Mount, MountMode, Profile, Reason, Result, Trust, Usage
from cloister.policy import DirectoryRoot, HostRoot, ImageRoot, Policy, load_policy, parse_policy

if TYPE_CHECKING:
    from cloister.build.stock import Image, Template, Volume
    from cloister.sandbox import Change, Entry, Files, Process, Sandbox

__version__ = "0.1.0"

__all__ = [
    "AlreadyExists",
    "Busy",
    "CannotEnforce",
    "Change",
    "CloisterError",
    "Denied",
    "DirectoryRoot",
    "Entry",
    "Exhausted",
    "FileError",
    "Files",
    "GuestError",
    "GuestGone",
    "HostError",
    "HostRoot",
    "Image",
    "ImageRoot",
    "LaunchFailed",
    "Limits",
    "Mount",
    "MountMode",
    "NotFound",
    "Policy",
    "PolicyError",
    "Process",
    "ProcessFailed",
    "Profile",
    "ProtocolViolation",
    "Reason",
    "RequestError",
    "Result",
    "RuntimeGone",
    "Sandbox",
    "ScopeMissing",
    "Template",
    "TokenRefused",
    "Trust",
    "Unsupported",
    "Usage",
    "Volume",
    "load_policy",
    "parse_policy",
]

# The gateway is a program of this package too, and is back the sooner the less it reads.
_WHEN_ASKED_FOR = {
    **dict.fromkeys(("Image", "Template", "Volume"), "cloister.build.stock"),
    **dict.fromkeys(("Change", "Entry", "Files", "Process", "Sandbox"), "cloister.sandbox"),
}


def __getattr__(name: str) -> object:
    """Import what only some programs need when the first of them asks for it."""
    if name not in _WHEN_ASKED_FOR:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(_WHEN_ASKED_FOR[name]), name)
    globals()[name] = value
    return value
