"""All tools, with what a model is told about them."""

from __future__ import annotations

from cloister.mcp import arguments as ask
from cloister.mcp import command_tools, file_tools, history_tools
from cloister.mcp import results as told
from cloister.mcp.desk import Desk
from cloister.mcp.tool import Tool

TOOLS = (
    Tool(
        "run",
        "Run a command",
        "Run a shell command in the sandbox; return its output and exit code. Output is standard "
        "output and error together; of long output the beginning and the end are returned, and "
        "`output` has the rest. For what never ends (servers, watchers) set background. Prefer "
        "read, write, edit and search to cat, heredocs, sed and grep.",
        ask.RunArguments,
        told.RunAnswer,
        command_tools.run,
        destroys=True,
    ),
    Tool(
        "output",
        "More output of a command",
        "Return more of what a command printed: the part that run left out, or what a background "
        "command has printed since. Pass next_cursor of the last answer. With wait_s it waits "
        "for news, so there is no need to ask again and again.",
        ask.OutputArguments,
        told.RunAnswer,
        command_tools.output,
        only_looks=True,
    ),
    Tool(
        "stop",
        "Stop a command",
        "End a command that runs, with every process it started.",
        ask.StopArguments,
        told.RunAnswer,
        command_tools.stop,
        destroys=True,
        repeatable=True,
    ),
    Tool(
        "read",
        "Read a file",
        "Return lines of a text file exactly as they are, or an image (PNG, JPEG, GIF, WebP) to "
        "look at. Long files come in parts: go on at next_line.",
        ask.ReadArguments,
        told.ReadAnswer,
        file_tools.read,
        only_looks=True,
    ),
    Tool(
        "write",
        "Write a file",
        "Write a whole file, new or in place of an old one; missing directories are made. To "
        "change a part of a file use edit.",
        ask.WriteArguments,
        told.WriteAnswer,
        file_tools.write,
        destroys=True,
        repeatable=True,
    ),
    Tool(
        "edit",
        "Edit a file",
        "Replace exact text in a file. Read the file first: old must be copied from it exactly and "
        "occur once. Nothing is changed where that is not so, and the error says why.",
        ask.EditArguments,
        told.EditAnswer,
        file_tools.edit,
        destroys=True,
    ),
    Tool(
        "search",
        "Search files",
        "Find lines by a regular expression, in all text files below a directory or those a glob "
        "names; without a pattern, find the files themselves. Leaves out .git, node_modules, "
        "__pycache__ and .venv.",
        ask.SearchArguments,
        told.SearchAnswer,
        file_tools.search,
        only_looks=True,
    ),
    Tool(
        "list",
        "List a directory",
        "Return what is in one directory: name, kind, size and mode.",
        ask.ListArguments,
        told.ListAnswer,
        file_tools.list_,
        only_looks=True,
    ),
    Tool(
        "snapshot",
        "Save a snapshot",
        "Save the sandbox's whole disk as it is now, in milliseconds; programs go on. Take one "
        "before something risky, so that rewind can undo it.",
        ask.SnapshotArguments,
        told.SnapshotAnswer,
        history_tools.snapshot,
        needs_snapshots=True,
    ),
    Tool(
        "snapshots",
        "List snapshots",
        "Return the snapshots that rewind and diff can name, oldest first.",
        ask.SnapshotsArguments,
        told.SnapshotsAnswer,
        history_tools.snapshots,
        only_looks=True,
        needs_snapshots=True,
    ),
    Tool(
        "rewind",
        "Go back to a snapshot",
        "Make the whole disk what it was at a snapshot. Commands that run are ended. What was "
        "there is kept as a snapshot too.",
        ask.RewindArguments,
        told.SnapshotAnswer,
        history_tools.rewind,
        destroys=True,
        repeatable=True,
        needs_snapshots=True,
    ),
    Tool(
        "diff",
        "Show what changed",
        "Return which files were added, changed and deleted since the sandbox began or since a "
        "snapshot, and with patch the changed text. A good last look before reporting that work "
        "is done.",
        ask.DiffArguments,
        told.DiffAnswer,
        history_tools.diff,
        only_looks=True,
        needs_snapshots=True,
    ),
)


def offered(desk: Desk) -> list[Tool]:
    """Return the tools that this sandbox can do."""
    return [tool for tool in TOOLS if desk.has_snapshots or not tool.needs_snapshots]


def instructions(desk: Desk) -> str:
    """Return what a model is told about the whole."""
    policy = desk.policy
    parts = [
        "An isolated Linux sandbox to work in. Its files and programs are its own: nothing in it "
        "touches the person's machine. It is made at the first call and is the same from call to "
        "call."
    ]
    if policy.egress is None:
        parts.append("It has no network.")
    else:
        parts.append("Its network reaches only hosts that its owner allowed; others do not answer.")
    if desk.has_snapshots:
        parts.append("snapshot saves the disk and rewind goes back, so trying things is cheap.")
    return " ".join(parts)
