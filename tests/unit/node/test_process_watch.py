"""Which processes are a sandbox's, from the kernel's events, in whatever order they are noticed."""

from __future__ import annotations

from cloister.node.process_watch import Seen, Watch, _Processes

GUEST, HELPER, SHELL, CHILD, STRANGER = 100, 101, 102, 103, 900


class Heard:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []

    def executed(self, process: Seen) -> None:
        self.told.append(("executed", process.pid, process.argv, process.of_guest))

    def exited(self, process: Seen, status: int | None) -> None:
        self.told.append(("exited", process.pid, status, process.has_executed))

    def missed(self, count: int) -> None:
        self.told.append(("missed", count))


def watched(pids: set[int]) -> tuple[_Processes, Watch, Heard]:
    """A guest under watch, without a kernel."""
    processes, heard = _Processes(), Heard()
    watch = Watch(Seen(GUEST, None, heard), lambda: pids)
    processes._known[GUEST], processes._watches[GUEST] = watch.root, watch
    return processes, watch, heard


def test_children_of_what_is_inside_are_inside_and_others_are_not() -> None:
    processes, _, heard = watched(set())
    processes.forked(GUEST, SHELL)
    processes.executed(SHELL, (b"sh",), 2)
    processes.forked(SHELL, CHILD)
    processes.executed(CHILD, (b"ls",), 3)
    processes.forked(STRANGER, STRANGER + 1)
    processes.executed(STRANGER + 1, (b"secret",), None)
    processes.exited(STRANGER + 1, 0)
    processes.exited(CHILD, 256)
    assert heard.told == [
        ("executed", SHELL, (b"sh",), True),
        ("executed", CHILD, (b"ls",), False),
        ("exited", CHILD, 256, True),
    ]


def test_what_a_helper_of_the_guest_executes_is_the_guests() -> None:
    processes, _, heard = watched(set())
    processes.forked(GUEST, HELPER)
    processes.forked(HELPER, SHELL)
    processes.executed(SHELL, None, None)
    assert heard.told == [("executed", SHELL, None, True)]


def test_one_that_executes_nothing_is_called_what_its_parent_is() -> None:
    processes, _, heard = watched(set())
    processes.forked(GUEST, SHELL)
    processes.executed(SHELL, (b"sh",), 2)
    processes.forked(SHELL, CHILD)
    assert processes._known[CHILD].argv == (b"sh",)
    processes.exited(CHILD, 0)
    assert heard.told[-1] == ("exited", CHILD, 0, False)


def test_a_number_that_is_used_again_is_another_process() -> None:
    processes, _, heard = watched(set())
    processes.forked(GUEST, SHELL)
    processes.exited(SHELL, 0)
    processes.executed(SHELL, (b"stranger",), None)
    assert [each[0] for each in heard.told] == ["exited"]


def test_after_a_loss_everyone_is_told_and_it_is_looked_who_is_there() -> None:
    processes, _, heard = watched({GUEST, CHILD})
    processes.forked(GUEST, SHELL)
    processes.executed(SHELL, (b"sh",), 2)
    processes.missed(7)
    assert heard.told[1:] == [("missed", 7), ("exited", SHELL, None, True)]
    assert set(processes._known) == {GUEST, CHILD}


def test_the_end_of_the_guest_is_noticed_and_the_rest_is_ended() -> None:
    processes, watch, heard = watched(set())
    processes.forked(GUEST, SHELL)
    processes.executed(SHELL, (b"sh",), 2)
    processes.exited(GUEST, 9)
    assert watch.ended.is_set()
    processes.forget(watch)
    assert heard.told[-1] == ("exited", SHELL, None, True)
    assert not processes._known and not processes._watches
