"""A sandbox's changes reach the host as planned, inside the tree, or not at all."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cloister.errors import Exhausted, GuestError, HostError, RequestError
from cloister.store.changes import (
    Baseline,
    Plan,
    Stratum,
    baseline_lines,
    perform,
    plan_apply,
    recover,
    take_baseline,
)
from cloister.store.changes.seal import seal

if TYPE_CHECKING:
    from conftest import Bench


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """The host's tree, next to something that nobody may touch."""
    (tmp_path / "outside").write_text("canary")
    tree = tmp_path / "tree"
    (tree / "src").mkdir(parents=True)
    (tree / "src" / "main.py").write_text("print(1)\n")
    (tree / "README").write_text("read me\n")
    return tree


def copy_in(bench: Bench, host: Path) -> Baseline:
    """Do what a copying mount does: the tree is in the upper, and nothing of it below."""
    baseline = take_baseline(host)
    bench.layer()
    subprocess.run(["cp", "-a", str(host), str(bench.upper / "workspace")], check=True)
    return baseline


def planned(bench: Bench, host: Path, baseline: Baseline | None = None, **how: Any) -> Plan:
    return plan_apply([bench.stratum()], host, below="/workspace", baseline=baseline, **how)


def shown(plan: Plan) -> list[str]:
    return list(plan.display())


def tree_of(host: Path) -> dict[str, tuple[int, str]]:
    return {
        str(path.relative_to(host)): (
            path.lstat().st_mode,
            os.readlink(path) if path.is_symlink() else path.read_text() if path.is_file() else "",
        )
        for path in host.rglob("*")
    }


def test_edits_of_a_copied_tree_are_applied_and_nothing_else(bench: Bench, host: Path) -> None:
    baseline = copy_in(bench, host)
    bench.run(
        "cd workspace; echo 'print(2)' > src/main.py; rm README; mkdir -m 700 new;"
        "echo x > new/f; chmod 755 new/f; ln -s f new/l; echo out > ../else"
    )
    plan = planned(bench, host, baseline)
    assert shown(plan) == ["D README", "A new/", "A new/f", "A new/l -> f", "C src/main.py"]
    assert (host / "README").exists(), "planning must not touch the host"
    assert perform(plan).steps == 5
    found = tree_of(host)
    assert found["src/main.py"][1] == "print(2)\n"
    assert found["new/f"] == (0o100755, "x\n")
    assert found["new"][0] == 0o40700
    assert found["new/l"][1] == "f"
    assert sorted(found) == ["new", "new/f", "new/l", "src", "src/main.py"]
    assert shown(planned(bench, host, baseline)) == [], "a second time there is nothing to do"
    assert (host / "new" / "f").stat().st_nlink == 1


def test_without_a_baseline_the_layer_below_says_what_the_host_had(
    bench: Bench, host: Path
) -> None:
    subprocess.run(["cp", "-a", str(host), str(bench.lower / "workspace")], check=True)
    bench.run("cd workspace; echo 2 > src/main.py; rm -r README; mkdir src/d; echo > src/d/n")
    assert shown(planned(bench, host)) == ["D README", "A src/d/", "A src/d/n", "C src/main.py"]
    (host / "README").write_text("mine\n")
    assert "conflict: README: changed on the host" in shown(planned(bench, host))


@pytest.mark.parametrize("content", ["same\n", "other\n"])
def test_without_anything_to_compare_only_the_identical_may_exist(
    bench: Bench, host: Path, content: str
) -> None:
    bench.run("mkdir workspace; echo same > workspace/f")
    (host / "f").write_text(content)
    expected = [] if content == "same\n" else ["conflict: f: the host has something else there"]
    assert shown(planned(bench, host)) == expected


@pytest.mark.parametrize(
    ("inside", "outside", "words"),
    [
        ("echo 2 > README", "echo 3 > README", "README: changed on the host"),
        ("echo 2 > README", "rm README", "README: removed on the host"),
        ("rm README", "echo 3 > README", "README: changed on the host"),
        ("echo 2 > new", "echo 3 > new", "new: the host has something else there"),
        ("chmod 600 README", "chmod 640 README", "README: changed on the host"),
        ("rm -r src", "echo > src/mine", "src/mine: the host has it in a directory that"),
        ("echo > src/new", "rm -r src", "src/new: the host has no directory for it"),
        ("echo > src/new", "rm -r src; ln -s .. src", "src/new: the host has no directory"),
        ("rm -r src; echo > src", "echo > src/mine", "src/mine: the host has it in a"),
    ],
)
def test_what_both_sides_changed_is_a_conflict_and_nothing_is_done(
    bench: Bench, host: Path, inside: str, outside: str, words: str
) -> None:
    baseline = copy_in(bench, host)
    bench.run(f"cd workspace; echo > fine; {inside}")
    subprocess.run(["sh", "-ec", outside], cwd=host, check=True)
    before = tree_of(host)
    plan = planned(bench, host, baseline)
    assert any(line.startswith(f"conflict: {words}") for line in shown(plan)), shown(plan)
    with pytest.raises(RequestError, match="host has changed"):
        perform(plan)
    assert tree_of(host) == before


