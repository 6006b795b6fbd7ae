//! The first process of a machine of its own: it brings the devices up, mounts what it was given, and
//! then has a launcher build the same wall in there as on any host.
//!
//! Up to the last letter it knows nothing of the sandbox it is for: that is the moment at which a
//! machine is saved, and from which every other of its kind goes on.

pub mod format;
mod given;
mod letters;
mod modules;
pub mod pages;
mod pressure;
mod reading;
pub mod start;
mod volumes;

use crate::sys::{fd, libc, machine, mount, process, socket, wall};
use crate::wire::codec::{Malformed, Reader};
use crate::zygote;
use crate::zygote::message::{AWAKE, CONFIGURE, FAILED, FREEZE, FROZEN, LAUNCH, LAUNCHED, READY};
use letters::{Port, DESK, WIRE};
use pressure::Pressure;
use std::io;
use std::os::unix::io::{AsRawFd, OwnedFd};

/// Where the launcher finds what a plan for here names.
const PLACES: &[&str] =
    &["dev", "proc", "sys", "etc", "layers", "scratch", "groups", "launcher", "given", "shown", "volumes"];
const CONTROLLERS: &[u8] = b"+pids +memory";
/// A renewal: the time and bytes that nobody else has, before anything of a sandbox is there.
const RENEW: u8 = 64;
/// What programs are told of it.
const TELL: u8 = 65;
/// Say that what came before is done.
const ANSWER: u8 = 70;
/// A part of a file that is shown inside, and how many such letters are at the desk before a launch.
const GIVE: u8 = 66;
const GIVEN: u8 = 67;
/// Send what is on the kept disk instead of having anything run on it.
const READ: u8 = 71;
const MAX_REPLY: usize = 16 * 1024;
const FIRST_DISK: u8 = b'a';
const SCRATCH: &str = "/scratch";
/// What sandboxes have written is in there, by layer.
const WRITTEN: &[u8] = b"upper";

/// How many read-only disks there are, and whether the one after them, which is written to, may have been
/// another machine's before: then it is not looked at until it is known which one it is. Nor are the last
/// ones, with directories that are shown, and volumes.
#[derive(Clone, Copy)]
pub struct Disks {
    layers: usize,
    is_kept: bool,
    shown: usize,
    volumes: usize,
}

impl Disks {
    pub fn parse(words: &[String]) -> Option<Disks> {
        let (count, words) = words.split_first()?;
        let mut disks = Disks { layers: count.parse().ok()?, is_kept: false, shown: 0, volumes: 0 };
        for word in words {
            match word.split_once('=') {
                Some(("shown", count)) => disks.shown = count.parse().ok()?,
                Some(("volumes", count)) => disks.volumes = count.parse().ok()?,
                None if word == "kept" => disks.is_kept = true,
                _ => return None,
            }
        }
        Some(disks)
    }

    /// Whether anything that is written here is to outlive the machine.
    fn outlive(self) -> bool {
        self.is_kept || self.volumes > 0
    }
}

/// Serve as the first process. It does not return while the machine is of use.
pub fn run(disks: Disks) -> io::Result<()> {
    let outcome = begin(disks);
    if let Err(error) = &outcome {
        // The console, which leads to whoever started the machine.
        if let Ok(console) = fd::open("/dev/kmsg", libc::O_WRONLY, 0) {
            drop(fd::write_all(console.as_raw_fd(), format!("<0>cell: {error}\n").as_bytes()));
        }
    }
    // The end of the first process would be a panic, with many words about nothing.
    machine::restart()
}

