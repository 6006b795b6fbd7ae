"""What is allowed: policies, how they are written, and how a request is judged against one."""

from __future__ import annotations

from cloister.policy.destinations import Connect, Destination
from cloister.policy.egress import Egress
from cloister.policy.judge import (
    Effect,
    Exec,
    Grant,
    MountRequest,
    Request,
    Rule,
    RunAs,
    Share,
    Verdict,
    judge,
)
from cloister.policy.load import load_policy
from cloister.policy.parse import MAXIMUM_POLICY_BYTES, parse_policy, read_policy, schema
from cloister.policy.policy import (
    DirectoryRoot,
    History,
    HostRoot,
    ImageRoot,
    LedgerMode,
    Policy,
    Root,
    SecondLayer,
    Storage,
)
from cloister.policy.trust import (
    STRENGTHS,
    TABLE_VARIABLE,
    Requirement,
    RuntimeFacts,
    RuntimeName,
    WallWanted,
    choose_runtime,
    parse_table,
)

__all__ = [
    "MAXIMUM_POLICY_BYTES",
    "STRENGTHS",
    "TABLE_VARIABLE",
    "Connect",
    "Destination",
    "DirectoryRoot",
    "Effect",
    "Egress",
    "Exec",
    "Grant",
    "History",
    "HostRoot",
    "ImageRoot",
    "LedgerMode",
    "MountRequest",
    "Policy",
    "Request",
    "Requirement",
    "Root",
    "Rule",
    "RunAs",
    "RuntimeFacts",
    "RuntimeName",
    "SecondLayer",
    "Share",
    "Storage",
    "Verdict",
    "WallWanted",
    "choose_runtime",
    "judge",
    "load_policy",
    "parse_policy",
    "parse_table",
    "read_policy",
    "schema",
]
