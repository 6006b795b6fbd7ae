"""The root a machine's kernel starts from: the guest, and the modules that its devices need."""

from __future__ import annotations

import stat
from collections.abc import Iterable
from pathlib import Path

from cloister.errors import HostError
from cloister.runtime.microvm.program import MachineKernel

# In the order in which they are loaded; what a kernel has built in is passed over.
_MODULES = (
    "drivers/virtio/virtio",
    "drivers/virtio/virtio_ring",
    "drivers/virtio/virtio_mmio",
    "drivers/block/virtio_blk",
    "drivers/char/virtio_console",
    "fs/overlayfs/overlay",
)
# For the way out; a kernel that lacks one has none, and a launch with egress is refused there.
_MODULES_OF_EGRESS = (
    "lib/libcrc32c",
    "net/netfilter/nfnetlink",
    "net/netfilter/nfnetlink_log",
    "net/ipv4/netfilter/nf_defrag_ipv4",
    "net/ipv6/netfilter/nf_defrag_ipv6",
    "net/netfilter/nf_conntrack",
    "net/netfilter/nf_nat",
    "net/netfilter/nf_tables",
    "net/netfilter/nft_chain_nat",
    "net/netfilter/nft_redir",
    "net/netfilter/nft_log",
    "net/ipv4/netfilter/nf_reject_ipv4",
    "net/ipv6/netfilter/nf_reject_ipv6",
    "net/netfilter/nft_reject",
    "net/netfilter/nft_reject_inet",
)
_CONSOLE = (5, 1)


def first_root(kernel: MachineKernel, cell: Path) -> bytes:
    """Return the archive that the kernel unpacks."""
    entries = [
        _entry(1, "modules", stat.S_IFDIR | 0o755),
        _entry(2, "dev", stat.S_IFDIR | 0o755),
        _entry(3, "dev/console", stat.S_IFCHR | 0o600, device=_CONSOLE),
        _entry(4, "cell", stat.S_IFREG | 0o755, cell.read_bytes()),
    ]
    for number, path in enumerate(_modules(kernel)):
        name = f"modules/{number:02}-{path.name}"
        entries.append(_entry(10 + number, name, stat.S_IFREG | 0o644, path.read_bytes()))
    entries.append(_entry(0, "TRAILER!!!", 0))
    return b"".join(entries)


def _modules(kernel: MachineKernel) -> Iterable[Path]:
    try:
        egress = list(_found(kernel, _MODULES_OF_EGRESS))
    except HostError:
        egress = []
    return (*_found(kernel, _MODULES), *egress)


def _found(kernel: MachineKernel, names: Iterable[str]) -> Iterable[Path]:
    built_in = (kernel.modules / "modules.builtin").read_text().split()
    for name in names:
        path = kernel.modules / "kernel" / f"{name}.ko"
        if path.exists():
            yield path
        elif f"kernel/{name}.ko" not in built_in:
            raise HostError(
                f"the kernel {kernel.release} has no module {name} in a form that can be loaded; "
                "use Debian's linux-image-cloud-amd64"
            )


def _entry(
    number: int, name: str, mode: int, data: bytes = b"", device: tuple[int, int] = (0, 0)
) -> bytes:
    """One entry in the format "newc": thirteen numbers, the name, the content, each padded."""
    named = name.encode() + b"\0"
    fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(named), 0)
    head = b"070701" + "".join(f"{field:08X}" for field in fields).encode() + named
    return _padded(head) + _padded(data)


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 4)
