//! The one way out of a kernel that has no network: what connects anywhere is accepted here, and
//! carried to the host, who decides where it goes.

use super::datagrams;
use super::duct::Duct;
use super::link::Link;
use crate::sys::fd::{self, Wait};
use crate::sys::{libc, socket};
use crate::wire::message::{ToHost, FIRST_OF_GUEST};
use crate::zygote::egress::Doors as HandedDoors;
use std::collections::VecDeque;
use std::io;
use std::os::unix::io::{AsRawFd, OwnedFd};

/// Where programs that know of proxies find them.
const HTTP_PORT: u16 = 3128;
const SOCKS_PORT: u16 = 1080;
/// As the wire numbers them.
const LED: u8 = 0;
const MOST_CONNECTIONS: usize = 256;
const MOST_QUESTIONS: usize = 64;
const LONGEST_QUESTION: usize = 4096;
/// A record has the first 128 bytes of a packet, and as much again about it.
const LONGEST_REPORT: usize = 1024;
const REPORTS_AT_ONCE: usize = 64;

pub struct Doors {
    /// All TCP, questions for names by TCP, the two proxies; by their number on the wire.
    listening: [OwnedFd; 4],
    names: OwnedFd,
    /// Where it is heard of packets that lead nowhere, and what makes a record of what is heard.
    refused: Option<(OwnedFd, Recorded)>,
    open: usize,
    last_id: u32,
    asking: VecDeque<(u32, socket::Peer)>,
}

/// A record of the kernel's log of packets, or None for what is no refusal.
type Recorded = fn(&[u8]) -> Option<Vec<u8>>;

impl Doors {
    /// Open them, and have everything led there; datagrams that are not led anywhere are seen.
    pub fn open(lead: fn([u16; 3]) -> io::Result<()>) -> io::Result<Doors> {
        let listening = [
            socket::listen_loopback(0)?,
            socket::listen_loopback(0)?,
            socket::listen_loopback(HTTP_PORT)?,
            socket::listen_loopback(SOCKS_PORT)?,
        ];
        let names = socket::datagram_loopback(0)?;
        lead([socket::port(&listening[0])?, socket::port(&names)?, socket::port(&listening[1])?])?;
        let seen = socket::all_datagrams()?;
        Ok(Doors::new(listening, names, Some((seen, datagrams::recorded))))
    }

    /// Those that the launcher has opened and everything is led to; None where there is no way out.
    pub fn handed(doors: HandedDoors) -> io::Result<Option<Doors>> {
        if doors.0.is_empty() {
            return Ok(None);
        }
        let [tcp, names, names_tcp, http, socks, refused] =
            <[OwnedFd; 6]>::try_from(doors.0).map_err(|_| io::Error::from_raw_os_error(libc::EBADF))?;
        fd::set_nonblocking(&refused, true)?;
        // A record already.
        let recorded: Recorded = |bytes| Some(bytes.to_vec());
        Ok(Some(Doors::new([tcp, names_tcp, http, socks], names, Some((refused, recorded)))))
    }

    fn new(listening: [OwnedFd; 4], names: OwnedFd, refused: Option<(OwnedFd, Recorded)>) -> Doors {
        Doors { listening, names, refused, open: 0, last_id: FIRST_OF_GUEST - 1, asking: VecDeque::new() }
    }

    pub fn add_waits(&self, waits: &mut Vec<Wait>, link_has_room: bool) {
        for door in &self.listening {
            let takes = link_has_room && self.open < MOST_CONNECTIONS;
            waits.push(fd::wait_for(if takes { door.as_raw_fd() } else { -1 }, libc::POLLIN));
        }
        let names = if link_has_room { self.names.as_raw_fd() } else { -1 };
        waits.push(fd::wait_for(names, libc::POLLIN));
        let refused = self.refused.as_ref().filter(|_| link_has_room);
        waits.push(fd::wait_for(refused.map_or(-1, |(heard, _)| heard.as_raw_fd()), libc::POLLIN));
    }

