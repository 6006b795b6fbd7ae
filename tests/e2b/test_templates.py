"""Templates, their builds, and volumes, by E2B's Python client."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2b import Sandbox, Template
from e2b.exceptions import BuildException, SandboxException

PROGRAMS = ("sh", "bash", "cat", "cp", "chmod", "chown", "grep", "id", "ls", "mkdir", "rm", "sleep")


@pytest.fixture(scope="module")
def image(server: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small image of the host's own programs, that the owner of the server has imported."""
    path = tmp_path_factory.mktemp("image") / "small.tar"
    write_rootfs(path)
    command = [sys.executable, "-m", "cloister", "image", "import", f"tar:{path}", "small"]
    done = subprocess.run(command, env=server.environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return "small"


def write_rootfs(path: Path) -> None:
    with tarfile.open(path, "w") as archive:
        for name in ("usr", "usr/bin", "usr/lib", "usr/lib64", "etc"):
            add(archive, name, tarfile.DIRTYPE, 0o755)
        add(archive, "tmp", tarfile.DIRTYPE, 0o1777)
        for name in ("bin", "lib", "lib64"):
            add(archive, name, tarfile.SYMTYPE, 0o777, link=f"usr/{name}")
        for name, source in sorted(files().items()):
            add(archive, name, tarfile.REGTYPE, 0o755, content=Path(source).read_bytes())
        add(archive, "etc/passwd", tarfile.REGTYPE, 0o644, content=b"root:x:0:0::/root:/bin/sh\n")
        add(archive, "etc/group", tarfile.REGTYPE, 0o644, content=b"root:x:0:\n")


def files() -> dict[str, str]:
    found = {}
    for program in PROGRAMS:
        source = os.path.realpath(f"/bin/{program}")
        found[f"usr/bin/{program}"] = source
        listed = subprocess.run(["ldd", source], capture_output=True, text=True).stdout
        for word in listed.split():
            if word.startswith("/"):
                name = word.lstrip("/")
                found[name if name.startswith("usr/") else f"usr/{name}"] = os.path.realpath(word)
    return found


def add(
    archive: tarfile.TarFile,
    name: str,
    kind: bytes,
    mode: int,
    *,
    content: bytes = b"",
    link: str = "",
) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.size, info.linkname = kind, mode, len(content), link
    archive.addfile(info, io.BytesIO(content))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "main").write_text("echo from the app")
    (tmp_path / "note.txt").write_text("noted")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "real").write_text("linked to")
    (tmp_path / "links" / "alias").symlink_to("real")
    (tmp_path / "links" / "dangling").symlink_to("nowhere")
    return tmp_path


def test_a_template_is_built_and_starts_sandboxes(image: str, folder: Path, other_key: str) -> None:
    template = (
        Template(file_context_path=str(folder))
        .from_image(image)
        .copy("app", "/srv/app/")
        .copy("note.txt", "note", mode=0o600)
        .copy("links/*", "links", mode=0o644)
        .set_envs({"GREETING": 'say "$HOME"'})
        .run_cmd("echo $GREETING > greeting; id -un > who")
        .run_cmd("echo root was here > /etc/mark", user="root")
        .set_workdir("/srv")
        .set_start_cmd("sleep 1000", "test -f /etc/mark")
    )
    said: list[str] = []
    built = Template.build(template, "mine", on_build_logs=lambda entry: said.append(entry.message))
    assert built.template_id == "mine"
    assert any("the template is ready" in line for line in said)
    assert Template.exists("mine")
    sandbox = Sandbox.create("mine")
    try:
        assert sandbox.commands.run("sh /srv/app/main").stdout == "from the app\n"
        assert sandbox.files.read("greeting") == 'say "$HOME"\n'
        assert sandbox.files.read("who") == "user\n"
        script = "cat links/alias; echo; ls links; id -un"
        assert sandbox.commands.run(script).stdout.split() == [
            *("linked", "to", "alias", "dangling", "real", "user")
        ]
        assert sandbox.files.read("note") == "noted"
        assert sandbox.files.get_info("note").permissions == "-rw-------"
        assert sandbox.files.get_info("note").owner == "user"
        assert sandbox.files.read("/etc/mark") == "root was here\n"
        assert sandbox.commands.run("echo $GREETING").stdout == 'say "$HOME"\n'
    finally:
        sandbox.kill()
    with pytest.raises(SandboxException, match="not found"):
        Sandbox.create("mine", api_key=other_key)
    again = Template.build(Template().from_template("mine").run_cmd("echo 2 > second"), "second")
    sandbox = Sandbox.create(again.template_id)
    try:
        assert sandbox.files.read("second") == "2\n"
        assert sandbox.files.read("who") == "user\n"
    finally:
        sandbox.kill()


