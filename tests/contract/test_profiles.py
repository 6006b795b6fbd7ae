"""What the profiles give: nothing, the sandbox's own root, or tracing."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloister import FileError, Sandbox

# Attaches to a child, reads a word of its memory, and says what the kernel answered.
TRACE = """
import ctypes, os, signal, time
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.restype = ctypes.c_long
libc.ptrace.argtypes = [ctypes.c_long] * 2 + [ctypes.c_void_p] * 2
word = ctypes.create_string_buffer(b"tracing!")
child = os.fork()
if child == 0:
    while True: time.sleep(1000)
if libc.ptrace(16, child, None, None) == -1:
    print("refused", os.strerror(ctypes.get_errno()))
else:
    os.waitpid(child, 0)
    peeked = libc.ptrace(1, child, ctypes.addressof(word), None)
    print("read", peeked.to_bytes(8, "little").decode())
os.kill(child, 9)
"""

# Has the owner of a descriptor sent a signal, once it can be read from: itself, and the guest.
BY_DESCRIPTOR = """
import fcntl, os, signal, socket
F_SETSIG, heard = 10, []
def arrive(number, owner):
    ours, theirs = socket.socketpair()
    fcntl.fcntl(ours, F_SETSIG, number)
    fcntl.fcntl(ours, fcntl.F_SETOWN, owner)
    fcntl.fcntl(ours, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC)
    theirs.send(b"x")
signal.signal(signal.SIGUSR1, lambda *_: heard.append("own"))
arrive(signal.SIGUSR1, os.getpid())
for number in (signal.SIGKILL, signal.SIGSTOP):
    for owner in (1, -1):
        try:
            arrive(number, owner)
        except OSError:
            pass
print(*set(heard))
"""


async def test_the_default_has_no_capabilities_and_can_gain_none(sandbox: Sandbox) -> None:
    result = await sandbox.run("grep -E '^(Cap|NoNewPrivs)' /proc/self/status")
    values = dict(line.split(":\t") for line in result.stdout.splitlines())
    assert values.pop("NoNewPrivs") == "1"
    assert set(values.values()) == {"0" * 16}


async def test_root_is_root_of_its_own_sandbox(make) -> None:
    async with make(profile="root") as sandbox:
        result = await sandbox.run("id -u; id -g; echo $HOME; echo x > /root/f && cat /root/f")
        assert result.stdout.split() == ["0", "0", "/root", "x"]


async def test_root_may_change_etc_and_the_user_may_not(make, sandbox: Sandbox) -> None:
    change = "echo 'x:x:7:7::/:/bin/sh' >> /etc/passwd && tail -1 /etc/passwd"
    async with make(profile="root") as root:
        assert (await root.run(change)).stdout == "x:x:7:7::/:/bin/sh\n"
        await root.files.write("/etc/new.conf", "x")
    assert not (await sandbox.run(change)).ok
    with pytest.raises(FileError):
        await sandbox.files.write("/etc/new.conf", "x")
    assert "x:x:7:7" not in Path("/etc/passwd").read_text()
    assert not Path("/etc/new.conf").exists()


async def test_root_ends_nothing_but_its_own_by_the_signal_of_a_descriptor(make) -> None:
    async with make(profile="root") as sandbox:
        assert (await sandbox.run(["python3", "-c", BY_DESCRIPTOR])).stdout == "own\n"
        assert (await sandbox.run(["true"], timeout=60)).ok


async def test_root_may_give_files_away(make, several_ids: None) -> None:
    async with make(profile="root") as sandbox:
        result = await sandbox.run("touch f; chown 33:34 f; stat -c '%u %g' f")
        assert result.stdout == "33 34\n", result.stderr


async def test_the_user_may_not_give_files_away(sandbox: Sandbox) -> None:
    refused = await sandbox.run("touch f; chown 33 f")
    assert not refused.ok
    assert (await sandbox.files.stat("/workspace/f")).uid == 1000


async def test_root_may_become_another_user(make, several_ids: None) -> None:
    async with make(profile="root") as sandbox:
        result = await sandbox.run(
            ["setpriv", "--reuid=33", "--regid=33", "--clear-groups", "id", "-u"]
        )
        assert result.stdout == "33\n", result.stderr


async def test_root_installs_a_package_over_the_hosts_programs(make, owned_programs: None) -> None:
    build = """
set -e
mkdir -p pkg/DEBIAN pkg/usr/bin pkg/etc
printf '%s\\n' 'Package: contract' 'Version: 1' 'Architecture: all' > pkg/DEBIAN/control
printf '%s\\n' 'Maintainer: x <x@y>' 'Description: x' >> pkg/DEBIAN/control
printf '#!/bin/sh\\necho installed\\n' > pkg/usr/bin/contract-tool
chmod 755 pkg/usr/bin/contract-tool
echo x > pkg/etc/contract.conf
dpkg-deb --root-owner-group --build pkg contract.deb >/dev/null
mkdir -p /var/lib/dpkg/info /var/lib/dpkg/updates
touch /var/lib/dpkg/status /var/lib/dpkg/available
dpkg --force-depends --install contract.deb >&2
contract-tool
stat -c %u /usr/bin/contract-tool
"""
    async with make(profile="root") as sandbox:
        result = await sandbox.run(build)
        assert result.stdout.split() == ["installed", "0"], result.stderr
    assert not Path("/usr/bin/contract-tool").exists()


async def test_root_replaces_a_program_for_itself_alone(make, owned_programs: None) -> None:
    before = Path("/usr/bin/env").read_bytes()
    async with make(profile="root") as one, make(profile="root") as two:
        (await one.run("cp /bin/true /usr/bin/env.new && mv /usr/bin/env.new /usr/bin/env")).check()
        assert (await one.run(["/usr/bin/env", "echo", "hello"])).stdout == ""
        assert (await two.run(["/usr/bin/env", "echo", "hello"])).stdout == "hello\n"
    assert Path("/usr/bin/env").read_bytes() == before


async def test_tracing_works_only_in_the_debug_profile(make, sandbox: Sandbox) -> None:
    async with make(profile="debug") as debug:
        assert (await debug.run(["python3", "-c", TRACE])).stdout == "read tracing!\n"
        assert (await debug.run("id -u")).stdout == "1000\n"
    refused = await sandbox.run(["python3", "-c", TRACE])
    assert refused.stdout == "refused Operation not permitted\n"
