"""`cloister apply` of what a server keeps: compared there, checked and written on this machine."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from cloister.errors import RequestError
from cloister.model.changes import EntryType
from cloister.store.changes.delivered import Delivery
from cloister.store.changes.mark import Mark

from .conftest import Server
from .test_approvals import asked

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def environment(server: Server, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    token = server.token("painter", scopes=("sandboxes:write", "snapshots:write"))
    state = tmp_path_factory.mktemp("home") / "state"
    named = {"CLOISTER_URL": server.url, "CLOISTER_TOKEN": token, "CLOISTER_STATE": str(state)}
    return {**os.environ, **named}


@pytest.fixture
def cloister(environment: dict[str, str]) -> Run:
    def run(*words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "cloister", *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == code, (words, done.stdout, done.stderr)
        # What was copied in is remembered on the server; here there is only the key of journals.
        state = Path(environment["CLOISTER_STATE"])
        assert [each.name for each in state.glob("*")] in ([], ["apply.key"])
        return done

    return run


@pytest.fixture
def name(cloister: Run) -> Iterator[str]:
    one = f"task-{secrets.token_hex(3)}"
    yield one
    left = [each["name"] for each in json.loads(cloister("ls", "--json").stdout)]
    cloister("rm", "--force", *left)


def test_what_a_server_keeps_is_applied_here_with_the_same_checks(
    cloister: Run, name: str, tmp_path: Path
) -> None:
    tree = tmp_path / "tree"
    (tree / "gone").mkdir(parents=True)
    (tree / "changed").write_text("before\n")
    (tree / "left").write_text("left\n")
    (tree / "gone" / "file").write_text("x")
    work = (
        "echo after > changed; rm -r gone; mkdir new; printf 'x\\377' > new/$(printf 'b\\377')\n"
        "ln -s ../left new/link; chmod 755 new; mkdir -p .git/hooks; echo x > .git/hooks/pre-commit"
        "; truncate -s 3M sparse; printf end >> sparse"
    )
    copied = ("--copy", f"{tree}:/workspace")
    cloister("run", "--keep", name, "--disk", "unlimited", *copied, "--", "sh", "-c", work)
    assert "--yes" in cloister("apply", name, str(tree), code=2).stderr
    shown = cloister("apply", name, str(tree), "--dry-run").stdout.splitlines()
    assert {"C changed", "D gone/", "D gone/file", "A new/link -> ../left"} <= set(shown)
    (trap,) = [line for line in shown if "pre-commit" in line]
    assert "programs of the host run or obey this" in trap
    assert (tree / "changed").read_text() == "before\n"

    cloister("apply", name, str(tree), "--yes")
    assert (tree / "changed").read_text() == "after\n"
    assert not (tree / "gone").exists()
    assert (tree / os.fsdecode(b"new/b\xff")).read_bytes() == b"x\xff"
    assert os.readlink(tree / "new" / "link") == "../left"
    assert (tree / "sparse").read_bytes() == bytes(3 * 2**20) + b"end"
    assert "nothing to do" in cloister("apply", name, str(tree), "--yes").stdout

    # A fork is applied against the same; the host's own changes stand against it.
    cloister("fork", name)
    fork = f"{name}-fork-1"
    cloister("run", "--keep", fork, "--", "sh", "-c", "echo mine > left; echo 3 > third")
    (tree / "left").write_text("the host's\n")
    assert "left" in cloister("apply", fork, str(tree), "--yes", code=2).stderr
    assert (tree / "left").read_text() == "the host's\n" and not (tree / "third").exists()
    (tree / "left").write_text("left\n")
    cloister("run", "--keep", fork, "--", "sh", "-c", "chmod u+s third; ln -s ../../out out")
    refused = cloister("apply", fork, str(tree), "--yes", code=2).stderr
    assert "may not be put on a host" in refused and not (tree / "third").exists()
    cloister("apply", fork, str(tree), "--yes", "--skip-refused")
    assert (tree / "left").read_text() == "mine\n"
    assert not (tree / "third").exists() and not os.path.lexists(tree / "out")


def test_what_is_applied_from_a_server_waits_at_the_gate_of_its_policy(
    server: Server, owner: httpx.Client, tmp_path: Path
) -> None:
    policy, target = tmp_path / "gated.toml", tmp_path / "target"
    target.mkdir()
    name = f"gated-{secrets.token_hex(3)}"
    environment = {**os.environ, "CLOISTER_URL": f"unix:{server.socket}"}
    policy.write_text('[gates]\napply = "ask"\nexport = "allow"\n')
    command = [sys.executable, "-m", "cloister"]
    made = [*command, "run", "--keep", name, "--policy", str(policy), "--disk", "unlimited"]
    subprocess.run([*made, "--", "sh", "-c", "echo made > made"], env=environment, check=True)
    for answer in ("deny", "once"):
        applying = subprocess.Popen(
            [*command, "apply", name, str(target), "--yes"], env=environment, stderr=subprocess.PIPE
        )
        question = asked(owner)
        assert str(target) in json.dumps(question)
        assert "step: A made" in json.dumps(question)
        assert not (target / "made").exists()
        given = {"digest": question["digest"], "answer": answer}
        told = owner.post(f"/v1/approvals/{question['number']}", json=given)
        assert told.status_code == 200, told.text
        _, said = applying.communicate(timeout=100)
        is_let = answer == "once"
        assert (applying.returncode == 0) is is_let, said
        assert is_let or b"apply is denied" in said
        assert (target / "made").exists() is is_let
    subprocess.run([*command, "rm", "--force", name], env=environment, check=True)


@pytest.mark.parametrize(
    "sent",
    [
        b'{"path": "other", "bytes": 0}\n',
        b'{"at": 0, "bytes": 1}\nx',
        b'{"path": "file", "bytes": 0}\n{"at": 3, "bytes": 2}\nxx',
        b'{"path": "file", "bytes": 0}\n{"at": 0, "bytes": 2}\nxx{"at": 1, "bytes": 1}\nx',
        b'{"path": "file", "bytes": 0}\n{"path": "file", "bytes": 0}\n',
        b'{"path": "file", "bytes": 99999999}\n',
        b'{"path": "file", "bytes": -1}\n',
        b"[]\n",
        b"",
        b'{"path": "file", "bytes": 0}\n{"at": 0, "bytes": 2}\nx',
    ],
)
def test_a_server_that_sends_more_or_less_than_was_planned_is_not_believed(
    sent: bytes, tmp_path: Path
) -> None:
    wanted = {b"file": Mark(EntryType.FILE, 0o644, "digest", size=4)}
    with (tmp_path / "spool").open("w+b") as spool:
        delivery = Delivery(spool, wanted)
        with pytest.raises(RequestError):
            for at in range(0, len(sent), 7):
                delivery.take(sent[at : at + 7])
            delivery.finish()
    with (tmp_path / "spool").open("w+b") as spool:
        delivery = Delivery(spool, wanted)
        for piece in (b'{"path": "file", "bytes": 0}\n{"at": 1', b', "bytes": 3}\nab', b"c"):
            delivery.take(piece)
        ((path, content),) = delivery.finish().contents()
        with (tmp_path / "target").open("w+b") as target:
            content.copy_to(target.fileno(), 4)
            assert (path, target.read()) == (b"file", b"\0abc")


def test_what_is_said_to_be_applied_fills_no_more_than_what_may_be_copied_in(
    acme: httpx.Client,
) -> None:
    keep = {"keep": f"task-{os.urandom(4).hex()}", "limits": {"disk": "unlimited"}}
    place = f"/v1/sandboxes/{acme.post('/v1/sandboxes', json=keep).json()['id']}"
    try:
        assert acme.put(f"{place}/copied?path=/workspace", content=b"").status_code == 204
        answers = [
            acme.post(f"{place}/apply/done", content=_links(number), timeout=120).status_code
            for number in range(3)
        ]
        # Each is less than the bound, and together they are more.
        assert answers == [204, 204, 400]
    finally:
        acme.delete(place)
        acme.delete(place)


def _links(number: int) -> bytes:
    """Steps of 24 MiB, with other paths for each number."""
    after = Mark(EntryType.LINK, 0, target=b"t" * 2**20).to_json()
    return b"".join(
        json.dumps({"path": f"{number}-{each}", "after": after}).encode() + b"\n"
        for each in range(24)
    )
