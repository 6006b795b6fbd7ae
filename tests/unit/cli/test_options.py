"""Options add up to a policy, and each wrong one is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from cloister.cli.options import limit_flag, sandbox_options
from cloister.cli.wanted import Wanted, command_words, parse_options
from cloister.errors import CloisterError, PolicyError, RequestError
from cloister.model import LIMIT_NAMES, MountMode, Profile, VolumeMount
from cloister.policy import DirectoryRoot, History, ImageRoot, Policy, Storage


def parse(*arguments: str, kept: Policy | None = None, **defaults: str) -> Wanted:
    found: list[Wanted] = []

    @click.command()
    @sandbox_options
    def command(**options: Any) -> None:
        found.append(parse_options(options, kept, defaults))

    command.main(list(arguments), standalone_mode=False)
    return found[0]


def test_without_options_it_is_the_default_policy() -> None:
    wanted = parse()
    assert wanted.policy == type(wanted.policy)()
    assert (wanted.copies, wanted.outs, wanted.cwd) == ((), (), None)
    assert wanted.keep is None


def test_every_limit_of_the_command_line_reaches_the_policy() -> None:
    wanted = parse(
        *("--memory", "1GiB", "--pids", "12", "--cpus", "0.5", "--disk", "2MiB"),
        *("--inodes", "99", "--open-files", "33", "--shm", "1MiB", "--output", "7"),
        *("--timeout", "60s", "--lifetime", "2h"),
    )
    limits = wanted.policy.limits
    assert (limits.memory, limits.pids, limits.cpus) == (2**30, 12, 0.5)
    assert (limits.disk, limits.inodes, limits.open_files) == (2**21, 99, 33)
    assert (limits.shm, limits.output, limits.wall, limits.lifetime) == (2**20, 7, 60.0, 7200.0)


def test_every_limit_but_idle_has_an_option() -> None:
    assert all(limit_flag(name) for name in LIMIT_NAMES)
    named = [name for name in LIMIT_NAMES if limit_flag(name) != f"--{name}"]
    assert named == ["open_files", "wall"]


def test_a_policy_file_is_read_first_and_options_change_it(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text('profile = "root"\n[limits]\npids = 9\ninodes = 77\n[env]\nA = "1"\nB = "1"\n')
    wanted = parse("--policy", str(file), "--pids", "10", "--env", "B=2", wall="unlimited")
    assert wanted.policy.profile is Profile.ROOT
    assert (wanted.policy.limits.pids, wanted.policy.limits.inodes) == (10, 77)
    assert dict(wanted.policy.env) == {"A": "1", "B": "2"}
    # A file says what it means; the defaults of a command are for where there is none.
    assert wanted.policy.limits.wall == 300.0
    assert parse(wall="unlimited").policy.limits.wall is None


def test_mounts_are_read_only_and_copies_are_made_by_the_command(tmp_path: Path) -> None:
    here = str(tmp_path)
    wanted = parse("--mount", f"{here}:/a", "--mount", f"{here}:/b:write", "--copy", f"{here}:/c")
    modes = {mount.target: mount.mode for mount in wanted.policy.mounts}
    assert modes == {"/a": MountMode.READ, "/b": MountMode.WRITE}
    assert [mount.target for mount in wanted.copies] == ["/c"]
    assert parse("--mount", f"{here}:/d:copy").copies[0].target == "/d"


def test_one_target_cannot_be_two_things(tmp_path: Path) -> None:
    with pytest.raises(CloisterError, match="twice"):
        parse("--mount", f"{tmp_path}:/a", "--copy", f"{tmp_path}:/a")


def test_a_root_may_be_named_relative_to_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tree").mkdir()
    monkeypatch.chdir(tmp_path)
    assert parse("--root", "tree").policy.root == DirectoryRoot(tmp_path.resolve() / "tree")


def test_an_image_is_the_root_in_place_of_what_the_file_says(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text('[root]\nkind = "host"\nextra = ["/opt"]\n')
    assert parse("--policy", str(file), "--image", "dev").policy.root == ImageRoot("dev")


def test_there_is_one_root_and_not_two(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="--root and --image"):
        parse("--root", str(tmp_path), "--image", "dev")


def test_volumes_are_added_to_those_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text('[[volume]]\nname = "a"\ntarget = "/a"\n')
    wanted = parse("--policy", str(file), "--volume", "b:/b", "--volume", "c:/c:read")
    assert wanted.policy.volumes == (
        VolumeMount("a", "/a"),
        VolumeMount("b", "/b"),
        VolumeMount("c", "/c", "read"),
    )
    with pytest.raises(PolicyError, match="twice"):
        parse("--volume", "b:/b", "--copy", f"{tmp_path}:/b")


def test_storage_and_history_reach_the_policy() -> None:
    assert parse("--storage", "disk").policy.storage is Storage.DISK
    wanted = parse("--history", "each-run")
    assert (wanted.policy.history, wanted.policy.storage) == (History.EACH_RUN, Storage.DISK)
    with pytest.raises(PolicyError, match="snapshots"):
        parse("--history", "each-run", "--storage", "memory")


def test_an_unlimited_disk_needs_the_storage_for_it() -> None:
    assert parse("--disk", "unlimited", "--storage", "disk").policy.limits.disk is None
    with pytest.raises(PolicyError, match="memory of the host"):
        parse("--disk", "unlimited")


def test_what_is_kept_is_on_disk() -> None:
    wanted = parse("--keep", "task-42")
    assert (wanted.keep, wanted.policy.storage) == ("task-42", Storage.DISK)
    assert parse("--keep", "a", "--disk", "unlimited").policy.limits.disk is None


def test_nothing_in_memory_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text('storage = "memory"\n')
    with pytest.raises(RequestError, match="add --storage disk"):
        parse("--keep", "a", "--policy", str(file))
    with pytest.raises(RequestError, match="add --storage disk"):
        parse("--keep", "a", "--storage", "memory")
    wanted = parse("--keep", "a", "--policy", str(file), "--storage", "disk")
    assert wanted.policy.storage is Storage.DISK


def test_what_is_kept_is_changed_by_options_and_by_nothing_else(tmp_path: Path) -> None:
    kept = parse("--keep", "a", "--pids", "9", "--env", "A=1", "--volume", "v:/v").policy
    wanted = parse("--keep", "a", "--env", "B=2", "--volume", "w:/v", kept=kept, wall="unlimited")
    assert (wanted.policy.limits.pids, dict(wanted.policy.env)) == (9, {"A": "1", "B": "2"})
    assert wanted.policy.volumes == (VolumeMount("w", "/v"),)
    assert wanted.policy.limits.wall is None
    named = parse("--keep", "a", "--timeout", "60s").policy
    assert parse("--keep", "a", kept=named, wall="unlimited").policy.limits.wall == 60.0


def test_what_a_running_sandbox_cannot_be_given_is_named() -> None:
    running = parse("--keep", "a", "--env", "A=1", "--user", "nobody", "--timeout", "60s")
    assert (running.fixed, dict(running.env), running.user) == ((), {"A": "1"}, "nobody")
    fixed = parse("--keep", "a", "--memory", "1GiB", "--image", "x", "--volume", "v:/v").fixed
    assert set(fixed) == {"--memory", "--image", "--volume"}


def test_a_host_path_of_a_result_may_hold_colons() -> None:
    assert parse("--out", "/workspace/a:b:c").outs == (("/workspace/a", Path("b:c")),)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--memory", "much"], "--memory is"),
        (["--pids", "1.5"], "--pids is"),
        (["--timeout", "0"], "--timeout is"),
        (["--open-files", "1"], "--open-files is"),
        (["--env", "=x"], "NAME=VALUE"),
        (["--mount", "/tmp:/a:wrote"], "did you mean"),
        (["--out", "relative:/x"], "--out source"),
        (["--image", "/dev"], "^--image is"),
        (["--keep", "Task"], "^--keep is"),
        (["--volume", "cache"], "^volume is"),
        (["--volume", "cache:/a:raed"], "did you mean"),
    ],
)
def test_a_wrong_value_is_called_by_its_option(arguments: list[str], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        parse(*arguments)


@pytest.mark.parametrize(
    ("command", "is_line"), [(["echo hi"], True), (["echo", "a b"], False), (["ls"], False)]
)
def test_a_shell_line_given_as_one_word_gets_advice(command: list[str], is_line: bool) -> None:
    assert (command_words(command) is not None) == is_line


def test_a_program_of_the_host_that_is_not_shown_inside_gets_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "program").touch()
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path)
    assert "--copy .:/workspace" in (command_words(["./program"]) or "")
    assert command_words(["./absent"]) is None
    monkeypatch.chdir(tmp_path / "below")
    assert "--copy ." not in (command_words(["../program"]) or "") != ""