fn begin(disks: Disks) -> io::Result<()> {
    let modules = modules::read_all("/modules")?;
    leave_first_root()?;
    modules::load(&modules)?;
    drop(modules);
    mount_layers(disks.layers)?;
    if !disks.is_kept {
        mount_scratch(disks, b"noinit_itable,nobarrier")?;
    }
    mount_groups()?;
    promise_memory()?;
    raise_limits()?;
    let mut port = Port::open(WIRE)?;
    let mut desk = Port::open(DESK)?;
    let (launcher, pid) = start_launcher()?;
    expect(&launcher, AWAKE)?;
    loop {
        let letter = port.read()?;
        match letter.first() {
            Some(&RENEW) => renew(&letter[1..])?,
            Some(&CONFIGURE) => {
                socket::send(launcher.as_raw_fd(), &letter, &[])?;
                expect(&launcher, READY)?;
                // What is saved now goes with what is on the scratch disk now.
                machine::sync();
                port.say_ready()?;
            }
            Some(&GIVEN) => {
                for _ in 0..letter.get(1).copied().unwrap_or(0) {
                    match desk.read()?.split_first() {
                        Some((&GIVE, part)) => given::write(part)?,
                        _ => return Err(io::Error::from_raw_os_error(libc::EPROTO)),
                    }
                }
                desk.say_done()?;
            }
            Some(&READ) if disks.is_kept => {
                let flags = libc::MS_RDONLY | libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
                mount_disk(disks, flags, b"").map_err(unreadable)?;
                port.say_ready()?;
                reading::send(&desk, SCRATCH, if letter[1..] == [1] { volumes::TREE } else { WRITTEN })?;
                // Whoever has read it ends the machine.
                return desk.read().map(drop);
            }
            Some(&LAUNCH) => {
                if disks.outlive() {
                    write_soon()?;
                }
                if disks.is_kept {
                    mount_scratch(disks, b"noinit_itable,commit=1").map_err(unreadable)?;
                }
                mount_shown(disks)?;
                volumes::mount_all(disks.layers + 1 + disks.shown, disks.volumes)?;
                socket::send(launcher.as_raw_fd(), &letter, &[port.number()])?;
                drop(port);
                return attend(&launcher, pid, desk, disks);
            }
            _ => return Err(io::Error::from_raw_os_error(libc::EPROTO)),
        }
    }
}

/// Once there is a guest: hold everything still for as long as the machine is saved, and tell what goes
/// on from that who it is before it moves again. Returns when the guest has ended.
fn attend(launcher: &OwnedFd, pid: process::Pid, mut desk: Port, disks: Disks) -> io::Result<()> {
    let mut pressure: Option<Pressure> = None;
    loop {
        let mut waits = [
            fd::wait_for(launcher.as_raw_fd(), libc::POLLIN),
            fd::wait_for(desk.number(), libc::POLLIN),
            fd::wait_for(pressure.as_ref().map_or(-1, Pressure::number), libc::POLLPRI),
        ];
        fd::poll(&mut waits, -1)?;
        if waits[0].revents != 0 {
            if !is_launched(launcher)? {
                return Ok(());
            }
            pressure = Some(Pressure::watch(pid)?);
        }
        match &mut pressure {
            Some(watched) if waits[2].revents == libc::POLLPRI => watched.look()?,
            // Its group is gone, and what was in it.
            Some(_) if waits[2].revents != 0 => pressure = None,
            _ => {}
        }
        if waits[1].revents & libc::POLLIN == 0 {
            continue;
        }
        let letter = desk.read()?;
        match letter.first() {
            Some(&FREEZE) => {
                freeze(launcher, &letter, disks)?;
                desk.say_done()?;
            }
            Some(&ANSWER) => desk.say_done()?,
            Some(&RENEW) => renew(&letter[1..])?,
            Some(&TELL) => tell(pid, &letter[1..])?,
            Some(&GIVE) => given::write(&letter[1..])?,
            _ => return Err(io::Error::from_raw_os_error(libc::EPROTO)),
        }
    }
}

/// Hold everything still, then the disks, so that they are whole as they lie there; and the other way round.
fn freeze(launcher: &OwnedFd, letter: &[u8], disks: Disks) -> io::Result<()> {
    let is_to_freeze = letter.last() == Some(&1);
    if !is_to_freeze {
        freeze_disks(disks, false)?;
    }
    ask(launcher, letter, FROZEN)?;
    if is_to_freeze {
        machine::sync();
        freeze_disks(disks, true)?;
    }
    Ok(())
}

