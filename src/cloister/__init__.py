"""Cloister: an isolated execution environment for autonomous agents.

>>> from cloister import Limits, Sandbox
>>> async with Sandbox(limits=Limits(memory="1GiB")) as sandbox:
...     result = await sandbox.run("python3 --version")
"""

from __future__ import annotations

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
    Unsupported,
)
from cloister.model import Limits, Mount, MountMode, Profile, Reason, Result, Trust, Usage
from cloister.policy import DirectoryRoot, HostRoot, ImageRoot, Policy, load_policy, parse_policy
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
    "Trust",
    "Unsupported",
    "Usage",
    "load_policy",
    "parse_policy",
]
