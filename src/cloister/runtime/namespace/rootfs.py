"""What a sandbox sees as its root when no image is named: the host's programs, nothing else."""

from __future__ import annotations

import os
import stat
from functools import cache
from pathlib import Path

from cloister.errors import NotFound, RequestError
from cloister.model import User
from cloister.policy import DirectoryRoot, HostRoot, Root
from cloister.runtime.doors import NAME_SERVER
from cloister.runtime.ground import Ground
from cloister.runtime.plan import Directory, Layer

USER_NAME = "user"
HOME = "/home/user"
WORKSPACE = "/workspace"

# Names below /etc that tell how programs work and nothing about the host. Of these, only what
# everybody on the host may read is copied.
PUBLIC_ETC = (
    "R/Makeconf",
    "R/Renviron",
    "R/ldpaths",
    "R/repositories",
    "alternatives",
    "bash.bashrc",
    "bash_completion.d",
    "ca-certificates.conf",
    "chromium.d",
    "debian_version",
    "dpkg",
    "emacs",
    "environment.d",
    "fonts",
    "gitconfig.d",
    "gss",
    "host.conf",
    "inputrc",
    "issue",
    "java-8-openjdk",
    "java-11-openjdk",
    "java-17-openjdk",
    "java-21-openjdk",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "magic",
    "magic.mime",
    "mailcap",
    "maven",
    "mime.types",
    "mtab",
    "nanorc",
    "netconfig",
    "networks",
    "os-release",
    "perl",
    "pki/ca-trust",
    "pki/tls",
    "profile",
    "profile.d",
    "protocols",
    "python",
    "python3",
    "python3.11",
    "python3.12",
    "python3.13",
    "rpc",
    "services",
    "skel",
    "ssl/cert.pem",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
    "timezone",
    "tmux.conf",
    "vim",
    "wgetrc",
    "xattr.conf",
    "xdg",
)

# Whatever these say is about the host. A path that is not there is passed over.
_MASKS = tuple(
    f"proc/{name}"
    for name in (
        "acpi",
        "asound",
        "bus",
        "cmdline",
        "driver",
        "dynamic_debug",
        "fs",
        "interrupts",
        "irq",
        "kallsyms",
        "kcore",
        "keys",
        "kmsg",
        "latency_stats",
        "pressure",
        "sched_debug",
        "scsi",
        "sysrq-trigger",
        "timer_list",
        "timer_stats",
    )
)

# Top-level directories of programs. Where a host has merged them into /usr they are links.
_PROGRAM_DIRECTORIES = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")


def every_mask() -> tuple[str, ...]:
    """Return all of that, for a kernel of which nothing is known here."""
    return _MASKS


@cache
def masks() -> tuple[str, ...]:
    """Return what of that this kernel has and anybody but the host's root could open.

    No id in a sandbox is the host's root, so what only root may open needs no cover; each cover
    is a mount that is made and unmade with every sandbox.
    """
    found = []
    for name in _MASKS:
        try:
            status = os.stat(f"/{name}")
        except OSError:
            continue
        if stat.S_ISDIR(status.st_mode) or status.st_mode & 0o077:
            found.append(name)
    return tuple(found)


