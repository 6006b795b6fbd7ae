//! The calls decided by an argument. Arguments are compared by their low 32 bits: the kernel
//! itself looks at no more of these, and comparing all 64 would let junk in the high half pass.

use super::compile::Block;
use super::table::Rule;
use libc::{EINVAL, ENOTTY, EPERM, EPROTONOSUPPORT};

/// Every CLONE_NEW* flag that clone(2) takes.
const NAMESPACE_FLAGS: u32 = 0x7E02_0000;

/// Options of prctl that programs use on themselves. Anything else answers EINVAL, as an old
/// kernel would.
const PRCTL_OPTIONS: &[(u32, &str)] = &[
    (1, "PR_SET_PDEATHSIG"),
    (2, "PR_GET_PDEATHSIG"),
    (3, "PR_GET_DUMPABLE"),
    (4, "PR_SET_DUMPABLE"),
    (7, "PR_GET_KEEPCAPS"),
    (8, "PR_SET_KEEPCAPS"),
    (15, "PR_SET_NAME"),
    (16, "PR_GET_NAME"),
    (21, "PR_GET_SECCOMP"),
    (22, "PR_SET_SECCOMP: only further restriction"),
    (23, "PR_CAPBSET_READ"),
    (24, "PR_CAPBSET_DROP: only further restriction"),
    (25, "PR_GET_TSC"),
    (27, "PR_GET_SECUREBITS"),
    (29, "PR_SET_TIMERSLACK"),
    (30, "PR_GET_TIMERSLACK"),
    (36, "PR_SET_CHILD_SUBREAPER"),
    (37, "PR_GET_CHILD_SUBREAPER"),
    (38, "PR_SET_NO_NEW_PRIVS"),
    (39, "PR_GET_NO_NEW_PRIVS"),
    (40, "PR_GET_TID_ADDRESS"),
    (41, "PR_SET_THP_DISABLE"),
    (42, "PR_GET_THP_DISABLE"),
    (47, "PR_CAP_AMBIENT: nothing to raise"),
    (52, "PR_GET_SPECULATION_CTRL"),
    (53, "PR_SET_SPECULATION_CTRL"),
    (65, "PR_SET_MDWE"),
    (66, "PR_GET_MDWE"),
    (0x4155_5856, "PR_GET_AUXV"),
    (0x5356_4d41, "PR_SET_VMA: names of memory areas"),
    (0x5961_6d61, "PR_SET_PTRACER"),
];

/// Layout flags: none, ADDR_NO_RANDOMIZE's absence, the 32-bit personality, both, and a query.
const PERSONALITIES: &[u32] = &[0, 0x0000_0008, 0x0002_0000, 0x0002_0008, 0xFFFF_FFFF];

const TIOCSTI: u32 = 0x5412;
const TIOCLINUX: u32 = 0x541C;
/// The calls of btrfs. With them whoever may write to a volume makes subvolumes outside of its quota
/// or inside of a neighbour's, and has the whole filesystem written out.
const BTRFS: u32 = 0x94 << 8;
const IOCTL_KIND: u32 = 0xFF << 8;
/// Those of the same kind that every filesystem has: FICLONE, FICLONERANGE, FIDEDUPERANGE.
const CLONING: &[u32] = &[0x4004_9409, 0x4020_940D, 0xC018_9436];
/// Names the signal that a descriptor's owner is sent, and anybody's number may be made the owner.
const F_SETSIG: u32 = 10;
/// The guest blocks every signal but those that nobody can block.
const UNBLOCKED: &[u32] = &[libc::SIGKILL as u32, libc::SIGSTOP as u32];
const SET_ID_BITS: u32 = 0o6000;
const IOPRIO_WHO_USER: u32 = 3;

/// What may differ from one sandbox to another.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Options {
    pub allow_ptrace: bool,
    pub deny_set_id_bits: bool,
    /// The host hands core dumps to a program, which only a limit of exactly 1 byte prevents: then
    /// nobody may change that limit, not even to 0.
    pub keep_core_limit: bool,
    /// The kernel lets everybody with the right to it end the first process.
    pub shield_first: bool,
}

