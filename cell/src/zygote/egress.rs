//! The one way out: sockets inside a sandbox's network that the host listens on, and the rules
//! that lead everything there.
//!
//! Every address is local to the sandbox: a connection to any of them ends at the gateway, which
//! learns from the kernel where it was meant to go. What is not TCP and not a question to a name
//! server is refused and reported to a socket that the host reads.

use super::nftables::{
    accept, destination_port, equals, family, network_header, protocol, redirect, refuse, report, Rules,
};
use crate::contain::step::during;
use crate::sys::netlink::{attribute, open, Batch, CREATE, EXCLUSIVE};
use crate::sys::{libc, socket};
use std::io;
use std::os::unix::io::{AsRawFd, OwnedFd};

/// Where programs that know of proxies find them.
const HTTP_PORT: u16 = 3128;
const SOCKS_PORT: u16 = 1080;
const NAMES_PORT: u16 = 53;
/// The group of refused packets; one number is as good as another in a network of our own.
const REFUSED: u16 = 5;

const LOOPBACK: u32 = 1;
const LOOPBACK_V6: [u8; 16] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];

/// In the order in which the host takes them: all TCP, questions for names by UDP and by TCP, the
/// two proxies, and what was refused.
#[derive(Default)]
pub struct Doors(pub Vec<OwnedFd>);

impl Doors {
    pub fn numbers(&self) -> Vec<i32> {
        self.0.iter().map(AsRawFd::as_raw_fd).collect()
    }
}

/// In the network namespace the launcher is in: the next sandbox's.
pub fn open_doors() -> io::Result<Doors> {
    let listen = |port| socket::listen_loopback(port);
    let tcp = listen(0).map_err(|e| during(e, "listening inside"))?;
    let names = socket::datagram_loopback(0).map_err(|e| during(e, "listening inside"))?;
    let names_tcp = listen(0).map_err(|e| during(e, "listening inside"))?;
    let http = listen(HTTP_PORT).map_err(|e| during(e, "listening inside"))?;
    let socks = listen(SOCKS_PORT).map_err(|e| during(e, "listening inside"))?;
    add_address().map_err(|e| during(e, "giving the loopback another address"))?;
    route_everything().map_err(|e| during(e, "making every address local"))?;
    let ports = [socket::port(&tcp)?, socket::port(&names)?, socket::port(&names_tcp)?];
    rules(ports).map_err(|e| during(e, "leading connections to the gateway (nftables)"))?;
    let refused = hear_refusals().map_err(|e| during(e, "listening for refused packets (nflog)"))?;
    Ok(Doors(vec![tcp, names, names_tcp, http, socks, refused]))
}

/// A second address of the loopback: with 127.0.0.1 alone the C library thinks that there is no
/// network, and programs that ask for addresses of a kind they could use (AI_ADDRCONFIG) get none.
fn add_address() -> io::Result<()> {
    const NEW_ADDRESS: u16 = 20;
    const ADDRESS: u16 = 1;
    const LOCAL: u16 = 2;
    // Of a `struct ifaddrmsg`: this one address, of this host only.
    let (length, flags, scope) = (32, 0, 254);
    let mut body = vec![libc::AF_INET as u8, length, flags, scope];
    body.extend(LOOPBACK.to_ne_bytes());
    let address = [127, 0, 0, 2];
    let attributes = [attribute(LOCAL, &address), attribute(ADDRESS, &address)].concat();
    let mut batch = Batch::default();
    batch.asked(NEW_ADDRESS, CREATE | EXCLUSIVE, &body, &attributes);
    batch.send(&open(libc::NETLINK_ROUTE)?)
}

const NEW_ROUTE: u16 = 24;

fn route_everything() -> io::Result<()> {
    const OUTWARD: u16 = 4;
    const SOURCE: u16 = 7;
    // Of a `struct rtmsg`: the whole range, the table of local addresses, "static", "local".
    let (length, table, origin, kind) = (0, 255, 4, 2);
    let socket = open(libc::NETLINK_ROUTE)?;
    for (family, scope) in [(libc::AF_INET, 254), (libc::AF_INET6, 0)] {
        let body = [family as u8, length, 0, 0, table, origin, scope, kind, 0, 0, 0, 0];
        let mut attributes = attribute(OUTWARD, &LOOPBACK.to_ne_bytes());
        if family == libc::AF_INET {
            attributes.extend(attribute(SOURCE, &[127, 0, 0, 1]));
        }
        let mut batch = Batch::default();
        batch.asked(NEW_ROUTE, CREATE | EXCLUSIVE, &body, &attributes);
        match batch.send(&socket) {
            // A host without IPv6 has nothing to make local there.
            Err(error)
                if family == libc::AF_INET6
                    && matches!(error.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::EOPNOTSUPP)) => {}
            other => other?,
        }
    }
    Ok(())
}

/// Lead all TCP to the gateway and questions for names to where they are answered; refuse the rest.
fn rules([tcp, names, names_tcp]: [u16; 3]) -> io::Result<()> {
    let own_v4 = [family(libc::AF_INET), network_header(16, 1), equals(&[127])].concat();
    let own_v6 = [family(libc::AF_INET6), network_header(24, 16), equals(&LOOPBACK_V6)].concat();
    let mut rules = Rules::begin();
    rules.chain("lead", "nat", -100).chain("refuse", "filter", 0);
    for chain in ["lead", "refuse"] {
        rules.add(chain, &[&own_v4[..], &accept()].concat());
        rules.add(chain, &[&own_v6[..], &accept()].concat());
    }
    let v4 = |kind: i32| [family(libc::AF_INET), protocol(kind)].concat();
    let for_names = [destination_port(), equals(&NAMES_PORT.to_be_bytes())].concat();
    rules.add("lead", &[v4(libc::IPPROTO_UDP), for_names.clone(), redirect(names)].concat());
    rules.add("lead", &[v4(libc::IPPROTO_TCP), for_names, redirect(names_tcp)].concat());
    rules.add("lead", &[v4(libc::IPPROTO_TCP), redirect(tcp)].concat());
    rules.add("refuse", &[report(REFUSED), refuse()].concat());
    rules.apply()
}

/// Of a refused packet the host sees its headers.
const SEEN_BYTES: u32 = 128;

fn hear_refusals() -> io::Result<OwnedFd> {
    const CONFIGURE: u16 = (4 << 8) | 1;
    const COMMAND: u16 = 1;
    const MODE: u16 = 2;
    const AT_ONCE: u16 = 5;
    let (bind, copy_packet) = (1u8, 2u8);
    let group = REFUSED.to_be_bytes();
    let head = [libc::AF_UNSPEC as u8, 0, group[0], group[1]];
    let mode = [&SEEN_BYTES.to_be_bytes()[..], &[copy_packet, 0]].concat();
    let socket = open(libc::NETLINK_NETFILTER)?;
    let mut batch = Batch::default();
    batch.asked(CONFIGURE, 0, &head, &attribute(COMMAND, &[bind]));
    batch.asked(CONFIGURE, 0, &head, &attribute(MODE, &mode));
    // Each by itself: the kernel would else keep them for a second, and a short life is over by then.
    batch.asked(CONFIGURE, 0, &head, &attribute(AT_ONCE, &1u32.to_be_bytes()));
    batch.send(&socket)?;
    Ok(socket)
}