def synthetic_files() -> tuple[tuple[str, int, bytes], ...]:
    """Return (path below /etc, mode, content) of what a sandbox says about itself."""
    texts = {
        "passwd": (
            "root:x:0:0:root:/root:/bin/sh\n"
            f"{USER_NAME}:x:1000:1000:{USER_NAME}:{HOME}:/bin/bash\n"
            "_apt:x:42:65534::/nonexistent:/usr/sbin/nologin\n"
            "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
        ),
        "group": (
            "root:x:0:\ndaemon:x:1:\nbin:x:2:\nsys:x:3:\nadm:x:4:\ntty:x:5:\nmail:x:8:\n"
            "utmp:x:43:\nshadow:x:42:\nstaff:x:50:\nusers:x:100:\n"
            f"{USER_NAME}:x:1000:\nnogroup:x:65534:\n"
        ),
        "hosts": "127.0.0.1 localhost\n::1 localhost\n127.0.0.1 sandbox\n",
        "hostname": "sandbox\n",
        "nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\n",
        # Without a way out there is no route to it, and the answer is no at once.
        "resolv.conf": f"nameserver {NAME_SERVER}\n",
        "shells": "/bin/sh\n/bin/bash\n",
        "fstab": "",
        # Programs that keep accounts ask it first: the sandbox's root may, and nobody else.
        "pam.d/other": (
            "auth sufficient pam_rootok.so\nauth required pam_deny.so\n"
            "account sufficient pam_rootok.so\naccount required pam_deny.so\n"
            "password required pam_unix.so\nsession required pam_permit.so\n"
        ),
    }
    files = [(name, 0o644, text.encode()) for name, text in texts.items()]
    files.append(("shadow", 0o640, b"root:*:19000:0:99999:7:::\nuser:*:19000:0:99999:7:::\n"))
    return tuple(files)


@cache
def host_programs() -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Return (directories to layer, links to make) that give the host's programs."""
    directories = ["usr"]
    links = []
    for name in _PROGRAM_DIRECTORIES:
        path = Path("/") / name
        if path.is_symlink():
            links.append((os.readlink(path), name))
        elif path.is_dir():
            directories.append(name)
    return tuple(directories), tuple(links)


def layers_of(
    root: Root, ground: Ground, template: Path, *, idmap: bool, writable: bool
) -> tuple[Layer, ...]:
    """Return the host directories of the root; `writable` if anybody inside may change them.

    `template` is where the launcher keeps what all sandboxes share.
    """
    if isinstance(root, DirectoryRoot):
        path = _existing_directory(str(root.path), "root")
        return (Layer((path,), "", idmap, True),)
    if not isinstance(root, HostRoot):
        return (Layer(ground.image, "", idmap, True),)
    directories, _ = host_programs()
    layers = [Layer((f"/{name}",), name, idmap, writable) for name in directories]
    layers.append(Layer((str(template / "etc"),), "etc", True, writable))
    for extra in root.extra:
        source = _existing_directory(extra, "root.extra")
        layers.append(Layer((source,), extra.strip("/"), idmap, writable))
    if ground.disk is not None:
        # What is written anywhere is then in an overlay, where it can be told from the rest.
        layers.append(Layer((str(template / "empty"),), "", True, True))
    return tuple(layers)


def _existing_directory(path: str, field: str) -> str:
    real = os.path.realpath(path)
    if not os.path.exists(real):
        raise NotFound(f"{field} {path} does not exist", what=path)
    if not os.path.isdir(real):
        raise RequestError(f"{field} {path} is not a directory")
    return real


def links_of(root: Root) -> tuple[tuple[str, str], ...]:
    """Return the links of the root, (target, name)."""
    return host_programs()[1] if isinstance(root, HostRoot) else ()


def directories_of(root: Root, user: User, init: User) -> tuple[Directory, ...]:
    """Return the directories every sandbox has, with their owners."""
    ours = [("home", 0o755), ("root", 0o700), ("var", 0o755), ("run", 0o755), ("opt", 0o755)]
    ours += [("proc", 0o555), ("dev", 0o755), ("sys", 0o555)]
    ours += [("tmp", 0o1777), ("var/tmp", 0o1777)]
    found = [Directory(name, init.uid, init.gid, mode) for name, mode in ours]
    found += [Directory(path.strip("/"), user.uid, user.gid, 0o755) for path in (HOME, WORKSPACE)]
    if isinstance(root, HostRoot):
        layered, _ = host_programs()
        names = [*layered, "etc", *(extra.strip("/") for extra in root.extra)]
        for name in names:
            parts = name.split("/")
            for end in range(1, len(parts) + 1):
                found.append(Directory("/".join(parts[:end]), init.uid, init.gid, 0o755))
    first: dict[str, Directory] = {}
    for directory in found:
        # What is shown from below /tmp does not make it another /tmp.
        first.setdefault(directory.path, directory)
    return tuple(first.values())
