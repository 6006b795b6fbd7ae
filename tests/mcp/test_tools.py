"""What each tool does, asked by the official client in both eras of the protocol."""

from __future__ import annotations

import asyncio
import base64

import mcp_types as wire
import pytest
from mcp.shared.exceptions import MCPError

from cloister import Sandbox
from cloister.node import open_store

PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5Er"
    "kJggg=="
)


@pytest.mark.parametrize(("mode", "version"), [("auto", "2026-07-28"), ("legacy", "2025-11-25")])
async def test_both_eras_of_the_protocol_are_spoken(connect, mode, version) -> None:
    async with connect(mode=mode) as call:
        assert call.client.protocol_version == version
        ended = await call("run", command="echo out; echo err >&2; pwd; exit 3")
        assert ended["output"] == "out\nerr\n/workspace\n"
        assert (ended["state"], ended["exit_code"], ended["reason"]) == ("ended", 3, "exit")


async def test_tools_say_what_they_take_and_whether_they_change_anything(session, connect) -> None:
    async with session() as call:
        tools = {tool.name: tool for tool in (await call.client.list_tools()).tools}
        names = "run output stop read write edit search list snapshot snapshots rewind diff"
        assert list(tools) == names.split()
        for name, tool in tools.items():
            assert tool.input_schema["additionalProperties"] is False
            assert tool.output_schema and tool.annotations and len(tool.description or "") > 40
            looks = name in ("output", "read", "search", "list", "snapshots", "diff")
            assert tool.annotations.read_only_hint is looks
            assert tool.annotations.open_world_hint is False
        assert "no network" in (call.client.instructions or "")
    async with connect("--storage", "memory") as call:
        names = [tool.name for tool in (await call.client.list_tools()).tools]
        assert "rewind" not in names and "run" in names
        with pytest.raises(MCPError, match=r"no tool .*; there are: run"):
            await call("rewind", to="x")


async def test_long_output_is_paged_and_nothing_of_it_is_lost(session) -> None:
    async with session() as call:
        ended = await call("run", command="seq 1 30000")
        assert ended["output"].startswith("1\n2\n") and ended["output"].endswith("\n30000\n")
        assert f"cursor={ended['next_cursor']}" in ended["output"]
        assert len(ended["output"]) < 30_000
        whole, cursor = "", 0
        while cursor is not None:
            page = await call("output", process=ended["process"], cursor=cursor)
            whole, cursor = whole + page["output"], page["next_cursor"]
        assert whole == "".join(f"{number}\n" for number in range(1, 30_001))


async def test_a_background_command_is_followed_and_stopped(session) -> None:
    async with session() as call:
        began = await call("run", command="echo up; read x < /dev/zero; sleep 600", background=True)
        assert began["state"] == "running"
        process = began["process"]
        news = await call("output", process=process, cursor=0, wait_s=20)
        assert news["output"] == "up\n"
        stopped = await call("stop", process=process)
        assert (stopped["state"], stopped["reason"]) == ("ended", "cancelled")
        assert "p1" in await call.fails("output", process="p9")


async def test_a_timeout_says_what_to_do(connect) -> None:
    async with connect("--timeout", "5s") as call:
        said = await call.text("run", command="echo so far; sleep 60", timeout_s=0.5)
        assert said.startswith("so far\n") and "background" in said
        assert "5s" in await call.fails("run", command="true", timeout_s=6)


async def test_progress_is_told_while_a_command_runs(session) -> None:
    heard: list[tuple[float, str | None]] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, message))

    async with session() as call:
        await call.client.call_tool(
            "run", {"command": "echo line one; sleep 1.6"}, progress_callback=hear
        )
    assert heard and heard[0] == (1.0, "line one")


async def test_cancelling_a_call_kills_its_processes(session) -> None:
    async with session() as call:
        await call("run", command="mkfifo up; touch lock")
        held = "flock lock sh -c 'echo held > up; sleep 600'"
        running = asyncio.create_task(call("run", command=held))
        assert (await call("run", command="cat up"))["output"] == "held\n"
        assert (await call("run", command="flock -n lock true"))["exit_code"] == 1
        running.cancel()
        # The lock is free once all that held it have ended.
        assert (await call("run", command="flock lock echo free"))["output"] == "free\n"


async def test_files_are_written_read_in_parts_and_edited(session) -> None:
    async with session() as call:
        text = "".join(f"line {number}\n" for number in range(1, 3001))
        assert (await call("write", path="deep/er/file", content=text))["created"]
        first = await call("read", path="deep/er/file")
        assert (first["next_line"], first["text"].count("\n")) == (1001, 1000)
        part = await call("read", path="/workspace/deep/er/file", first_line=2999, lines=5)
        assert (part["text"], part["next_line"]) == ("line 2999\nline 3000\n", None)
        assert "past its end" in await call.fails("read", path="deep/er/file", first_line=9999)
        await call("run", command="chmod 755 deep/er/file")
        edited = await call("edit", path="deep/er/file", old="line 7\n", new="seven\n")
        assert edited == {"path": "/workspace/deep/er/file", "replaced": 1, "line": 7}
        shown = await call("run", command="stat -c %a deep/er/file; sed -n 6,8p deep/er/file")
        assert shown["output"] == "755\nline 6\nseven\nline 8\n"
        assert "times" in await call.fails("edit", path="deep/er/file", old="line 1", new="x")
        many = await call("edit", path="deep/er/file", old="line 1", new="x", replace_all=True)
        assert many["replaced"] > 1000
        assert "whitespace" in await call.fails("edit", path="deep/er/file", old=" seven\n", new="")


