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
from cloister.policy.trust import STRENGTHS, RuntimeFacts, choose_runtime

__all__ = [
    "MAXIMUM_POLICY_BYTES",
    "STRENGTHS",
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
    "Root",
    "Rule",
    "RunAs",
    "RuntimeFacts",
    "SecondLayer",
    "Share",
    "Storage",
    "Verdict",
    "choose_runtime",
    "judge",
    "load_policy",
    "parse_policy",
    "read_policy",
    "schema",
]