    pub fn serve(&mut self, waits: &[Wait], link: &mut Link, ducts: &mut Vec<Duct>) -> io::Result<()> {
        for (number, wait) in waits[..self.listening.len()].iter().enumerate() {
            if wait.revents != 0 {
                self.accept(number, link, ducts)?;
            }
        }
        if waits[self.listening.len()].revents != 0 {
            self.take_question(link)?;
        }
        Ok(())
    }

    fn accept(&mut self, number: usize, link: &mut Link, ducts: &mut Vec<Duct>) -> io::Result<()> {
        // Gone again, or no descriptor is left: the next turn tries once more.
        let caller = match socket::accept(&self.listening[number]) {
            Ok(caller) => caller,
            Err(_) => return Ok(()),
        };
        let door = number as u8;
        let (address, port) = match door {
            LED => match socket::original_destination(&caller) {
                Ok(meant) => meant,
                // Nobody was led here: somebody asked for this very port.
                Err(_) => return Ok(()),
            },
            _ => (0, 0),
        };
        let id = self.next_id();
        let copy = fd::dup_above(caller.as_raw_fd(), 3)?;
        ducts.push(Duct::to_wire(id, 1, caller)?);
        ducts.push(Duct::from_wire(id, 0, copy)?);
        self.open += 1;
        link.say(id, &ToHost::Accepted { door, address, port })
    }

    fn take_question(&mut self, link: &mut Link) -> io::Result<()> {
        let mut buffer = [0u8; LONGEST_QUESTION];
        if let Ok((count @ 1.., peer)) = socket::receive_from(&self.names, &mut buffer) {
            let id = self.next_id();
            if self.asking.len() == MOST_QUESTIONS {
                self.asking.pop_front();
            }
            self.asking.push_back((id, peer));
            link.say(id, &ToHost::Asked { bytes: buffer[..count].to_vec() })?;
        }
        Ok(())
    }

    /// Pass on what the kernel says of packets; where it had more to say than it keeps, some is lost.
    /// `waits` are those of `add_waits`.
    pub fn report_refused(&mut self, waits: &[Wait], link: &mut Link) -> io::Result<()> {
        if waits[self.listening.len() + 1].revents == 0 {
            return Ok(());
        }
        let mut buffer = [0u8; LONGEST_REPORT];
        // Not without end: a flood does not keep the guest from its other work.
        for _ in 0..REPORTS_AT_ONCE {
            let record = match &self.refused {
                Some((heard, recorded)) if link.has_room() => {
                    match fd::read(heard.as_raw_fd(), &mut buffer) {
                        Ok(count @ 1..) => recorded(&buffer[..count]),
                        _ => break,
                    }
                }
                _ => break,
            };
            if let Some(bytes) = record {
                let id = self.next_id();
                link.say(id, &ToHost::Refused { bytes })?;
            }
        }
        Ok(())
    }

    /// Hand an answer to who asked, if it is still known.
    pub fn answer(&mut self, id: u32, bytes: &[u8]) {
        if let Some(at) = self.asking.iter().position(|(asked, _)| *asked == id) {
            if let Some((_, peer)) = self.asking.remove(at) {
                // A program that has gone is not told.
                drop(socket::send_to(&self.names, bytes, &peer));
            }
        }
    }

    /// Nothing is left of one connection.
    pub fn ended(&mut self) {
        self.open = self.open.saturating_sub(1);
    }

    /// Of all of them: whoever was at the other end is not there any more.
    pub fn forget(&mut self) {
        self.open = 0;
        self.asking.clear();
    }

    fn next_id(&mut self) -> u32 {
        self.last_id = self.last_id.wrapping_add(1).max(FIRST_OF_GUEST);
        self.last_id
    }
}

/// Whether a request is one of the guest's.
pub fn is_ours(id: u32) -> bool {
    id >= FIRST_OF_GUEST
}