async def test_images_are_seen_and_other_bytes_are_a_resource(session) -> None:
    async with session() as call:
        await call("run", command=f"echo {PNG} | base64 -d > a.png; printf 'a\\0b' > b.bin")
        result = await call.client.call_tool("read", {"path": "a.png"})
        image = result.content[1]
        assert isinstance(image, wire.ImageContent) and image.mime_type == "image/png"
        assert base64.b64decode(image.data) == base64.b64decode(PNG)
        said = await call.fails("read", path="b.bin")
        assert "sandbox:///workspace/b.bin" in said
        (blob,) = (await call.client.read_resource("sandbox:///workspace/b.bin")).contents
        assert base64.b64decode(blob.blob) == b"a\0b"
        listed = [each.uri for each in (await call.client.list_resources()).resources]
        assert "sandbox:///workspace/a.png" in listed
        (template,) = (await call.client.list_resource_templates()).resource_templates
        assert template.uri_template == "sandbox://{+path}"


async def test_search_finds_lines_and_files(session) -> None:
    async with session() as call:
        await call("write", path="src/a/one.py", content="import os\nx = 12\n")
        await call("write", path="src/two.py", content="y = 345\n")
        await call("write", path="src/three.txt", content="z = 6\n")
        await call("write", path=".git/hidden.py", content="x = 99\n")
        found = await call("search", pattern=r"= \d{2,}$")
        assert {(each["path"], each["line"]) for each in found["matches"]} == {
            ("/workspace/src/a/one.py", 2),
            ("/workspace/src/two.py", 1),
        }
        by_path = await call("search", pattern="=", glob="src/*.{py,txt}")
        assert {each["path"].rpartition("/")[2] for each in by_path["matches"]} == {
            "two.py",
            "three.txt",
        }
        files = await call("search", glob="**/*.py", path="src")
        assert [each["path"] for each in files["matches"]] == [
            "/workspace/src/a/one.py",
            "/workspace/src/two.py",
        ]
        few = await call("search", pattern=".", limit=1)
        assert few["truncated"] and len(few["matches"]) == 1
        assert "pattern" in await call.fails("search", pattern="(")
        assert "glob" in await call.fails("search")
        listed = await call("list", path="src")
        assert [each["name"] for each in listed["entries"]] == ["a", "three.txt", "two.py"]


async def test_going_back_undoes_and_the_difference_is_told(
    session, left_in_store, wait_until
) -> None:
    before = set(left_in_store())
    async with session() as call:
        await call("write", path="file", content="one\ntwo\n")
        await call("snapshot", name="before")
        await call("edit", path="file", old="two", new="three")
        await call("run", command="rm -f /workspace/none; touch new")
        changed = await call("diff", since="before", patch=True)
        assert [(each["kind"], each["path"]) for each in changed["changes"]] == [
            ("changed", "/workspace/file"),
            ("added", "/workspace/new"),
        ]
        assert "-two\n+three\n" in changed["patch"]
        assert "already" in await call.fails("snapshot", name="before")
        await call("rewind", to="before")
        assert (await call("read", path="file"))["text"] == "one\ntwo\n"
        assert "before" in await call.fails("rewind", to="never")
        assert (await call("snapshots"))["snapshots"][0]["name"] == "before"
    await wait_until(lambda: set(left_in_store()) <= before)


async def test_a_sandbox_is_made_at_the_first_call_and_goes_with_its_client(
    connect, labelled
) -> None:
    async with connect("--label", "short-lived") as call:
        await call.client.list_tools()
        await call.client.list_resources()
        assert not labelled("short-lived")
        await call("run", command="sleep 0.2")
        assert labelled("short-lived")
    assert not labelled("short-lived")


async def test_a_kept_sandbox_is_there_again(connect) -> None:
    kept = ("--keep", "mcp-kept", "--disk", "unlimited")
    async with connect(*kept) as call:
        await call("write", path="mine", content="still here")
    async with Sandbox(keep="mcp-kept") as sandbox:
        assert await sandbox.files.read("/workspace/mine") == b"still here"
        async with connect(*kept) as call:
            assert "mcp-kept" in await call.fails("read", path="mine")
    (await open_store()).kept.remove("mcp-kept")


async def test_a_sandbox_that_ended_is_told_and_made_anew(connect) -> None:
    async with connect("--lifetime", "2s") as call:
        await call("write", path="mine", content="x")
        said = await call.fails("run", command="sleep 30", timeout_s=60)
        assert "lifetime" in said and "anew" in said
        assert "does not exist" in await call.fails("read", path="mine")
        assert (await call("run", command="echo well"))["output"] == "well\n"
