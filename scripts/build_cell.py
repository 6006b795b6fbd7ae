"""Build the static `cell` binary with cargo and put it where it is asked for."""

from __future__ import annotations

import argparse
import filecmp
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ELF_PT_INTERP = 3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path, default=ROOT / "src/cloister/bin/cell")
    parser.add_argument("--quiet", action="store_true", help="let cargo print only errors")
    arguments = parser.parse_args()
    try:
        build(arguments.to, quiet=arguments.quiet)
    except (BuildError, subprocess.CalledProcessError) as error:
        print(f"build_cell: {error}", file=sys.stderr)
        return 1
    return 0


class BuildError(Exception):
    """The binary could not be built, or what was built must not be shipped."""


def build(destination: Path, *, quiet: bool) -> None:
    """Build the binary and copy it to `destination`, which is left alone when it is the same."""
    crate = ROOT / "cell"
    if not (crate / "Cargo.toml").is_file():
        raise BuildError(f"{crate}/Cargo.toml is missing; build from a complete checkout or sdist")
    target = crate / "target"
    # RUSTFLAGS from outside would replace the crate's own flags, +crt-static among them.
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "CARGO_BUILD_TARGET")
    }
    command = [find_cargo(), "build", "--release", "--locked", "--target-dir", str(target)]
    subprocess.run(command + ["--quiet"] * quiet, cwd=crate, env=environment, check=True)
    binary = target / "release" / "cell"
    if not is_static(binary):
        raise BuildError(f"{binary} asks for a dynamic loader; see cell/.cargo/config.toml")
    if destination.exists() and filecmp.cmp(binary, destination, shallow=False):
        return
    destination.parent.mkdir(parents=True, exist_ok=True)
    # Renamed into place: the old file may be running, and writing to it would fail.
    fresh = destination.with_name(f".{destination.name}.{os.getpid()}")
    shutil.copyfile(binary, fresh)
    fresh.chmod(0o755)
    fresh.replace(destination)


def find_cargo() -> str:
    found = shutil.which("cargo") or shutil.which("cargo", path=str(Path.home() / ".cargo/bin"))
    if found is None:
        raise BuildError(
            "cargo is not installed; install it with `apt-get install cargo` (1.63 or newer) "
            "or with rustup, then run this again"
        )
    return found


def is_static(binary: Path) -> bool:
    """Whether the ELF file runs without a loader: an image may not have one."""
    data = binary.read_bytes()
    if data[:5] != b"\x7fELF\x02":
        raise BuildError(f"{binary} is not a 64-bit ELF file")
    (table_offset,) = struct.unpack_from("<Q", data, 32)
    entry_size, entry_count = struct.unpack_from("<HH", data, 54)
    kinds = (
        struct.unpack_from("<I", data, table_offset + index * entry_size)[0]
        for index in range(entry_count)
    )
    return ELF_PT_INTERP not in kinds


if __name__ == "__main__":
    sys.exit(main())
