"""The values every other room speaks in: limits, mounts, results, ids, profiles, commands."""

from __future__ import annotations

from cloister.model.ids import (
    GrantId,
    ImageId,
    SandboxId,
    SessionId,
    SnapshotId,
    new_sandbox_id,
    parse_sandbox_id,
)
from cloister.model.limits import LIMIT_NAMES, Limits
from cloister.model.mounts import (
    Mount,
    MountMode,
    parse_mount,
    parse_mount_mode,
    parse_mount_source,
)
from cloister.model.paths import parse_absolute_path, parse_target
from cloister.model.process import (
    MAXIMUM_EXEC_BYTES,
    MAXIMUM_STRING_BYTES,
    Command,
    Environment,
    parse_command,
    parse_cwd,
    parse_env,
    require_exec_fits,
)
from cloister.model.profile import NAMED_USERS, Profile, Trust, User, parse_user
from cloister.model.quote import quote
from cloister.model.results import Reason, Result, SandboxUsage, Usage
from cloister.model.units import (
    UNLIMITED,
    format_bytes,
    format_duration,
    parse_bytes,
    parse_cpus,
    parse_duration,
)
from cloister.model.volumes import (
    VolumeMode,
    VolumeMount,
    parse_name,
    parse_volume,
    parse_volume_mode,
)

__all__ = [
    "LIMIT_NAMES",
    "MAXIMUM_EXEC_BYTES",
    "MAXIMUM_STRING_BYTES",
    "NAMED_USERS",
    "UNLIMITED",
    "Command",
    "Environment",
    "GrantId",
    "ImageId",
    "Limits",
    "Mount",
    "MountMode",
    "Profile",
    "Reason",
    "Result",
    "SandboxId",
    "SandboxUsage",
    "SessionId",
    "SnapshotId",
    "Trust",
    "Usage",
    "User",
    "VolumeMode",
    "VolumeMount",
    "format_bytes",
    "format_duration",
    "new_sandbox_id",
    "parse_absolute_path",
    "parse_bytes",
    "parse_command",
    "parse_cpus",
    "parse_cwd",
    "parse_duration",
    "parse_env",
    "parse_mount",
    "parse_mount_mode",
    "parse_mount_source",
    "parse_name",
    "parse_sandbox_id",
    "parse_target",
    "parse_user",
    "parse_volume",
    "parse_volume_mode",
    "quote",
    "require_exec_fits",
]
