"""What the contract tests share: sandboxes over both transports, and events from inside them."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from cloister import Sandbox
from cloister.node import Node, list_records
from cloister.policy import DirectoryRoot
from cloister.runtime.gvisor.program import candidates
from cloister.runtime.microvm.program import why_not
from cloister.runtime.namespace.ids import find_sub_ids
from cloister.runtime.namespace.instance import runtime_directory
from cloister.runtime.namespace.layout import find_layout
from cloister.runtime.wasm.program import why_absent

from ..differences import skip_if_different
from .machine_root import PLACE, has_machines, machine_root

NO_UNIFIED = "without a unified control group there is no freezing and no sum of cpu time"

Make = Callable[..., Sandbox]

# What looks at the host's side of a sandbox, of which a server tells its clients nothing.
OF_THE_HOST = {
    "test_an_exception_in_the_body_ends_it_too",
    "test_everything_inside_ends_with_it",
    "test_a_cancelled_stop_still_ends_it",
    "test_the_death_of_the_guest_is_told",
    "test_a_guest_that_was_lost_unheard_is_told_to_who_asks_it_next",
    "test_a_step_that_fails_is_named_and_leaves_nothing",
    "test_a_live_sandbox_is_on_record_by_its_label",
    "test_the_posture_is_what_was_planned",
    "test_a_sandbox_ends_at_its_lifetime",
    "test_an_idle_sandbox_ends_and_a_busy_one_does_not",
    "test_cpu_past_the_limit_is_withheld",
    "test_a_paused_sandbox_stands_still_and_goes_on",
    "test_a_paused_sandbox_can_be_ended",
}
# Of these modules all: what is recorded, and what is launched ahead, is on the server's disk and in
# its process; a wall's own programs are its host's.
MODULES_OF_THE_HOST = (
    "hostile_machines",
    "hostile_wire",
    "ledger",
    "machines",
    "machines_of_users",
    "spares",
    "walls",
)


# What of the contract needs no programs inside, or not always.
_OF_FILES = ("copy", "files", "watch")
# What of the contract is asked of machines each time; all of it is under `make soak`.
_SHORT_ON_MACHINES = (
    "test_a_flood_on_both_outputs_is_read_to_its_end",
    "test_a_paused_sandbox_stands_still_and_goes_on",
    "test_each_kind_of_change_is_told",
    "test_job_control_stops_continues_and_interrupts",
    "test_no_more_of_what_exploits_begin_with_is_in_reach_than_is_said",
    "test_processes_past_the_limit_are_refused",
    "test_sandboxes_do_not_see_each_other",
    "test_the_two_outputs_stay_apart",
    "test_what_a_program_leaves_running_lives_on_and_holds_nobody_up",
    "test_what_kernels_tell_of_their_host_is_covered_also_where_the_host_has_none_of_it",
)
_OF_MACHINES = ("test_machines", "test_hostile_machines", "test_hostile_wire")
# What is about the host's own programs, or about more machines than can be emulated at once.
_NOT_ON_MACHINES = (
    "test_a_hundred_sandboxes_live_at_once",
    "test_nothing_of_the_hosts_people_is_there",
    "test_root_installs_a_package_over_the_hosts_programs",
    "test_the_hosts_programs_work",
)
# What of the contract is run on a slower wall each time; all of it is under `make soak`.
_SHORT = ("copy", "dial", "endings", "mounts", "output", "profiles", "root", "watch")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    absent = []
    for item in items:
        item.add_marker(pytest.mark.contract)
        if TRANSPORTS == ["server"] and _is_of_the_host(item):
            absent.append(item)
            continue
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        if item.path.stem in _OF_MACHINES and not has_microvm():
            absent.append(item)
            continue
        if item.path.stem == "test_machines_of_users" and (why_not() or os.geteuid() == 0):
            absent.append(item)
            continue
        if item.path.stem == "test_ungrouped" and find_layout().directories():
            absent.append(item)
            continue
        module = item.path.stem.removeprefix("test_")
        if parameters.get("transport") == "stream" and os.geteuid() != 0:
            # How messages travel is no matter of who the user is: root asks it each time.
            item.add_marker(pytest.mark.soak)
            continue
        if parameters.get("transport") == "wasm":
            # Once is enough: it is the first wall, with files that no program touches.
            if module not in _OF_FILES or os.geteuid() != 0 or why_absent() is not None:
                absent.append(item)
            continue
        if parameters.get("transport") == "microvm":
            name = item.name.partition("[")[0]
            is_asked = TRANSPORTS == ["microvm"] or name in _SHORT_ON_MACHINES
            if not is_asked or name in _NOT_ON_MACHINES or not has_microvm():
                absent.append(item)
            continue
        if parameters.get("transport") != "gvisor" and module != "walls":
            continue
        if not has_gvisor():
            absent.append(item)
        elif module not in (*_SHORT, "walls"):
            item.add_marker(pytest.mark.soak)
    if absent:
        config.hook.pytest_deselected(items=absent)
        items[:] = [item for item in items if item not in absent]


def _is_of_the_host(item: pytest.Item) -> bool:
    module = item.path.stem.removeprefix("test_")
    return module in MODULES_OF_THE_HOST or item.name.partition("[")[0] in OF_THE_HOST


@cache
def has_gvisor() -> bool:
    """Whether this host can build that wall at all, which `cloister doctor` says to a person."""
    return bool(candidates()) and (os.geteuid() == 0 or find_sub_ids() is not None)


@cache
def has_microvm() -> bool:
    """Whether this host can start machines."""
    return has_machines()


@pytest.fixture
async def unified_group(host: str, nothing_stays: None) -> None:
    """Asked for by tests of what only the unified hierarchy can do; root always has it."""
    if host == "root":
        return
    async with Sandbox() as sandbox:
        groups = sandbox._running().groups
        if not any((group / "cgroup.freeze").exists() for group in groups):
            pytest.skip(NO_UNIFIED)


USUAL = ["fds", "stream", "gvisor", "wasm", "microvm"]
# With CLOISTER_CONTRACT=server the same is asked of sandboxes on a server, behind another wall with
# SERVER_WALL=gvisor; with CLOISTER_CONTRACT=microvm all of it is asked of machines.
_ASKED = os.environ.get("CLOISTER_CONTRACT")
TRANSPORTS = [_ASKED] if _ASKED in ("server", "microvm") else USUAL
SERVER_WALL = os.environ.get("SERVER_WALL", "namespace")
WALLS = ("gvisor", "wasm", "microvm")


@pytest.fixture(scope="session", autouse=True)
def served() -> Iterator[None]:
    """A server of its own, on a unix socket, where the sandboxes are to be on one."""
    if TRANSPORTS != ["server"]:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="clo-", ignore_cleanup_errors=True) as directory:
        settings = Path(directory, "server.toml")
        settings.write_text(
            # A hundred at once are started a few at a time, which takes a busy host its time.
            'log = "warning"\nqueue_s = "120s"\n'
            '[quota]\nsandboxes = 500\nmemory = "4TiB"\ncpus = 500'
        )
        command = [sys.executable, "-m", "cloister", "serve"]
        command += ["--config", str(settings), "--socket", f"{directory}/s"]
        environment = {**os.environ}
        if SERVER_WALL != "namespace":
            environment["CLOISTER_RUNTIMES"] = f"internal={SERVER_WALL}"
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        assert server.stdout is not None and server.stdout.readline()
        os.environ["CLOISTER_URL"] = f"unix:{directory}/s"
        try:
            yield
        finally:
            del os.environ["CLOISTER_URL"]
            server.terminate()
            assert server.wait(60) == 0
            server.stdout.close()


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether descriptors travel, or everything goes over one stream; the last ones are walls."""
    if request.param == "microvm":
        monkeypatch.setenv("CLOISTER_MICROVM", str(PLACE))
    wall = _wall_of(request.param)
    if wall in WALLS:
        skip_if_different(request.node, wall)
    return str(request.param)


