//! Everything the launcher is told about one sandbox, parsed into types before anything is done.

use crate::contain::step::Step;
use crate::wire::codec::{Malformed, Reader};
use crate::wire::GENERATION;

#[derive(Debug, Clone, Copy)]
pub struct IdRange {
    pub inside: u32,
    pub outside: u32,
    pub count: u32,
}

/// What to write into one of the sandbox's control groups; `group` counts the launcher's list.
#[derive(Debug)]
pub struct Limit {
    pub group: u8,
    pub file: Vec<u8>,
    pub value: Vec<u8>,
}

/// A host directory that becomes part of the root, or several of them one above the other.
#[derive(Debug)]
pub struct Layer {
    /// The uppermost first.
    pub sources: Vec<Vec<u8>>,
    /// Relative to the new root; empty means the root itself.
    pub target: Vec<u8>,
    /// Owners shown as if the files belonged to the sandbox's own users.
    pub idmap: bool,
    /// Below an overlay on the sandbox's own disk, for profiles in which somebody may write there.
    pub writable: bool,
    /// The name of the overlay's directory on the disk; safe in mount options.
    pub key: Vec<u8>,
}

/// A directory that holds the sandbox's disk in place of a tmpfs.
#[derive(Debug)]
pub struct Disk {
    pub path: Vec<u8>,
    /// Earlier disks that this one goes on from, the newest first; read only.
    pub sealed: Vec<Vec<u8>>,
    /// Owners on it are those inside; otherwise those the launcher sees.
    pub idmap: bool,
    /// What is synced inside is on the disk; otherwise nothing is, until it is unmounted.
    pub durable: bool,
}

/// Whose files those of a mount are shown as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    AsTheyAre,
    /// (owner on the host, owner inside as the host numbers it), for users and for groups.
    One([u32; 2], [u32; 2]),
    /// Owners on the host are those inside, all of them.
    Whole,
}

#[derive(Debug)]
pub struct Dir {
    pub path: Vec<u8>,
    pub uid: u32,
    pub gid: u32,
    pub mode: u32,
}

/// A host directory shown inside.
#[derive(Debug)]
pub struct Mount {
    pub source: Vec<u8>,
    pub target: Vec<u8>,
    pub write: bool,
    pub owner: Owner,
}

/// A program that is executed in the guest's place: another kernel, in which a guest then runs. What
/// was built as the sandbox's root is `/root` in a root of its own.
#[derive(Debug)]
pub struct Kernel {
    /// The first is the program.
    pub argv: Vec<Vec<u8>>,
    /// Host files it is shown, by their name in its root.
    pub shown: Vec<(Vec<u8>, Vec<u8>)>,
    /// Files made for it, by their name in its root, and what they hold; in a directory that is named
    /// it may write.
    pub made: Vec<(Vec<u8>, Vec<u8>)>,
    /// Host directories it may write to, by their name in its root.
    pub written: Vec<(Vec<u8>, Vec<u8>)>,
    /// What it may do in its own user namespace.
    pub capabilities: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drill {
    None,
    Fail(Step),
    Pause(Step),
}

#[derive(Debug)]
pub struct Plan {
    pub stream_transport: bool,
    pub hostname: Vec<u8>,
    pub uid_map: Vec<IdRange>,
    pub gid_map: Vec<IdRange>,
    pub allow_setgroups: bool,
    pub init_uid: u32,
    pub init_gid: u32,
    pub disk: Option<Disk>,
    pub kernel: Option<Kernel>,
    pub limits: Vec<Limit>,
    pub disk_bytes: u64,
    pub inodes: u64,
    pub shm_bytes: u64,
    pub layers: Vec<Layer>,
    pub links: Vec<(Vec<u8>, Vec<u8>)>,
    pub dirs: Vec<Dir>,
    pub mounts: Vec<Mount>,
    pub masks: Vec<Vec<u8>>,
    pub rlimits: Vec<(u32, u64, u64)>,
    pub open_files: u64,
    pub bounding: u64,
    pub guest_caps: u64,
    pub root_caps: u64,
    pub allow_ptrace: bool,
    pub deny_set_id_bits: bool,
    pub landlock: bool,
    /// Whether there is a way out, through the host's gateway.
    pub egress: bool,
    pub drill: Drill,
}

impl Plan {
    pub fn decode(bytes: &[u8]) -> Result<Plan, Malformed> {
        let mut r = Reader::new(bytes);
        if r.u8()? != GENERATION {
            return Err(Malformed("the plan is of another generation"));
        }
        // First what differs from one sandbox to the next, then what those of one policy share.
        let plan = Plan {
            stream_transport: r.flag()?,
            uid_map: r.list(id_range)?,
            gid_map: r.list(id_range)?,
            allow_setgroups: r.flag()?,
            init_uid: r.u32()?,
            init_gid: r.u32()?,
            mounts: r.list(mount)?,
            disk: if r.flag()? { Some(disk(&mut r)?) } else { None },
            kernel: if r.flag()? { Some(kernel(&mut r)?) } else { None },
            drill: drill(&mut r)?,
            hostname: r.bytes()?,
            limits: r.list(|r| Ok(Limit { group: r.u8()?, file: r.bytes()?, value: r.bytes()? }))?,
            disk_bytes: r.u64()?,
            inodes: r.u64()?,
            shm_bytes: r.u64()?,
            layers: r.list(|r| {
                Ok(Layer {
                    sources: r.list(Reader::bytes)?,
                    target: r.bytes()?,
                    idmap: r.flag()?,
                    writable: r.flag()?,
                    key: r.bytes()?,
                })
            })?,
            links: r.list(|r| Ok((r.bytes()?, r.bytes()?)))?,
            dirs: r.list(|r| Ok(Dir { path: r.bytes()?, uid: r.u32()?, gid: r.u32()?, mode: r.u32()? }))?,
            masks: r.list(Reader::bytes)?,
            rlimits: r.list(|r| Ok((r.u32()?, r.u64()?, r.u64()?)))?,
            open_files: r.u64()?,
            bounding: r.u64()?,
            guest_caps: r.u64()?,
            root_caps: r.u64()?,
            allow_ptrace: r.flag()?,
            deny_set_id_bits: r.flag()?,
            landlock: r.flag()?,
            egress: r.flag()?,
        };
        r.end()?;
        plan.never_host_root()?;
        plan.can_be_layered()?;
        Ok(plan)
    }

