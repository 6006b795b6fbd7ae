"""What the tests of the ledger share: one entry of every kind, and a ledger that holds them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cloister.ledger import (
    KINDS,
    ApprovalAnswered,
    ApprovalAsked,
    Called,
    Checkpoint,
    Closed,
    Connected,
    ConnectionClosed,
    EgressChanged,
    FileAccessed,
    FilesChanged,
    Folded,
    Forked,
    Granted,
    Judged,
    Keeping,
    Launched,
    Ledger,
    LimitHit,
    Lost,
    NameAsked,
    NotLaunched,
    Opened,
    Paused,
    Payload,
    Planned,
    ProcessEnded,
    ProcessStarted,
    Promoted,
    Recovered,
    Requested,
    Responded,
    Resumed,
    Retired,
    Revoked,
    Rewound,
    SecretBlocked,
    SecretsRenewed,
    SecretUsed,
    SnapshotTaken,
    Spent,
    Stopped,
)
from cloister.model import Reason
from cloister.policy import Effect

SANDBOX = "sb_abcdefghijklmnopqrstuvwxyz"
SPENT = Spent(1, 2, 3, 4, 5, 6)
SAMPLES: tuple[Payload, ...] = (
    Planned("sha256:aa", "bb", "namespace", "sha256:cc", "snap-1", "task-42"),
    Launched("sha256:aa", "bb", ("uid=0", "seccomp=2"), ("raw sockets are not seen",), "sha256:cc"),
    NotLaunched("seccomp", "Invalid argument"),
    Paused(),
    Resumed(),
    Promoted("internal", "hostile", "microvm"),
    SnapshotTaken("snap-2", "sealed", "before", "snap-1", "sha256:dd", 3),
    Forked("snap-2", SANDBOX, "sb_child"),
    Rewound("snap-2", "snap-3"),
    Stopped("stopped", SPENT),
    LimitHit("memory", 1 << 30, 2),
    ProcessStarted(("python3", "-c", "1"), "api", "host", "/workspace", "1000:1000", 12, 1, 1),
    ProcessEnded("kernel", 12, 137, 9, Reason.MEMORY, SPENT),
    FilesChanged(1, 2, 3, 400, "sha256:ee", ("/a", "/b"), 1),
    FileAccessed("copy_out", "/workspace/a", 10, "sha256:ff"),
    NameAsked("example.org", "A", Effect.ALLOW, "web", ("198.18.0.1",)),
    Connected(
        "example.org", 443, "tls", Effect.ALLOW, "web", "a rule", ("sni=example.org",), "192.0.2.1"
    ),
    ConnectionClosed(10, 20, "reset"),
    Requested(
        "GET", "https", "example.org", 443, "/a?b", Effect.DENY, "default", "none", ("a=b",), 4
    ),
    Responded(10, 20, 200, "sha256:11", "sha256:22"),
    Judged("exec as 0:0", Effect.DENY, "profile default", "the policy has it", ("user=0:0",)),
    Granted("push", "POST example.org", "anna", "asked", 7),
    Revoked("push", "anna", "done"),
    EgressChanged("bb", ("example.org", "203.0.113.0/24")),
    SecretUsed("TOKEN", "example.org", "header Authorization", 5),
    SecretBlocked("TOKEN", "evil.example", "body", 6),
    SecretsRenewed(("TOKEN",), ("OTHER",)),
    ApprovalAsked(7, "POST https://example.org/", "sha256:33", "push", 99, 5),
    ApprovalAnswered(7, "once", "sha256:33", "anna", "fine", 100),
    Called("POST", "/v1/sandboxes/{id}/run", 200, "rq_1", "acme", "0a1b", "sb_x"),
    Opened(1, 0, "key"),
    Recovered(1, 1, ("0000.jsonl 3 ab",), 9),
    Checkpoint(4, "ab", 5, False, "key", "c2ln"),
    Lost(3, 1, 2, "the disk is full"),
    Folded("egress.name", "deny default", 5, 5, 0, 0, 1, 2, "ab"),
    Retired(0, 5, "ab"),
    Closed(0, 0),
)
# What a caller writes; the rest is the ledger's own.
WRITTEN = tuple(sample for sample in SAMPLES if not sample.kind.startswith("ledger."))


@pytest.fixture
def samples() -> tuple[Payload, ...]:
    assert {sample.kind for sample in SAMPLES} == set(KINDS)
    return SAMPLES


@pytest.fixture
def sandbox() -> str:
    return SANDBOX


@pytest.fixture
def process() -> Callable[[int], ProcessStarted]:
    return lambda number: ProcessStarted(("true", str(number)), "inside", "kernel", pid=number)


@pytest.fixture
def refusal() -> Callable[[int], NameAsked]:
    return lambda number: NameAsked(f"host-{number}.example", "A", Effect.DENY, "default")


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state directory with one closed ledger of three files and several checkpoints."""
    state = tmp_path_factory.mktemp("whole")
    keeping = Keeping(file_bytes=6000, checkpoint_entries=8)
    with Ledger(state, SANDBOX, keeping=keeping) as ledger:
        for sample in WRITTEN:
            ledger.end(ledger.begin(sample), ProcessEnded("kernel"))
    assert len(os.listdir(state / "ledger" / SANDBOX)) >= 3
    return state
