//! The names of the launch steps: what an error carries, what the documents list.

use std::io;

macro_rules! steps {
    ($($variant:ident $name:literal $side:literal $what:literal;)*) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Step { $($variant),* }

        impl Step {
            pub const ALL: &'static [Step] = &[$(Step::$variant),*];

            pub fn name(self) -> &'static str {
                match self { $(Step::$variant => $name),* }
            }

            /// Which process performs it.
            pub fn side(self) -> &'static str {
                match self { $(Step::$variant => $side),* }
            }

            pub fn what(self) -> &'static str {
                match self { $(Step::$variant => $what),* }
            }

            pub fn by_name(name: &[u8]) -> Option<Step> {
                Step::ALL.iter().copied().find(|step| step.name().as_bytes() == name)
            }
        }
    };
}

steps! {
    Network "network" "launcher" "make a network namespace with a loopback and nothing else, and enter it";
    Egress "egress" "launcher" "with egress: open the sockets of the one way out inside, and lead everything there";
    Cgroup "cgroup" "launcher" "make the control group of the unified hierarchy, if there is one, with its limits";
    Clone "clone" "launcher" "clone the guest into new user, mount, pid, ipc and uts namespaces";
    Ids "ids" "launcher" "map its users onto a range of host ids of its own, never host id 0";
    Trees "trees" "launcher" "open the host directories that become its root and its mounts";
    Limits "limits" "launcher" "make the control groups of the other hierarchies, with their limits";
    Doors "doors" "launcher" "hand the guest the way into them";
    Fds "fds" "guest" "close every inherited descriptor but two";
    Session "session" "guest" "umask 022, default priority, die with the launcher";
    Keyring "keyring" "guest" "leave the caller's session keyring";
    Handover "handover" "guest" "take over the directories the launcher has opened";
    Identity "identity" "guest" "become the sandbox's own root, without supplementary groups";
    Hostname "hostname" "guest" "set the host name";
    Root "root" "guest" "build the root on a size-limited tmpfs or on its own disk, host directories as read-only layers";
    Devices "devices" "guest" "minimal /dev, own pseudo-terminals, size-limited /dev/shm";
    Proc "proc" "guest" "mount /proc of its own process namespace with a boot id of its own, mask what tells about the host";
    Mounts "mounts" "guest" "attach the granted host directories, nosuid and nodev";
    Pivot "pivot" "guest" "make the new root the root; no host path exists after this";
    Join "join" "guest" "enter the control groups, and give up the last of the launcher's identity";
    CgroupView "cgroup-view" "guest" "own cgroup namespace, so that its path reads as the root";
    Rlimits "rlimits" "guest" "set the resource limits of every process inside; no core dumps";
    Capabilities "capabilities" "guest" "drop the bounding set to the profile, keep only what starting processes needs";
    NoNewPrivileges "no-new-privileges" "guest" "forbid gaining privileges by executing anything";
    Landlock "landlock" "guest" "second layer: no device nodes, no signals or abstract sockets outward, no mounts";
    Seccomp "seccomp" "guest" "load the system call allow-list, last, so that it need not allow the steps above";
    Posture "posture" "guest" "read everything back from the kernel and compare it with the plan";
}

/// A step that did not apply. The sandbox does not exist, and nothing ran.
#[derive(Debug)]
pub struct LaunchError {
    pub step: Step,
    pub source: io::Error,
    pub detail: String,
}

/// Name the step that an error belongs to.
pub trait At<T> {
    fn at(self, step: Step) -> Result<T, LaunchError>;
}

impl<T> At<T> for io::Result<T> {
    fn at(self, step: Step) -> Result<T, LaunchError> {
        self.map_err(|source| LaunchError { step, detail: source.to_string(), source })
    }
}

/// An error of our own making, with words for the person who reads it.
pub fn refuse(errno: i32, words: impl Into<String>) -> io::Error {
    io::Error::new(io::Error::from_raw_os_error(errno).kind(), Refusal { errno, words: words.into() })
}

/// Add what was being done to an error from the kernel.
pub fn during(error: io::Error, words: impl std::fmt::Display) -> io::Error {
    let errno = errno(&error);
    refuse(errno, format!("{words}: {error}"))
}

#[derive(Debug)]
pub struct Refusal {
    pub errno: i32,
    pub words: String,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.words)
    }
}

impl std::error::Error for Refusal {}

/// The errno of an error, whichever of the two kinds it is.
pub fn errno(error: &io::Error) -> i32 {
    if let Some(number) = error.raw_os_error() {
        return number;
    }
    match error.get_ref().and_then(|inner| inner.downcast_ref::<Refusal>()) {
        Some(refusal) => refusal.errno,
        None => crate::sys::libc::EIO,
    }
}
