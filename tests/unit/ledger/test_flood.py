"""Floods: a guest cannot fill the disk with refusals, and every one of them is counted."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cloister.errors import Exhausted, RequestError
from cloister.ledger import (
    Folded,
    Keeping,
    Ledger,
    NameAsked,
    Paused,
    Payload,
    ProcessEnded,
    ProcessStarted,
    usual_keeping,
)
from cloister.ledger.reading import make_receipt, read_entries, verify_ledger
from cloister.policy import Effect

Make = Callable[[int], Payload]


def folded(state: Path) -> list[Folded]:
    entries = read_entries(state, "sb_a")
    return [entry.payload for entry in entries if isinstance(entry.payload, Folded)]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A monotonic clock that moves only when it is told to."""
    now = [1_000_000_000_000]
    monkeypatch.setattr(time, "monotonic_ns", lambda: now[0])

    def move(seconds: float) -> None:
        now[0] += int(seconds * 1e9)

    return move


def test_refusals_above_the_rate_are_counted_exactly(
    tmp_path: Path, refusal: Make, clock: Callable[[float], None]
) -> None:
    with Ledger(tmp_path, "sb_a", keeping=Keeping(refusals_per_s=10)) as ledger:
        for number in range(1000):
            written = ledger.write(refusal(number))
            assert (written is not None) == (number < 10)
        clock(1.5)
        assert ledger.write(refusal(1000)) is not None
    kept = [e for e in read_entries(tmp_path, "sb_a") if isinstance(e.payload, NameAsked)]
    assert len(kept) == 11
    (counted,) = folded(tmp_path)
    assert (counted.of, counted.about) == ("egress.name", "deny default")
    assert counted.count == counted.refusals == 990
    report = verify_ledger(tmp_path, "sb_a")
    assert report.holds and report.folded == 990
    denial, _ = sorted(make_receipt(tmp_path, "sb_a").denials, key=lambda d: -d.count)[0], None
    assert denial.count == 1001


def test_what_was_allowed_is_never_folded_below_the_limit(tmp_path: Path) -> None:
    with Ledger(tmp_path, "sb_a", keeping=Keeping(refusals_per_s=1)) as ledger:
        for _ in range(100):
            assert ledger.write(NameAsked("a.example", "A", Effect.ALLOW, "web")) is not None
    assert folded(tmp_path) == []


def test_refusals_of_one_rule_do_not_hide_those_of_another(
    tmp_path: Path, clock: Callable[[float], None]
) -> None:
    with Ledger(tmp_path, "sb_a", keeping=Keeping(refusals_per_s=5)) as ledger:
        for _ in range(50):
            ledger.write(NameAsked("a.example", "A", Effect.DENY, "one"))
        assert ledger.write(NameAsked("b.example", "A", Effect.DENY, "two")) is not None


def test_a_million_refusals_take_little_room(tmp_path: Path, refusal: Make) -> None:
    # A twentieth of it, for the time a test may take; the bound is on what one second adds.
    begin = time.monotonic()
    with Ledger(tmp_path, "sb_a") as ledger:
        for number in range(50_000):
            ledger.write(refusal(number))
    seconds = time.monotonic() - begin
    size = sum(path.stat().st_size for path in (tmp_path / "ledger" / "sb_a").iterdir())
    kept = sum(isinstance(e.payload, NameAsked) for e in read_entries(tmp_path, "sb_a"))
    assert kept <= 100 * (int(seconds) + 2)
    assert size < 100_000 * (int(seconds) + 2)
    assert kept + sum(one.count for one in folded(tmp_path)) == 50_000


def test_rules_without_end_are_counted_under_one_name(
    tmp_path: Path, clock: Callable[[float], None]
) -> None:
    with Ledger(tmp_path, "sb_a", keeping=Keeping(refusals_per_s=0)) as ledger:
        for number in range(1000):
            ledger.write(NameAsked("a.example", "A", Effect.DENY, f"rule-{number}"))
    counted = folded(tmp_path)
    assert len(counted) <= 257 and sum(one.count for one in counted) == 1000


def test_above_the_limit_what_a_guest_causes_is_counted_and_decisions_are_kept(
    tmp_path: Path, process: Make, clock: Callable[[float], None]
) -> None:
    keeping = Keeping(limit_bytes=20_000, file_bytes=8000)
    with Ledger(tmp_path, "sb_a", keeping=keeping) as ledger:
        for number in range(200):
            span = ledger.begin(process(number))
            ledger.end(span, ProcessEnded("kernel", number, 0))
        assert ledger.begin(process(200)).sequence is None
        assert ledger.write(ProcessStarted(("a",), "api", "host")) is not None
        clock(2)
        ledger.tick()
    report = verify_ledger(tmp_path, "sb_a")
    assert report.holds, report.findings
    # An end is folded exactly where its begin was: none is left hanging that had ended.
    kinds = [e.kind for e in read_entries(tmp_path, "sb_a")]
    assert kinds.count("process.started") - 1 == kinds.count("process.ended")
    counts = {one.of: one.count for one in folded(tmp_path)}
    assert counts["process.started"] + kinds.count("process.started") - 2 == 200
    assert make_receipt(tmp_path, "sb_a").processes.started == 202


def test_above_the_reserve_a_decision_is_refused_and_told(tmp_path: Path) -> None:
    keeping = Keeping(limit_bytes=10_000)
    with Ledger(tmp_path, "sb_a", keeping=keeping) as ledger:
        while ledger.write(Paused()) is not None:
            continue
        with pytest.raises(Exhausted, match="limit"):
            ledger.write(Paused(), durable=True)
        assert ledger.lost == 2
    report = verify_ledger(tmp_path, "sb_a")
    assert report.holds and report.lost == 2
    assert sum(p.stat().st_size for p in (tmp_path / "ledger" / "sb_a").iterdir()) < 16_000


@pytest.mark.parametrize(("said", "limit_bytes"), [(None, 2**30), ("1MiB", 2**20), ("4GiB", 2**32)])
def test_how_much_is_kept_whole_can_be_said(
    said: str | None, limit_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if said is not None:
        monkeypatch.setenv("CLOISTER_LEDGER_BYTES", said)
    assert usual_keeping() == Keeping(limit_bytes=limit_bytes)


@pytest.mark.parametrize("said", ["", "much", "0", "-1", "1000", "1023KiB"])
def test_a_size_that_makes_no_sense_is_refused(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOISTER_LEDGER_BYTES", said)
    with pytest.raises(RequestError, match="CLOISTER_LEDGER_BYTES"):
        usual_keeping()
