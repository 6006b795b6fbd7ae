"""Cloister: an isolated execution environment for autonomous agents.

>>> from cloister import Limits, Sandbox
>>> async with Sandbox(limits=Limits(memory="1GiB")) as sandbox:
...     result = await sandbox.run("python3 --version")
"""

from __future__ import annotations

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
from cloister.sandbox import Change, Entry, Files, Process, Sandbox

if TYPE_CHECKING:
    from cloister.build.stock import Image, Template, Volume

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

_MADE_WHEN_ASKED_FOR = ("Image", "Template", "Volume")


def __getattr__(name: str) -> object:
    """Import what only some programs need when the first of them asks for it."""
    if name in _MADE_WHEN_ASKED_FOR:
        from cloister.build import stock

        return getattr(stock, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
