"""What is allowed: policies, how they are written, and how a request is judged against one."""

from __future__ import annotations

from cloister.policy.approvals import Approvals, Gates
from cloister.policy.budget import Budget
from cloister.policy.destinations import Connect, Destination
from cloister.policy.effect import Effect
from cloister.policy.egress import Egress
from cloister.policy.egress_rules import EgressRule
from cloister.policy.http_request import HttpRequest
from cloister.policy.judge import (
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
    History,
    LedgerMode,
    Policy,
    SecondLayer,
    Storage,
)
from cloister.policy.roots import DirectoryRoot, HostRoot, ImageRoot, Root
from cloister.policy.secrets import Place, SecretBinding, Source
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
    "Approvals",
    "Budget",
    "Connect",
    "Destination",
    "DirectoryRoot",
    "Effect",
    "Egress",
    "EgressRule",
    "Exec",
    "Gates",
    "Grant",
    "History",
    "HostRoot",
    "HttpRequest",
    "ImageRoot",
    "LedgerMode",
    "MountRequest",
    "Place",
    "Policy",
    "Request",
    "Requirement",
    "Root",
    "Rule",
    "RunAs",
    "RuntimeFacts",
    "RuntimeName",
    "SecondLayer",
    "SecretBinding",
    "Share",
    "Source",
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