/// Write the decision for one call. Every path of a block ends in a verdict.
pub fn write(block: &mut Block, rule: Rule, name: &str, options: Options) {
    match rule {
        Rule::Clone => {
            block.argument(0);
            block.if_any_bit(NAMESPACE_FLAGS, |b| b.errno(EPERM));
            block.allow();
        }
        Rule::Socket => socket(block),
        Rule::SocketPair => {
            block.argument(0);
            block.if_equal(libc::AF_UNIX as u32, Block::allow);
            block.errno(EPERM);
        }
        Rule::Ioctl => {
            block.argument(1);
            block.if_equal(TIOCSTI, |b| b.errno(EPERM));
            block.if_equal(TIOCLINUX, |b| b.errno(EPERM));
            for clone in CLONING {
                block.if_equal(*clone, Block::allow);
            }
            block.mask(IOCTL_KIND);
            // As every other filesystem answers.
            block.if_equal(BTRFS, |b| b.errno(ENOTTY));
            block.allow();
        }
        Rule::Fcntl => {
            if options.shield_first {
                block.argument(1);
                block.if_equal(F_SETSIG, |b| {
                    b.argument(2);
                    for signal in UNBLOCKED {
                        // As for a number that is no signal.
                        b.if_equal(*signal, |b| b.errno(EINVAL));
                    }
                    b.allow();
                });
            }
            block.allow();
        }
        Rule::Personality => {
            block.argument(0);
            for value in PERSONALITIES {
                block.if_equal(*value, Block::allow);
            }
            block.errno(EPERM);
        }
        Rule::Prctl => {
            block.argument(0);
            for (option, _) in PRCTL_OPTIONS {
                block.if_equal(*option, Block::allow);
            }
            block.errno(EINVAL);
        }
        Rule::Mknod => {
            block.argument(if name == "mknodat" { 2 } else { 1 });
            if options.deny_set_id_bits {
                block.if_any_bit(SET_ID_BITS, |b| b.errno(EPERM));
            }
            block.mask(libc::S_IFMT);
            for kind in [0, libc::S_IFREG, libc::S_IFIFO, libc::S_IFSOCK] {
                block.if_equal(kind, Block::allow);
            }
            // The number 0:0 is no device: it is the mark of overlays for a removed name, which the
            // kernel lets everybody make since 5.8.
            block.if_equal(libc::S_IFCHR, |b| {
                b.argument(if name == "mknodat" { 3 } else { 2 });
                b.if_equal(0, Block::allow);
                b.errno(EPERM);
            });
            block.errno(EPERM);
        }
        Rule::Mode => {
            if options.deny_set_id_bits {
                block.argument(if name.starts_with("fchmodat") { 2 } else { 1 });
                block.if_any_bit(SET_ID_BITS, |b| b.errno(EPERM));
            }
            block.allow();
        }
        Rule::Debug => {
            if options.allow_ptrace {
                block.allow();
            } else {
                block.errno(EPERM);
            }
        }
        Rule::Others => {
            if options.keep_core_limit && name == "prlimit64" {
                keep_core_limit(block, 1);
            }
            others(block, name);
        }
        Rule::Core => {
            if options.keep_core_limit {
                keep_core_limit(block, 0);
            }
            block.allow();
        }
        Rule::Signal => {
            if options.shield_first {
                block.argument(0);
                block.if_equal(1, |b| b.errno(EPERM));
            }
            block.allow();
        }
    }
}

/// Creating a file can set the bits too; these calls are plain `allow` in the table.
pub const CREATE_MODE: &[(&str, u32)] =
    &[("open", 2), ("openat", 3), ("creat", 1), ("mkdir", 1), ("mkdirat", 2)];

pub fn write_create(block: &mut Block, argument: u32) {
    block.argument(argument);
    block.if_any_bit(SET_ID_BITS, |b| b.errno(EPERM));
    block.allow();
}

fn socket(block: &mut Block) {
    const TYPE_MASK: u32 = 0xF;
    block.argument(0);
    block.if_equal(libc::AF_UNIX as u32, |b| {
        b.argument(1);
        b.mask(TYPE_MASK);
        for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM, libc::SOCK_SEQPACKET] {
            b.if_equal(kind as u32, Block::allow);
        }
        b.errno(EPERM);
    });
    for family in [libc::AF_INET, libc::AF_INET6] {
        block.if_equal(family as u32, |b| {
            b.argument(1);
            b.mask(TYPE_MASK);
            // Named, not excluded: besides raw ones the kernel still takes the obsolete type 10 of
            // these families for a packet socket.
            for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM] {
                b.if_equal(kind as u32, |b| {
                    b.argument(2);
                    for protocol in [0, libc::IPPROTO_TCP, libc::IPPROTO_UDP] {
                        b.if_equal(protocol as u32, Block::allow);
                    }
                    b.errno(EPROTONOSUPPORT);
                });
            }
            b.errno(EPERM);
        });
    }
    block.if_equal(libc::AF_NETLINK as u32, |b| {
        b.argument(2);
        b.if_equal(libc::NETLINK_ROUTE as u32, Block::allow);
        // What a kernel without the protocol says. Programs that keep accounts (useradd, passwd)
        // do without an audit that is not there, and end at one that is refused.
        b.errno(EPROTONOSUPPORT);
    });
    block.errno(EPERM);
}

/// Answer that the limit of core dumps was set, and leave it. Asking for it (without a new value)
/// works as ever. Programs that protect themselves lower it and take a refusal for an attack.
fn keep_core_limit(block: &mut Block, resource: u32) {
    let new_value = resource + 1;
    block.argument(resource);
    block.if_equal(libc::RLIMIT_CORE, |b| {
        b.argument(new_value);
        b.if_equal(0, |b| {
            b.argument_high(new_value);
            b.if_equal(0, Block::allow);
        });
        b.errno(0);
    });
}

/// Changing another process takes no capability where the users are the same, and the sandbox's
/// root is the guest's user: it could take the guest's descriptors, or all its processor time.
fn others(block: &mut Block, name: &str) {
    const GUEST: u32 = 1;
    let by_kind: Option<u32> = match name {
        "setpriority" => Some(libc::PRIO_USER),
        "ioprio_set" => Some(IOPRIO_WHO_USER),
        _ => None,
    };
    block.argument(0);
    if let Some(whole_user) = by_kind {
        block.if_equal(whole_user, |b| b.errno(EPERM));
        // The guest leads its own process group, so its number stands for both.
        block.argument(1);
    }
    block.if_equal(GUEST, |b| b.errno(EPERM));
    block.allow();
}
