//! A guest that is held still while its memory is saved, and goes on: the same, or as another.

use super::{unsaved, Guest};
use crate::sys::{fd, libc, mount};
use crate::wire::message::{ToGuest, ToHost};
use crate::wire::GENERATION;
use std::io;
use std::os::unix::io::AsRawFd;

/// Where programs are told that they go on as another sandbox. Where memory can be saved this lies in a
/// directory of the host's, in which it says so before they run.
const DIRECTORY: &str = "/dev/cloister";
const RENEWAL: &str = "/dev/cloister/renewal";

impl Guest {
    /// Say HELD, and then nothing: what is saved meanwhile is between two frames. Where this kernel could
    /// not be saved, say why, and go on.
    pub(super) fn hold(&mut self, id: u32) -> io::Result<()> {
        if self.again.is_some() && !self.is_nobody {
            if let Some(detail) = unsaved::find()? {
                let errno = libc::EBUSY as u32;
                return self.link.say(id, &ToHost::Failed { errno, step: b"hold".to_vec(), detail });
            }
        }
        self.link.say(id, &ToHost::Held)?;
        loop {
            let mut waits = [fd::wait_for(self.link.number(), self.link.wants())];
            fd::poll(&mut waits, -1)?;
            if waits[0].revents & libc::POLLOUT != 0 {
                self.link.flush()?;
            }
            if waits[0].revents & !libc::POLLOUT != 0 && !self.link.fill()? {
                return Err(io::Error::from_raw_os_error(libc::EPIPE));
            }
            match self.link.next()? {
                None => {}
                Some((_, ToGuest::Proceed)) => return Ok(()),
                Some((_, ToGuest::Renew { renewal, seed, name })) => {
                    return self.renew(renewal, &seed, &name)
                }
                Some(_) => return Err(io::Error::from_raw_os_error(libc::EPROTO)),
            }
        }
    }

    /// Go on under another name, with another host, who asked for nothing that is open here.
    fn renew(&mut self, renewal: u64, seed: &[u8], name: &[u8]) -> io::Result<()> {
        if self.again.is_none() && !self.house.stream_transport {
            return Err(io::Error::from_raw_os_error(libc::EPROTO));
        }
        let jobs = &self.jobs;
        let (ours, others) =
            self.ducts.drain(..).partition::<Vec<_>, _>(|duct| super::doors::is_ours(duct.job));
        // Cut, and not ended: a program would take what it has of an answer for all of it.
        ours.into_iter().for_each(|duct| drop(duct.cut()));
        self.ducts = others;
        self.ducts.retain(|duct| jobs.has(duct.job));
        self.ducts.iter_mut().for_each(super::Duct::forsake);
        if let Some(doors) = &mut self.doors {
            doors.forget();
        }
        let pool = fd::open("/dev/urandom", libc::O_WRONLY, 0)?;
        fd::write_all(pool.as_raw_fd(), seed)?;
        let facts = match self.again {
            Some(again) => {
                // Begun ahead it is nobody yet: its programs are told with the next one.
                self.is_nobody = name.is_empty();
                if !name.is_empty() {
                    tell(renewal, name)?;
                }
                again()?
            }
            // In a machine that is done by its first process: /dev is not ours to write to.
            None => self.facts.clone(),
        };
        self.link.say(0, &ToHost::Hello { generation: GENERATION, facts })
    }
}

/// Have it said inside which renewal this is, and under which name. In place, and never less than was
/// there: this kernel cannot save a file that was replaced while somebody has it open.
pub fn tell(renewal: u64, name: &[u8]) -> io::Result<()> {
    match mount::mkdirat(libc::AT_FDCWD, DIRECTORY.as_bytes(), 0o755) {
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {}
        other => other?,
    }
    let file = fd::open(RENEWAL, libc::O_CREAT | libc::O_WRONLY, 0o644)?;
    let text = [format!("renewal={renewal}\nsandbox=").as_bytes(), name, b"\n"].concat();
    fd::write_all(file.as_raw_fd(), &text)
}