@pytest.fixture
def wall(transport: str) -> str:
    """The wall that stands around the sandboxes of this test, wherever they are."""
    return _wall_of(transport)


def _wall_of(transport: str) -> str:
    if transport == "server":
        return SERVER_WALL
    return transport if transport in WALLS else "namespace"


@pytest.fixture
def make(transport: str) -> Make:
    """Makes sandboxes that are not started yet; takes what `Sandbox` takes."""

    def make_one(*args: Any, **settings: Any) -> Sandbox:
        if transport in WALLS:
            settings.setdefault("runtime", transport)
        if transport == "microvm":
            # The host's own programs would be a disk as large as they are.
            settings.setdefault("root", DirectoryRoot(str(machine_root())))
        sandbox = Sandbox(*args, **settings)
        if transport == "stream":
            sandbox._amend = lambda plan: dataclasses.replace(plan, stream_transport=True)
        return sandbox

    return make_one


@pytest.fixture(autouse=True)
async def nothing_stays() -> AsyncIterator[None]:
    """Whatever a test did: afterwards the host is as it was."""
    yield
    await Node.current().close()
    ours = f"{os.getpid()}-*"
    left = [record.id for record in list_records() if record.owner_pid == os.getpid()]
    left += [str(path) for path in runtime_directory().glob(ours)]
    left += [str(path) for base in find_layout().directories() for path in base.glob(ours)]
    assert not left, left


@pytest.fixture
async def sandbox(make: Make, nothing_stays: None) -> AsyncIterator[Sandbox]:
    """A running sandbox with nothing asked for."""
    async with make() as one:
        yield one


class Gate:
    """A pipe inside through which a program says that it has got so far; no clock is involved."""

    def __init__(self, sandbox: Sandbox, path: str) -> None:
        self._sandbox = sandbox
        self.path = path

    async def wait_passed(self) -> str:
        """Return what the program said, once it has."""
        return (await self._sandbox.run(["cat", self.path], timeout=60)).check().stdout


@pytest.fixture
def gate() -> Callable[[Sandbox], Any]:
    """Makes a gate in a running sandbox; a program passes it by writing to `gate.path`."""

    async def make_gate(sandbox: Sandbox, path: str = "/workspace/gate") -> Gate:
        (await sandbox.run(["mkfifo", "-m", "666", path])).check()
        return Gate(sandbox, path)

    return make_gate


@pytest.fixture
def wait_released() -> Callable[[Sandbox, str], Any]:
    """Waits until no process holds the lock on a file any more: all that did have ended."""

    async def wait(sandbox: Sandbox, path: str) -> None:
        (await sandbox.run(["flock", path, "true"], timeout=60)).check()

    return wait