def test_a_build_that_fails_says_what_failed(image: str) -> None:
    template = Template().from_image(image).run_cmd("echo about to fail; exit 9")
    said: list[str] = []
    with pytest.raises(BuildException, match="exit 9"):
        Template.build(template, "broken", on_build_logs=lambda entry: said.append(entry.message))
    assert "about to fail" in said
    assert not Template.exists("broken")


def test_what_a_build_cannot_have_is_refused(image: str) -> None:
    with pytest.raises(BuildException, match="is not here"):
        Template.build(Template().from_image("nowhere:1"), "x")
    with pytest.raises(BuildException, match="host's own programs"):
        Template.build(Template().from_template("base"), "x")
    with pytest.raises(BuildException, match="leave out dots"):
        Template.build(Template().from_image(image), "a.b")


@pytest.mark.parametrize(
    "step",
    [
        {"type": "RUN", "args": ["true", "root\nRUN x"]},
        {"type": "USER", "args": ["a b"]},
        {"type": "ENV", "args": ["A B", "1"]},
        {"type": "ENV", "args": ["A", "1\nRUN x"]},
        {"type": "WORKDIR", "args": ["/x\nUSER root"]},
        {"type": "COPY", "args": ["a", "b"], "filesHash": "../../etc/passwd"},
        {"type": "COPY", "args": ["a", "b"], "filesHash": "0" * 64},
        {"type": "COPY", "args": ["a", "b", "", "9"], "filesHash": "0" * 64},
        {"type": "ADD", "args": ["a", "b"]},
        "RUN true",
    ],
)
def test_steps_cannot_say_more_than_steps_say(server: Any, key: str, image: str, step: Any) -> None:
    headers = {"X-API-KEY": key}
    made = httpx.post(f"{server.url}/v3/templates", json={"name": "odd"}, headers=headers).json()
    url = f"{server.url}/v2/templates/odd/builds/{made['buildID']}"
    answer = httpx.post(url, json={"fromImage": image, "steps": [step]}, headers=headers)
    assert answer.status_code == 400, answer.text


def test_an_upload_needs_the_link_it_was_given(server: Any, key: str, other_key: str) -> None:
    headers = {"X-API-KEY": key}
    path = f"/templates/any/files/{'a' * 64}"
    link = httpx.get(server.url + path, headers=headers).json()["url"]
    forged = link.replace("tenant=acme", "tenant=rival")
    assert httpx.put(forged, content=b"x").status_code == 401
    assert httpx.put(server.url + path, content=b"x").status_code == 401
    assert httpx.put(link, content=b"x").status_code == 200
    assert httpx.get(server.url + path, headers=headers).json()["present"] is True
    theirs = httpx.get(server.url + path, headers={"X-API-KEY": other_key})
    assert theirs.json()["present"] is False


def test_templates_are_listed_with_their_tags(server: Any, key: str) -> None:
    headers = {"X-API-KEY": key}
    listed = httpx.get(f"{server.url}/templates", headers=headers).json()
    assert {"base", "code-interpreter-v1"} <= {each["templateID"] for each in listed}
    (tag,) = Template.get_tags("base")
    assert tag.tag == "default"
    assert not Template.exists("never-built")


def test_a_tag_starts_what_it_was_given_to(image: str, other_key: str) -> None:
    def build(name: str, text: str) -> None:
        recipe = Template().from_image(image).run_cmd(f"echo {text} > said")
        Template.build(recipe, name, cpu_count=1, memory_mb=512)

    def said(reference: str) -> str:
        with Sandbox.create(reference, timeout=60) as sandbox:
            return sandbox.files.read("/home/user/said")

    build("Tagged__One:v1", "one")
    assert Template.assign_tags("Tagged__One:v1", ["stable"]).tags == ["stable"]
    build("Tagged__One:v1", "two")
    assert (said("Tagged__One:stable"), said("tagged__one:v1")) == ("one\n", "two\n")
    assert {each.tag for each in Template.get_tags("Tagged__One")} == {"v1", "stable"}
    for wrong in (":x", "Tagged__One:", "a b", "7"):
        with pytest.raises(SandboxException, match="tag is"):
            Template.assign_tags("Tagged__One:v1", wrong)
    for nothing in ("Tagged__One", "tagged__one:other"):
        with pytest.raises(SandboxException, match="not found"):
            said(nothing)
    with pytest.raises(SandboxException, match="no template"):
        Template.assign_tags("Tagged__One:v1", "theirs", api_key=other_key)
    Template.remove_tags("Tagged__One", "stable")
    with pytest.raises(SandboxException, match="not found"):
        said("Tagged__One:stable")
