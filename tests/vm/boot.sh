#!/usr/bin/env bash
# Runs Cloister on a kernel of its own, with cgroup v2 alone: `boot.sh [plain|systemd] [suite ...]`.
#
# Builds a Debian image with its kernel (once; needs root, network, mmdebstrap, mke2fs), puts this
# checkout on a second disk, and boots both in QEMU without hardware help. "plain" has a script as its
# first process, "systemd" has systemd and a user session. A suite is one of those in inside.sh,
# or a file of tests.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

release=bookworm
place="${CLOISTER_VM:-/var/tmp/cloister-vm}"
deadline_s="${CLOISTER_VM_DEADLINE_S:-3600}"
packages=(
    linux-image-cloud-amd64 initramfs-tools udev kmod python3 iproute2 procps passwd uidmap
    systemd systemd-sysv dbus dbus-user-session libpam-systemd
)

main() {
    local first="${1:-plain}"
    shift || true
    case "$first" in
        plain) boot "init=/sbin/first" "${@:-smoke contract user}" ;;
        systemd) boot "systemd.mask=serial-getty@ttyS0.service" "${@:-session}" ;;
        *) fail "unknown first process '$first'; use 'plain' or 'systemd'" ;;
    esac
}

fail() {
    printf '[vm] error: %s\n' "$*" >&2
    exit 1
}

boot() {
    local first="$1" suites="${*:2}"
    require qemu-system-x86_64 mke2fs
    mkdir -p "$place"
    [ -e "$place/root.img" ] || build_root
    build_checkout "$suites"
    # No watchdog: without hardware help the kernel would take its own slowness for a hang.
    local options="root=/dev/vda rw console=ttyS0 quiet panic=-1 nowatchdog systemd.unified_cgroup_hierarchy=1"
    # What a run writes is forgotten: the next one starts from the same image.
    timeout "$deadline_s" qemu-system-x86_64 -machine q35 -cpu max -smp 2 -m 3072 -nographic -no-reboot \
        -nic none -kernel "$place/vmlinuz" -initrd "$place/initrd.img" -append "$options $first" \
        -drive "file=$place/root.img,format=raw,if=virtio,snapshot=on" \
        -drive "file=$place/checkout.img,format=raw,if=virtio,snapshot=on" \
        | tee "$place/console.log"
    grep -q '^vm: everything held' "$place/console.log" || fail "see $place/console.log"
}

require() {
    local name
    for name in "$@"; do
        command -v "$name" >/dev/null \
            || fail "$name is missing; run: apt-get install -y qemu-system-x86 mmdebstrap e2fsprogs"
    done
}

build_root() {
    require mmdebstrap
    [ "$(id -u)" = 0 ] || fail "the image is built as root; run this with sudo once"
    local tree="$place/tree" list
    list="$(IFS=,; echo "${packages[*]}")"
    rm -rf "$tree"
    mmdebstrap --quiet --variant=apt --include="$list" "$release" "$tree"
    mkdir -p "$tree/checkout"
    echo '/dev/vdb /checkout ext4 ro 0 0' >"$tree/etc/fstab"
    # The kernel starts this before the second disk is mounted.
    printf '#!/bin/sh\nmount -t ext4 -o ro /dev/vdb /checkout\nexec /checkout/tests/vm/plain.sh\n' \
        >"$tree/sbin/first"
    chmod +x "$tree/sbin/first"
    mkdir -p "$tree/etc/systemd/system/multi-user.target.wants"
    cp tests/vm/cloister-vm.service "$tree/etc/systemd/system/"
    ln -sf ../cloister-vm.service "$tree/etc/systemd/system/multi-user.target.wants/"
    cp "$tree"/boot/vmlinuz-* "$place/vmlinuz"
    cp "$tree"/boot/initrd.img-* "$place/initrd.img"
    mke2fs -q -F -t ext4 -d "$tree" "$place/root.part" 2G
    mv "$place/root.part" "$place/root.img"
    rm -rf "$tree"
}

build_checkout() {
    local tree="$place/checkout"
    rm -rf "$tree"
    mkdir -p "$tree"
    cp -r src tests pyproject.toml "$tree/"
    cp -r .venv/lib/python3*/site-packages "$tree/packages"
    rm -rf "$tree"/packages/{mypy*,ruff*,pip*,setuptools*,sandlock*,*.pth}
    echo "$1" >"$tree/suites"
    chmod -R go+rX "$tree"
    rm -f "$place/checkout.img"
    mke2fs -q -F -t ext4 -d "$tree" "$place/checkout.img" 256M
    rm -rf "$tree"
}

main "$@"
