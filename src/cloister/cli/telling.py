"""Lines of ours on standard error: what was left out, which limit was reached, what was used."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Sequence

from cloister.cli.neutral import neutralise
from cloister.cli.options import limit_flag
from cloister.model import (
    Limits,
    Reason,
    Result,
    VolumeMode,
    VolumeMount,
    format_bytes,
    format_duration,
    quote,
)
from cloister.model.approvals import Question, escape
from cloister.model.traffic import Traffic
from cloister.policy import HostRoot, Policy
from cloister.runtime.namespace import ids
from cloister.sandbox.parcel import Summary


def warn_unlimited_disk() -> None:
    """Say that the usual limit of a disk does not hold here, once, when the disk is made."""
    note(
        "nothing limits what it writes to its disk here; for limits, run `cloister setup storage` "
        "as root first; --disk unlimited says that none is meant"
    )


def warn_unreachable(policy: Policy) -> None:
    """Say that what is shown in root's home is not for the user that programs run as."""
    has_one_id = os.geteuid() != 0 and ids.find_sub_ids() is None
    if policy.run_as.uid == 0 or has_one_id or not isinstance(policy.root, HostRoot):
        return
    targets = [mount.target for mount in policy.mounts]
    targets += [volume.target for volume in policy.volumes]
    for target in targets:
        if target.startswith("/root/"):
            note(
                f"{quote(target)} is in root's home, which user {policy.run_as.uid} "
                "cannot enter; show it in /home/user, or run with --profile root"
            )


async def tell_waiting(question: Question) -> bool:
    """Say that something waits for an answer, and leave it to somebody else to give one."""
    note(f"waits for an answer: {escape(question.summary())}; see `cloister approvals`")
    never: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    return await never


def warn_skipped(summary: Summary) -> None:
    """Say what a copy left out."""
    if summary.skipped:
        path, why = summary.skipped[0]
        more = f", and {summary.skipped_total - 1} more" if summary.skipped_total > 1 else ""
        # The name may come from inside, and act on a terminal.
        note(f"not copied: {quote(path)} ({why}){more}")


def explain_limit(result: Result, limits: Limits, volumes: Sequence[VolumeMount] = ()) -> None:
    """Say in one line which limit ended a process, and how to raise it."""
    match result.reason:
        case Reason.TIMEOUT if limits.wall is not None:
            said = f"wall time limit of {format_duration(limits.wall)}"
            flag = limit_flag("wall")
        case Reason.MEMORY if limits.memory is not None:
            said, flag = f"memory limit of {format_bytes(limits.memory)}", limit_flag("memory")
        case Reason.PIDS:
            said, flag = f"limit of {limits.pids} processes", limit_flag("pids")
        case Reason.DISK if limits.disk is not None:
            said = f"disk limit of {format_bytes(limits.disk)} or {limits.inodes} files"
            flag = f"{limit_flag('disk')} or {limit_flag('inodes')}"
            written = [quote(each.name) for each in volumes if each.mode is VolumeMode.WRITE]
            if written:
                said += f", or the size of the volume {' or '.join(written)},"
                flag += ", or make a larger volume"
        case _:
            return
    note(f"the {said} was reached; raise it with {flag}")


def explain_usage(result: Result) -> None:
    """Say in one line what a process and its descendants used."""
    usage = result.usage
    parts = (
        f"wall {result.wall_s:.3f} s",
        f"cpu {usage.cpu_user_s:.3f} s user, {usage.cpu_system_s:.3f} s system",
        f"peak memory {short_bytes(usage.peak_memory_bytes)}",
        f"read {short_bytes(usage.read_bytes)}, written {short_bytes(usage.written_bytes)}",
        f"processes {usage.processes}",
    )
    note("used: " + "; ".join(parts))


def short_bytes(count: int) -> str:
    """Return a size to three digits, for reading rather than for reading back."""
    size, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1000 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{size:.3g} {units[0]}"


def explain_refusals(traffic: Traffic) -> None:
    """Say what was refused on the way out: a program sees only that it was cut off."""
    reasons = {
        (event.host, event.port): event.reason or "no rule allows it"
        for event in traffic.denied
        if event.host
    }
    named = {host for host, port in reasons if port is not None}
    # A connection tells more than the question for its name, which came to nothing as well.
    shown = [each for each in reasons if each[1] is not None or each[0] not in named]
    for host, port in shown[:_MOST_REFUSALS]:
        where = host if port is None else f"{host}:{port}"
        note(f"refused on the way out: {quote(where)}: {reasons[host, port]}")
    if len(shown) > _MOST_REFUSALS:
        note(f"and {len(shown) - _MOST_REFUSALS} more; `cloister ledger show` has them all")


_MOST_REFUSALS = 3


def note(text: str) -> None:
    """Say one line of ours on standard error."""
    with contextlib.suppress(OSError):
        print(f"cloister: {neutralise(text)}", file=sys.stderr, flush=True)