@pytest.mark.parametrize(
    "outside", ["echo 3 > mine", "echo 2 > README", "rm -r src/main.py", "chmod 600 src/main.py"]
)
def test_what_only_the_host_changed_stays_and_agreement_is_no_conflict(
    bench: Bench, host: Path, outside: str
) -> None:
    baseline = copy_in(bench, host)
    bench.run("cd workspace; echo 2 > README")
    subprocess.run(["sh", "-ec", outside], cwd=host, check=True)
    expected = {**tree_of(host), "README": (0o100644, "2\n")}
    perform(planned(bench, host, baseline))
    assert tree_of(host) == expected


@pytest.mark.parametrize(
    ("inside", "words"),
    [
        ("chmod 4755 README", "README: mode 4755"),
        ("chmod 4644 README", "README: mode 4644"),
        ("chmod 2755 src; echo > src/n", "src: mode 2755"),
        ("mkdir -m 2755 s; echo > s/n", "s/n: its directory is refused"),
        ("mkfifo p", "p: a fifo"),
        ("ln -s /etc/passwd l", "l: a link out of the tree, to /etc/passwd"),
        ("ln -s ../outside l", "l: a link out"),
        ("ln -s src/../../outside l", "l: a link out"),
        ("mkdir .cloister-apply; echo > .cloister-apply/journal", ".cloister-apply: the name"),
    ],
)
def test_what_may_not_be_on_a_host_is_refused_or_left_out(
    bench: Bench, host: Path, inside: str, words: str
) -> None:
    baseline = copy_in(bench, host)
    bench.run(f"cd workspace; echo > fine; {inside}")
    before = tree_of(host)
    plan = planned(bench, host, baseline)
    assert any(line.startswith(f"refused: {words}") for line in shown(plan)), shown(plan)
    with pytest.raises(RequestError, match="may not be put on a host"):
        perform(plan)
    assert tree_of(host) == before
    perform(plan, leave_out_refused=True)
    found = tree_of(host)
    assert found.pop("fine") == (0o100644, "\n")
    assert {name: found[name] for name in before} == before
    assert not any(mode & 0o6000 for mode, _ in found.values())


def test_a_link_on_the_host_is_never_followed(bench: Bench, host: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "f").write_text("canary")
    (host / "out").symlink_to(tmp_path / "elsewhere")
    (host / "one").symlink_to(tmp_path / "outside")
    bench.run("mkdir -p workspace/out; echo evil > workspace/out/f; echo evil > workspace/one")
    plan = planned(bench, host)
    assert [objection.path for objection in plan.conflicts] == [b"one", b"out", b"out/f"]
    # Even if it becomes a link after it was agreed upon.
    (host / "out").unlink()
    (host / "out").mkdir()
    (host / "one").unlink()
    plan = planned(bench, host)
    (host / "out").rmdir()
    (host / "out").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RequestError):
        perform(plan)
    assert (tmp_path / "elsewhere" / "f").read_text() == "canary"
    assert (tmp_path / "outside").read_text() == "canary"
    assert not (host / "one").exists()


def test_a_hard_link_to_the_outside_is_not_written_through(
    bench: Bench, host: Path, tmp_path: Path
) -> None:
    (host / "README").unlink()
    os.link(tmp_path / "outside", host / "README")
    baseline = copy_in(bench, host)
    bench.run("cd workspace; echo evil > README; chmod 600 README")
    perform(planned(bench, host, baseline))
    assert (host / "README").read_text() == "evil\n"
    assert (tmp_path / "outside").read_text() == "canary"
    assert (tmp_path / "outside").stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("where", ["inside", "host", "target"])
def test_what_changes_after_it_was_shown_is_not_applied(
    bench: Bench, host: Path, where: str
) -> None:
    baseline = copy_in(bench, host)
    bench.run("cd workspace; echo 2 > README; echo 2 > src/main.py")
    plan = planned(bench, host, baseline)
    if where == "inside":
        (bench.upper / "workspace" / "README").write_text("evil\n")
    elif where == "host":
        (host / "README").write_text("mine\n")
    else:
        host.rename(host.with_name("moved"))
        host.mkdir()
    before = tree_of(host)
    with pytest.raises((GuestError, RequestError)):
        perform(plan)
    assert tree_of(host) == before


@pytest.mark.parametrize(
    "script",
    [
        "rm -r workspace; ln -s /etc workspace",
        "rm -r workspace; echo > workspace",
        "rm -r workspace",
    ],
)
@pytest.mark.parametrize("with_baseline", [True, False])
def test_a_tree_that_is_gone_inside_empties_nothing_outside(
    bench: Bench, host: Path, script: str, with_baseline: bool
) -> None:
    baseline = copy_in(bench, host) if with_baseline else None
    if baseline is None:
        subprocess.run(["cp", "-a", str(host), str(bench.lower / "workspace")], check=True)
    bench.run(script)
    with pytest.raises(RequestError, match="no directory inside"):
        planned(bench, host, baseline)