    /// A map onto host id 0 would let guest root write core_pattern and cgroup release agents.
    /// Rootless, "0" is the caller's own id one namespace up, which the launcher checks instead.
    fn never_host_root(&self) -> Result<(), Malformed> {
        let onto_zero = |ranges: &[IdRange]| ranges.iter().any(|range| range.outside == 0);
        if crate::sys::process::getuid() == 0
            && !crate::zygote::rootless::is_nested()
            && (onto_zero(&self.uid_map) || onto_zero(&self.gid_map))
        {
            return Err(Malformed("an id map reaches host id 0"));
        }
        if self.uid_map.is_empty() || self.gid_map.is_empty() {
            return Err(Malformed("an id map is empty"));
        }
        Ok(())
    }

    fn can_be_layered(&self) -> Result<(), Malformed> {
        // Everything that is written to a kept disk is in an overlay: that is how it is found again.
        if self.disk.is_some() && !self.layers.iter().any(|layer| layer.target.is_empty()) {
            return Err(Malformed("a disk needs a layer for the whole root"));
        }
        for layer in &self.layers {
            let safe = |byte: &u8| byte.is_ascii_alphanumeric() || b"%._-".contains(byte);
            if layer.sources.is_empty() || layer.key.is_empty() || !layer.key.iter().all(safe) {
                return Err(Malformed("a layer has no source, or no name that can stand in mount options"));
            }
        }
        Ok(())
    }
}

fn id_range(r: &mut Reader<'_>) -> Result<IdRange, Malformed> {
    Ok(IdRange { inside: r.u32()?, outside: r.u32()?, count: r.u32()? })
}

fn mount(r: &mut Reader<'_>) -> Result<Mount, Malformed> {
    Ok(Mount {
        source: r.bytes()?,
        target: r.bytes()?,
        write: r.flag()?,
        owner: match r.u8()? {
            0 => Owner::AsTheyAre,
            1 => Owner::One([r.u32()?, r.u32()?], [r.u32()?, r.u32()?]),
            2 => Owner::Whole,
            _ => return Err(Malformed("unknown owner of a mount")),
        },
    })
}

fn disk(r: &mut Reader<'_>) -> Result<Disk, Malformed> {
    Ok(Disk { path: r.bytes()?, sealed: r.list(Reader::bytes)?, idmap: r.flag()?, durable: r.flag()? })
}

/// The one device that a kernel of its own may have beside everybody's.
pub const KVM_DEVICE: &[u8] = b"dev/kvm";

fn kernel(r: &mut Reader<'_>) -> Result<Kernel, Malformed> {
    let pair = |r: &mut Reader<'_>| Ok((r.bytes()?, r.bytes()?));
    let kernel = Kernel {
        argv: r.list(Reader::bytes)?,
        shown: r.list(pair)?,
        made: r.list(pair)?,
        written: r.list(pair)?,
        capabilities: r.u64()?,
    };
    let plain = |name: &Vec<u8>| {
        !name.is_empty() && name.iter().all(|b| b.is_ascii_alphanumeric() || b"._".contains(b))
    };
    let below = |name: &Vec<u8>| name.splitn(2, |b| *b == b'/').all(|part| plain(&part.to_vec()));
    let names = kernel.shown.iter().all(|(name, _)| plain(name) || name == KVM_DEVICE)
        && kernel.made.iter().all(|(name, _)| below(name))
        && kernel.written.iter().all(|(name, _)| plain(name));
    match kernel.argv.is_empty() || !names {
        true => Err(Malformed("a kernel of its own has no program, or a file of no plain name")),
        false => Ok(kernel),
    }
}

fn drill(r: &mut Reader<'_>) -> Result<Drill, Malformed> {
    let (mode, name) = (r.u8()?, r.bytes()?);
    if mode == 0 {
        return Ok(Drill::None);
    }
    let step = Step::by_name(&name).ok_or(Malformed("a drill names no step"))?;
    match mode {
        1 => Ok(Drill::Fail(step)),
        2 => Ok(Drill::Pause(step)),
        _ => Err(Malformed("unknown kind of drill")),
    }
}