fn freeze_disks(disks: Disks, is_frozen: bool) -> io::Result<()> {
    machine::freeze(SCRATCH, is_frozen)?;
    (0..disks.volumes).try_for_each(|index| machine::freeze(&volumes::place(index), is_frozen))
}

/// The launcher's words come unasked only of the one sandbox: that it stands, or has ended.
fn is_launched(launcher: &OwnedFd) -> io::Result<bool> {
    let mut reply = vec![0; MAX_REPLY];
    let n = socket::receive(launcher.as_raw_fd(), &mut reply, &mut Vec::new())?;
    match reply[..n].first() {
        Some(&LAUNCHED) => Ok(true),
        Some(&FAILED) => Err(io::Error::new(io::ErrorKind::Other, failure(&reply[1..n]))),
        _ => Ok(false),
    }
}

fn ask(launcher: &OwnedFd, packet: &[u8], answer: u8) -> io::Result<()> {
    socket::send(launcher.as_raw_fd(), packet, &[])?;
    expect(launcher, answer)
}

/// Say in the sandbox's /dev, which it cannot write to itself, as what it goes on.
fn tell(pid: process::Pid, text: &[u8]) -> io::Result<()> {
    let place = format!("/proc/{pid}/root/dev/cloister");
    match mount::mkdirat(libc::AT_FDCWD, place.as_bytes(), 0o755) {
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {}
        other => other?,
    }
    let (next, last) = (format!("{place}/renewal.new"), format!("{place}/renewal"));
    let file = fd::open(&next, libc::O_CREAT | libc::O_TRUNC | libc::O_WRONLY, 0o444)?;
    fd::write_all(file.as_raw_fd(), text)?;
    mount::renameat(libc::AT_FDCWD, next.as_bytes(), libc::AT_FDCWD, last.as_bytes(), true)
}

/// The kernel unpacks us into a root that cannot be left behind; everything is built on another.
fn leave_first_root() -> io::Result<()> {
    mount::mkdirat(libc::AT_FDCWD, b"/new", 0o755)?;
    mount::mount("tmpfs", b"/new", "tmpfs", libc::MS_NOSUID, b"size=16m,mode=0755")?;
    machine::switch_root(b"/new")?;
    for name in PLACES {
        mount::mkdirat(libc::AT_FDCWD, format!("/{name}").as_bytes(), 0o755)?;
    }
    let flags = libc::MS_NOSUID | libc::MS_NOEXEC;
    mount::mount("devtmpfs", b"/dev", "devtmpfs", flags, b"mode=0755")?;
    mount::mount("proc", b"/proc", "proc", flags | libc::MS_NODEV, b"")
}

fn mount_layers(layers: usize) -> io::Result<()> {
    (0..layers).try_for_each(|index| mount_read_only(index, &format!("/layers/{index}")))
}

/// Directories that are shown to the sandbox: not before there is one, for a machine that was saved with
/// them would know what is on other disks.
fn mount_shown(disks: Disks) -> io::Result<()> {
    let first = disks.layers + 1;
    (0..disks.shown).try_for_each(|index| mount_read_only(first + index, &format!("/shown/{index}")))
}

fn mount_read_only(number: usize, place: &str) -> io::Result<()> {
    let disk = device(number);
    mount::mkdirat(libc::AT_FDCWD, place.as_bytes(), 0o755)?;
    let flags = libc::MS_RDONLY | libc::MS_NOSUID | libc::MS_NODEV;
    mount::mount(&disk, place.as_bytes(), "ext4", flags, b"norecovery")
}

fn mount_scratch(disks: Disks, options: &[u8]) -> io::Result<()> {
    mount_disk(disks, libc::MS_NOSUID | libc::MS_NODEV, options)
}

fn mount_disk(disks: Disks, flags: u64, options: &[u8]) -> io::Result<()> {
    mount::mount(&device(disks.layers), SCRATCH.as_bytes(), "ext4", flags, options)
}

fn device(number: usize) -> String {
    format!("/dev/vd{}", char::from(FIRST_DISK + number as u8))
}

