"""Policies in Python: frozen, whole, and refusing what does not fit together."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from cloister.errors import PolicyError
from cloister.model import Limits, Mount, Profile, Trust, User, VolumeMount
from cloister.policy import (
    DirectoryRoot,
    History,
    HostRoot,
    ImageRoot,
    LedgerMode,
    Policy,
    SecondLayer,
    Storage,
)


def test_the_default_policy_is_complete() -> None:
    policy = Policy()
    assert (policy.trust, policy.profile) == (Trust.INTERNAL, Profile.DEFAULT)
    assert (policy.limits, policy.mounts, dict(policy.env)) == (Limits(), (), {})
    assert (policy.root, policy.hostname) == (HostRoot(), "sandbox")
    assert (policy.second_layer, policy.user) == (SecondLayer.LANDLOCK, None)
    assert (policy.storage, policy.history, policy.volumes) == (Storage.MEMORY, History.NONE, ())


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, (1000, 1000)),
        ({"profile": "debug"}, (1000, 1000)),
        ({"profile": "root"}, (0, 0)),
        ({"profile": "root", "user": "user"}, (1000, 1000)),
        ({"user": "nobody"}, (65534, 65534)),
    ],
)
def test_the_user_follows_the_profile_unless_named(
    fields: dict[str, Any], expected: tuple[int, int]
) -> None:
    assert Policy(**fields).run_as == expected


@pytest.mark.parametrize("user", ["root", 0, "1000:0", "0:1000"])
def test_root_needs_the_profile_for_it(user: str | int) -> None:
    assert 0 in Policy(user=user, profile="root").run_as
    with pytest.raises(PolicyError, match='profile = "root"'):
        Policy(user=user)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("trust", "full"), ("trust", None), ("profile", "admin"), ("second_layer", True),
        ("limits", {"memory": 1}), ("mounts", ["a:/b"]), ("mounts", 3), ("mounts", Mount),
        ("env", {"A": 1}), ("env", ["A=1"]), ("root", "/"), ("root", HostRoot),
        ("hostname", ""), ("hostname", "-a"), ("hostname", "a" * 64), ("hostname", "a\n"),
        ("user", "daemon"), ("user", 70_000), ("storage", "tape"), ("storage", True),
        ("history", "always"), ("history", None), ("volumes", ["a:/b"]), ("volumes", 3),
        ("volumes", [Mount("a", "/b")]), ("mounts", [VolumeMount("a", "/b")]),
        ("root", ImageRoot), ("ledger", "yes"), ("ledger", True),
    ],
)  # fmt: skip
def test_a_field_of_the_wrong_kind_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(PolicyError) as caught:
        Policy(**{field: value})
    assert caught.value.place == f"policy {field}"


def test_two_mounts_in_one_place_are_refused() -> None:
    assert Policy(mounts=[Mount("a", "/x"), Mount("b", "/x/y")])
    with pytest.raises(PolicyError, match="twice"):
        Policy(mounts=[Mount("a", "/x"), Mount("b", "/x")])


def test_a_volume_takes_a_place_of_its_own_and_may_be_shown_in_two() -> None:
    shown = [VolumeMount("a", "/x"), VolumeMount("a", "/y", "read")]
    assert Policy(volumes=shown, mounts=[Mount("a", "/x/y")]).volumes == tuple(shown)
    with pytest.raises(PolicyError, match="twice") as caught:
        Policy(volumes=[VolumeMount("a", "/x"), VolumeMount("b", "/x")])
    assert caught.value.place == "policy volumes"
    with pytest.raises(PolicyError, match="twice") as caught:
        Policy(volumes=shown, mounts=[Mount("a", "/x")])
    assert caught.value.place == "policy volumes"


def test_a_history_puts_the_storage_on_disk_unless_it_is_stated() -> None:
    assert Policy(history="each-run").storage is Storage.DISK
    assert Policy(history="each-run", storage="disk").storage is Storage.DISK
    assert Policy(storage="disk").history is History.NONE
    with pytest.raises(PolicyError, match=r'"each-run".*"memory"') as caught:
        Policy(history="each-run", storage="memory")
    assert caught.value.place == "policy history"


def test_the_ledger_follows_the_way_out_unless_it_is_stated() -> None:
    assert Policy().ledger is Policy(storage="disk").ledger is LedgerMode.OFF
    assert Policy(egress=["example.org"]).ledger is LedgerMode.ON
    assert Policy(egress=["example.org"], ledger="off").ledger is LedgerMode.OFF
    assert Policy().replace(egress=["example.org"]).ledger is LedgerMode.ON
    assert Policy(ledger="off").replace(egress=["example.org"]).ledger is LedgerMode.OFF
    assert Policy(ledger="off") == Policy() and Policy(ledger="off").digest() == Policy().digest()
    assert Policy(ledger="on").digest() != Policy().digest()


def test_replace_remembers_whether_the_storage_was_stated() -> None:
    assert Policy().replace(hostname="b").replace(history="each-run").storage is Storage.DISK
    assert Policy(history="each-run").replace(history="none").storage is Storage.MEMORY
    assert Policy(storage="disk").replace(history="none").storage is Storage.DISK
    with pytest.raises(PolicyError, match="snapshots"):
        Policy(storage="memory").replace(hostname="b").replace(history="each-run")
    with pytest.raises(PolicyError, match="no such field"):
        Policy().replace(storage_is_stated=True)


def test_a_stated_storage_is_the_same_policy_as_one_that_follows() -> None:
    stated, follows = Policy(storage="memory"), Policy()
    assert (stated.storage_is_stated, follows.storage_is_stated) == (True, False)
    assert stated == follows
    assert (hash(stated), stated.digest()) == (hash(follows), follows.digest())


def test_a_disk_without_limit_cannot_be_in_memory() -> None:
    limits = Limits(disk="unlimited")
    assert Policy(limits=limits, storage="disk").limits.disk is None
    assert Policy(limits=limits, history="each-run").limits.disk is None
    with pytest.raises(PolicyError, match="memory of the host") as caught:
        Policy(limits=limits)
    assert caught.value.place == "policy limits.disk"
    with pytest.raises(PolicyError, match="memory of the host"):
        Policy(limits=limits, storage="disk").replace(storage="memory")


@pytest.mark.parametrize("path", ["/", "//", "///", "/.", "/./", "/x/..", "/./x", "/x/.", "x", ""])
def test_the_hosts_own_root_cannot_be_the_directory_however_spelt(path: str) -> None:
    with pytest.raises(PolicyError):
        DirectoryRoot(path)


def test_any_other_directory_can_be_the_root() -> None:
    assert DirectoryRoot("/srv/.hidden/root").path == Path("/srv/.hidden/root")
    assert DirectoryRoot(Path("/srv")).path == Path("/srv")


@pytest.mark.parametrize("reference", ["dev", "a/b:1.2@sha256:0f", "~", "x" * 255, "./image"])
def test_an_image_is_known_by_any_plain_name(reference: str) -> None:
    policy = Policy(root=ImageRoot(reference))
    assert policy.as_dict()["root"] == {"kind": "image", "image": reference}


@pytest.mark.parametrize(
    "reference",
    ["", "-dev", "/dev", "a b", "a\n", "dev\n", "a\0", "\x7f", "ü", "x" * 256, None, 3, b"dev"],
)
def test_what_is_no_name_of_an_image_is_refused(reference: Any) -> None:
    with pytest.raises(PolicyError, match=r"root\.image is ") as caught:
        ImageRoot(reference)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("extra", ["/opt", ["/"], ["/proc"], ["opt"], ["/opt/"], [3], ["/etc"]])
def test_extra_directories_are_exact_and_not_the_sandboxs_own(extra: Any) -> None:
    with pytest.raises(PolicyError):
        HostRoot(extra)


def test_replace_changes_only_what_is_named_and_knows_the_names() -> None:
    policy = Policy(hostname="a", profile="root")
    assert policy.replace(hostname="b") == Policy(hostname="b", profile="root")
    assert policy.replace(profile="default").run_as == (1000, 1000)
    with pytest.raises(PolicyError) as caught:
        policy.replace(hostnam="b")
    assert caught.value.nearest == "hostname"


def test_a_policy_is_frozen_hashable_and_picklable() -> None:
    policy = Policy(env={"A": "1"}, mounts=[Mount(".", "/x")], user=User(5, 6))
    policy = policy.replace(volumes=[VolumeMount("a", "/y")], root=ImageRoot("dev"))
    with pytest.raises(AttributeError):
        policy.hostname = "other"  # type: ignore[misc]
    again = pickle.loads(pickle.dumps(policy))
    assert {policy: 1}[again] == 1
    assert again.replace(history="each-run").storage is Storage.DISK


def test_the_digest_follows_the_meaning() -> None:
    policy = Policy(env={"A": "1", "B": "2"}, limits=Limits(memory="1GiB"))
    same = Policy(env={"B": "2", "A": "1"}, limits=Limits(memory=2**30))
    assert policy.digest() == same.digest()
    assert len(policy.digest()) == 64
    variants = [
        policy.replace(trust="hostile"),
        policy.replace(profile="root"),
        policy.replace(limits=Limits()),
        policy.replace(mounts=[Mount("a", "/b")]),
        policy.replace(mounts=[Mount("a", "/b", "write")]),
        policy.replace(env={}),
        policy.replace(root=DirectoryRoot("/srv")),
        policy.replace(root=HostRoot(["/opt"])),
        policy.replace(hostname="b"),
        policy.replace(second_layer="none"),
        policy.replace(user=7),
        policy.replace(env={"A": "\udcff"}),
        policy.replace(root=ImageRoot("dev")),
        policy.replace(root=ImageRoot("srv")),
        policy.replace(storage="disk"),
        policy.replace(history="each-run"),
        policy.replace(storage="disk", limits=Limits(disk="unlimited")),
        policy.replace(volumes=[VolumeMount("a", "/b")]),
        policy.replace(volumes=[VolumeMount("a", "/b", "read")]),
    ]
    assert len({each.digest() for each in (policy, *variants)}) == len(variants) + 1
