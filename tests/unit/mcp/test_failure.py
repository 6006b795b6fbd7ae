"""What a model is told about an error."""

from __future__ import annotations

from cloister.errors import FileError, HostError
from cloister.mcp.failure import explain
from cloister.store.place import state_directory


def test_a_model_reads_no_path_of_the_host_and_every_path_inside() -> None:
    place = f"{state_directory()}/store.db"
    told = explain(HostError(f"{place} cannot be read: no room; make some"))
    assert place not in told and "cannot be read: no room" in told
    inside = FileError("/workspace/x is a directory", path="/workspace/x", errno_name="EISDIR")
    assert explain(inside).startswith("/workspace/x is a directory")
