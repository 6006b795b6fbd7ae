"""What a server knows, written to a file while it runs and put back into an empty place."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest

from cloister.errors import RequestError
from cloister.node.templates import Templates
from cloister.policy import Policy
from cloister.server.backup import restore_backup
from cloister.server.records import Records
from cloister.server.tokens import all_tokens
from cloister.store import Store

from .conftest import ANSWER_S, Server, StartServer, created

DISK = {"storage": "disk", "limits": {"disk": "unlimited"}}


def cloister(server: Server, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cloister", *words]
    return subprocess.run(command, env=server.environment, capture_output=True, text=True)


def test_what_was_written_while_a_server_ran_is_whole_in_an_empty_place(
    start_server: StartServer, tmp_path: Path
) -> None:
    server = start_server()
    token = server.token("acme")
    client = server.client(token)
    ended = created(client, metadata={"job": "7"})
    client.delete(f"/v1/sandboxes/{ended}")
    kept = created(client, keep="task", **DISK)
    stop, made = threading.Event(), []

    def storm() -> None:
        with httpx.Client(
            base_url=server.url, headers={"authorization": f"Bearer {token}"}, timeout=ANSWER_S
        ) as another:
            while not stop.is_set():
                id = created(another)
                made.append(id)
                assert another.delete(f"/v1/sandboxes/{id}").status_code == 204

    thread = threading.Thread(target=storm)
    thread.start()
    file = tmp_path / "backup.json"
    try:
        before = list(made)
        done = cloister(server, "backup", str(file))
    finally:
        stop.set()
        thread.join()
    assert done.returncode == 0, done.stderr
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    text = file.read_text()
    assert token.removeprefix("clo_")[12:] not in text
    assert os.listdir(tmp_path) == ["backup.json"]
    assert server.stop() == 0

    fresh = start_server()
    assert fresh.stop() == 0
    other = cloister(fresh, "restore", str(file))
    assert other.returncode != 0 and "another server" in other.stderr
    shutil.rmtree(fresh.directory / "state")
    done = cloister(fresh, "restore", str(file))
    assert done.returncode == 0, done.stderr
    assert f"acme {kept}" in done.stderr
    fresh.start()
    # The same token opens the same records.
    again = fresh.client(token)
    found = again.get(f"/v1/sandboxes/{ended}").json()
    assert (found["state"], found["metadata"]) == ("ended", {"job": "7"})
    assert {again.get(f"/v1/sandboxes/{id}").status_code for id in before} <= {200}
    # A disk that is not there is not begun anew in silence.
    found = again.get(f"/v1/sandboxes/{kept}").json()
    assert (found["state"], found["ending"]) == ("ended", "it was restored without its disk")
    assert again.post(f"/v1/sandboxes/{kept}/resume").status_code == 404
    assert again.post("/v1/run", json={"command": ["true"], "sandbox": {}}).status_code == 200
    keys = {(each.directory / "state/e2b.key").read_bytes() for each in (server, fresh)}
    assert len(keys) == 1

    twice = cloister(fresh, "restore", str(file))
    assert twice.returncode != 0 and "already" in twice.stderr


def test_disks_that_are_there_are_found_again_by_records_that_were_lost(
    start_server: StartServer, tmp_path: Path
) -> None:
    server = start_server()
    token = server.token("acme")
    client = server.client(token)
    kept = created(client, keep="task", **DISK)
    run = {"command": "echo kept > /workspace/file"}
    assert client.post(f"/v1/sandboxes/{kept}/run", json=run).json()["exit_code"] == 0
    file = tmp_path / "backup.json"
    assert cloister(server, "backup", str(file)).returncode == 0
    assert server.stop() == 0
    for path in (server.directory / "state").glob("server.db*"):
        path.unlink()
    done = cloister(server, "restore", str(file))
    assert done.returncode == 0, done.stderr
    server.start()
    client = server.client(token)
    assert client.post(f"/v1/sandboxes/{kept}/resume").status_code == 200
    read = client.post(f"/v1/sandboxes/{kept}/run", json={"command": "cat /workspace/file"})
    assert read.json()["stdout"] == "a2VwdAo="


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no backup"),
        ("[1]", "no backup"),
        ('{"form": 2}', "form 2"),
        ('{"form": 1}', "no whole backup"),
        ('{"form": 1, "more": 1}', "no whole backup"),
    ],
)
def test_a_file_that_is_no_backup_changes_nothing(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "file"
    file.write_text(text)
    records = Records.open(f"sqlite:///{tmp_path}/records.db")
    try:
        with Store.open(tmp_path / "state") as store:
            with pytest.raises(RequestError, match=words):
                restore_backup(records, store, file)
            assert Templates(store).texts() == []
        assert all_tokens(records) == []
    finally:
        records.close()


def test_templates_come_back_in_the_version_they_had(tmp_path: Path) -> None:
    text = json.dumps(
        {
            "form": 1,
            "name": "web",
            "version": 7,
            "image": "sha256:" + "0" * 64,
            "policy": Policy().as_dict(),
            "start": ["serve"],
            "ready": None,
            "steps": [],
            "base": "x",
            "created_at": 1.0,
        }
    )
    with Store.open(tmp_path / "one") as store:
        templates = Templates(store)
        assert templates.put_back(text) is True
        assert templates.put_back(text) is False
        assert templates.find("web").version == 7
        assert templates.texts() == [text]