def test_types_change_both_ways(bench: Bench, host: Path) -> None:
    (host / "d" / "e").mkdir(parents=True)
    (host / "d" / "e" / "f").write_text("x")
    (host / "l").symlink_to("README")
    baseline = copy_in(bench, host)
    bench.run(
        "cd workspace; rm -r d; echo file > d; rm README; mkdir README; echo > README/in;"
        "rm l; echo > l; rm -r src; ln -s d src"
    )
    perform(planned(bench, host, baseline))
    found = tree_of(host)
    assert found["d"][1] == "file\n"
    assert found["README/in"][1] == "\n"
    assert found["src"][1] == "d"
    assert sorted(found) == ["README", "README/in", "d", "l", "src"]


def test_a_directory_that_nobody_may_write_is_filled_first(bench: Bench, host: Path) -> None:
    baseline = copy_in(bench, host)
    bench.run("cd workspace; mkdir d; echo > d/f; chmod 500 d; chmod 2775 .")
    (host / "src").chmod(0o3755)
    bench.run("cd workspace; chmod 700 src")
    perform(planned(bench, host, baseline))
    assert (host / "d").stat().st_mode & 0o7777 == 0o500
    # The host's own special bits stay.
    assert (host / "src").stat().st_mode & 0o7777 == 0o3700


def test_sparse_files_stay_sparse(bench: Bench, host: Path) -> None:
    baseline = copy_in(bench, host)
    bench.run("cd workspace; truncate -s 1T big; printf x >> big")
    perform(planned(bench, host, baseline))
    status = (host / "big").stat()
    assert status.st_size == 2**40 + 1
    assert status.st_blocks < 1000


def test_a_baseline_survives_being_written_down(host: Path) -> None:
    (host / os.fsdecode(b"\xff\n")).write_text("x")
    (host / "l").symlink_to(os.fsdecode(b"\xfe"))
    os.mkfifo(host / "pipe")
    taken = take_baseline(host)
    assert Baseline.read(taken.lines()) == taken
    assert Baseline.read(baseline_lines(host)) == taken
    assert b"pipe" not in taken.marks
    assert set(take_baseline(host, leave_out={b"src"}).marks) == {b"README", b"l", b"\xff\n"}
    with pytest.raises(RequestError, match="line 1"):
        Baseline.read([b"nonsense"])


def test_a_full_disk_changes_nothing(
    bench: Bench, host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    baseline = copy_in(bench, host)
    bench.run("cd workspace; echo 2 > README; echo 2 > src/main.py")
    plan = planned(bench, host, baseline)
    before = tree_of(host)

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        with pytest.raises(Exhausted) as raised:
            perform(plan)
    assert raised.value.limit == "disk"
    assert tree_of(host) == before
    perform(plan)


def test_somebody_elses_journal_leads_nowhere(host: Path, tmp_path: Path) -> None:
    staging = host / ".cloister-apply"
    staging.mkdir(0o700)
    mode = tmp_path.stat().st_mode
    (staging / "journal").write_bytes(
        b'{"verb": "set-mode", "path": "Li4=", "number": 0, "mode": %d, "old_mode": 511}\n'
        % (mode & 0o7777)
    )
    with pytest.raises(HostError, match="was not written by an apply"):
        recover(host)
    assert tmp_path.stat().st_mode == mode
    # With a seal it would be read, and still lead nowhere.
    handle = os.open(staging, os.O_RDONLY)
    (staging / "journal").write_bytes(seal((staging / "journal").read_bytes(), handle))
    os.close(handle)
    with pytest.raises(HostError, match="leads out"):
        recover(host)
    assert tmp_path.stat().st_mode == mode
    (staging / "journal").unlink()
    (staging / "new" / "d").mkdir()
    with pytest.raises(HostError, match="not ours"):
        recover(host)
    staging.chmod(0o755)
    with pytest.raises(RequestError, match="somebody else"):
        recover(host)


def test_two_applies_at_once_do_not_mix(bench: Bench, host: Path) -> None:
    bench.run("mkdir workspace; echo > workspace/f")
    plan = planned(bench, host)
    (host / ".cloister-apply").mkdir(0o700)
    held = subprocess.Popen(
        ["flock", str(host / ".cloister-apply"), "sh", "-c", "echo held; read line"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert held.stdout is not None
    assert held.stdout.readline() == "held\n"
    with pytest.raises(RequestError, match="another process"):
        perform(plan)
    held.communicate("\n")
    perform(plan)
    assert (host / "f").exists()
    assert not recover(host)


def test_an_upper_with_owners_of_its_own_gives_files_to_the_caller(
    bench: Bench, host: Path, tmp_path: Path
) -> None:
    upper = tmp_path / "upper"
    (upper / "workspace").mkdir(parents=True)
    (upper / "workspace" / "f").write_text("x")
    if os.geteuid() == 0:
        os.chown(upper / "workspace" / "f", 1000, 1000)
    perform(plan_apply([Stratum("/", upper, ())], host, below="/workspace"))
    assert (host / "f").stat().st_uid == os.geteuid()
