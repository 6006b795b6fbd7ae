//! What is observably true of this process, read back from the kernel and held against the plan.

use super::step::refuse;
use crate::plan::{IdRange, Plan};
use crate::sys::{fd, libc, process, wall};
use std::io;
use std::os::unix::io::AsRawFd;

/// Compare, and return the facts as `name=value` lines for the host to compare once more.
pub fn verify(plan: &Plan) -> io::Result<Vec<u8>> {
    let status = read_small("/proc/self/status")?;
    let field = |name: &str| field(&status, name);

    expect("pid", process::getpid().to_string(), "1")?;
    expect("Uid", field("Uid"), &repeat4(plan.init_uid))?;
    expect("Gid", field("Gid"), &repeat4(plan.init_gid))?;
    if plan.allow_setgroups {
        // Where setgroups is forbidden the caller's groups stay, all shown as one unmapped id.
        expect("supplementary groups", process::supplementary_groups()?.to_string(), "0")?;
    }
    expect("NoNewPrivs", field("NoNewPrivs"), "1")?;
    expect("Seccomp", field("Seccomp"), "2")?;
    expect("CapInh", field("CapInh"), &hex(0))?;
    expect("CapPrm", field("CapPrm"), &hex(plan.guest_caps))?;
    expect("CapEff", field("CapEff"), &hex(plan.guest_caps))?;
    expect("CapBnd", field("CapBnd"), &hex(plan.bounding))?;
    expect("CapAmb", field("CapAmb"), &hex(0))?;
    expect("dumpable", process::prctl(libc::PR_GET_DUMPABLE, 0)?.to_string(), "0")?;
    expect("uid_map", squeeze(&read_small("/proc/self/uid_map")?), &map_text(&plan.uid_map))?;
    expect("gid_map", squeeze(&read_small("/proc/self/gid_map")?), &map_text(&plan.gid_map))?;
    for (resource, soft, hard) in &plan.rlimits {
        if wall::get_rlimit(*resource)? != (*soft, *hard) {
            return Err(refuse(libc::EPERM, format!("resource limit {resource} is not what was set")));
        }
    }
    let interfaces = interfaces(&read_small("/proc/self/net/dev")?);
    expect("network interfaces", interfaces.clone(), "lo")?;
    let mounts = mounts(plan, &read_small("/proc/self/mountinfo")?)?;

    let mut facts = String::new();
    for (name, value) in [
        ("uid", field("Uid")),
        ("gid", field("Gid")),
        ("no_new_privileges", field("NoNewPrivs")),
        ("seccomp", field("Seccomp")),
        ("seccomp_filters", field("Seccomp_filters")),
        ("capabilities", field("CapEff")),
        ("bounding", field("CapBnd")),
        ("uid_map", map_text(&plan.uid_map)),
        ("interfaces", interfaces),
        ("landlock", if plan.landlock { wall::landlock_version().to_string() } else { "none".into() }),
        ("mounts", mounts),
    ] {
        facts.push_str(&format!("{name}={value}\n"));
    }
    Ok(facts.into_bytes())
}

pub fn expect(what: &str, found: String, wanted: &str) -> io::Result<()> {
    if found == wanted {
        return Ok(());
    }
    Err(refuse(libc::EPERM, format!("{what} is {found:?}; the plan says {wanted:?}")))
}

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Every mount is nosuid; only the devices may be devices; what was asked read-only is.
fn mounts(plan: &Plan, table: &str) -> io::Result<String> {
    let mut seen = Vec::new();
    for line in table.lines() {
        let mut parts = line.split(' ').skip(4);
        let (point, options) = (parts.next().unwrap_or(""), parts.next().unwrap_or(""));
        let has = |option: &str| options.split(',').any(|o| o == option);
        let device = point == "/dev" || point.starts_with("/dev/") || point.starts_with("/proc/");
        if !has("nosuid") || !(has("nodev") || device) {
            return Err(refuse(
                libc::EPERM,
                format!("the mount on {point} allows set-id programs or devices: {options}"),
            ));
        }
        if (point == "/dev" || point == "/proc/sys" || point == BOOT_ID) && !has("ro") {
            return Err(refuse(libc::EPERM, format!("the mount on {point} is writable")));
        }
        seen.push(format!("{point}:{}", if has("ro") { "ro" } else { "rw" }));
    }
    if !seen.iter().any(|each| each.strip_suffix(":ro") == Some(BOOT_ID)) {
        return Err(refuse(libc::EPERM, "the boot id is the host's"));
    }
    for mount in &plan.mounts {
        let point = format!("/{}", String::from_utf8_lossy(&mount.target));
        let wanted = format!("{}:{}", escape(&point), if mount.write { "rw" } else { "ro" });
        if !seen.contains(&wanted) {
            return Err(refuse(libc::EPERM, format!("{point} is not mounted as asked")));
        }
    }
    Ok(seen.join(" "))
}

/// As the kernel writes a path into mountinfo.
fn escape(path: &str) -> String {
    path.replace('\\', "\\134").replace(' ', "\\040").replace('\t', "\\011").replace('\n', "\\012")
}

pub fn field(status: &str, name: &str) -> String {
    status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .map(squeeze)
        .unwrap_or_default()
}

pub fn interfaces(table: &str) -> String {
    let names: Vec<&str> =
        table.lines().skip(2).filter_map(|line| line.split(':').next()).map(str::trim).collect();
    names.join(",")
}

pub fn squeeze(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

pub fn map_text(ranges: &[IdRange]) -> String {
    let part = |r: &IdRange| format!("{} {} {}", r.inside, r.outside, r.count);
    ranges.iter().map(part).collect::<Vec<_>>().join(" ")
}

pub fn repeat4(id: u32) -> String {
    format!("{id} {id} {id} {id}")
}

pub fn hex(bits: u64) -> String {
    format!("{bits:016x}")
}

pub fn read_small(path: &str) -> io::Result<String> {
    let file = fd::open(path, libc::O_RDONLY, 0)?;
    let mut text = Vec::new();
    let mut buffer = [0u8; 8192];
    loop {
        let n = fd::read(file.as_raw_fd(), &mut buffer)?;
        if n == 0 || text.len() > 256 * 1024 {
            break;
        }
        text.extend_from_slice(&buffer[..n]);
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}