/// Where a disk outlives the machine, what is written does not wait long in memory that is gone at once when
/// whoever owns the machine is killed.
fn write_soon() -> io::Result<()> {
    for name in ["dirty_writeback_centisecs", "dirty_expire_centisecs"] {
        let file = fd::open(format!("/proc/sys/vm/{name}"), libc::O_WRONLY, 0)?;
        fd::write_all(file.as_raw_fd(), b"100")?;
    }
    Ok(())
}

fn unreadable(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("the kept disk cannot be mounted: {error}"))
}

/// What a program asks for and does not use is none of the machine's: it ends by its limit, as on a host
/// that has more memory than any sandbox.
fn promise_memory() -> io::Result<()> {
    let file = fd::open("/proc/sys/vm/overcommit_memory", libc::O_WRONLY, 0)?;
    fd::write_all(file.as_raw_fd(), b"1")
}

/// The kernel gives its first process what fits the machine's memory: a plan says what it is to be.
fn raise_limits() -> io::Result<()> {
    const MOST: u64 = 1 << 20;
    for resource in [libc::RLIMIT_NOFILE, libc::RLIMIT_SIGPENDING, libc::RLIMIT_MSGQUEUE, libc::RLIMIT_NPROC]
    {
        wall::set_rlimit(resource, MOST, MOST)?;
    }
    Ok(())
}

fn mount_groups() -> io::Result<()> {
    let flags = libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    mount::mount("cgroup2", b"/groups", "cgroup2", flags, b"")?;
    let file = fd::open("/groups/cgroup.subtree_control", libc::O_WRONLY, 0)?;
    fd::write_all(file.as_raw_fd(), CONTROLLERS)
}

fn start_launcher() -> io::Result<(OwnedFd, process::Pid)> {
    let (ours, theirs) = socket::pair(libc::SOCK_SEQPACKET)?;
    let pid = process::fork(libc::SIGCHLD)?;
    if pid == 0 {
        drop(ours);
        let number = theirs.as_raw_fd();
        // Taken over by number there.
        std::mem::forget(theirs);
        let failed = zygote::serve(number, zygote::WayOut::Guest).is_err();
        process::exit(i32::from(failed));
    }
    Ok((ours, pid))
}

/// Wait for this word of the launcher's; whatever else it says but a failure is passed over.
fn expect(launcher: &OwnedFd, wanted: u8) -> io::Result<()> {
    let mut reply = vec![0; MAX_REPLY];
    let mut doors = Vec::new();
    loop {
        let n = socket::receive(launcher.as_raw_fd(), &mut reply, &mut doors)?;
        match reply[..n].first() {
            None => return Err(io::Error::new(io::ErrorKind::Other, "the launcher inside ended")),
            Some(&FAILED) => {
                return Err(io::Error::new(io::ErrorKind::Other, failure(&reply[1..n])));
            }
            Some(word) if *word == wanted => return Ok(()),
            Some(_) => {}
        }
    }
}

/// What went wrong, in words: the step, the kernel's number, and more.
fn failure(report: &[u8]) -> String {
    let mut r = Reader::new(report);
    let mut read = || Ok::<_, Malformed>((r.u64()?, r.u32()?, r.bytes()?, r.bytes()?));
    match read() {
        Ok((_, errno, step, detail)) => {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            format!("{}: {} ({})", text(&step), text(&detail), io::Error::from_raw_os_error(errno as i32))
        }
        Err(_) => "the launcher inside failed".into(),
    }
}

/// Eight bytes of time in nanoseconds, the rest of chance. Two machines that go on from one are told apart here.
fn renew(words: &[u8]) -> io::Result<()> {
    let (time, seed) = match words.get(..8).and_then(|time| <[u8; 8]>::try_from(time).ok()) {
        Some(time) if words.len() >= 8 + MINIMUM_SEED => (u64::from_le_bytes(time), &words[8..]),
        _ => return Err(io::Error::from_raw_os_error(libc::EPROTO)),
    };
    machine::set_clock(time)?;
    machine::add_entropy(seed)
}

const MINIMUM_SEED: usize = 32;
