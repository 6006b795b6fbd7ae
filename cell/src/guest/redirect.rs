//! Leads every connection of this kernel to the guest, where the kernel is one that takes the tables
//! of iptables and knows no others (gVisor's). The bytes are those of `struct ipt_replace`.

use crate::sys::netlink::{attribute, open, Batch, CREATE, EXCLUSIVE};
use crate::sys::{libc, socket};
use std::io;

const LOOPBACK: u32 = 1;
/// The first is whom programs ask for names; the others make every address one of our own.
const ADDRESSES: [([u8; 4], u8); 3] = [([198, 18, 0, 1], 15), ([0, 0, 0, 1], 1), ([128, 0, 0, 1], 1)];

/// Ports of the guest's: of all TCP, of questions for names by UDP, and by TCP.
pub fn lead_everything([tcp, names, names_tcp]: [u16; 3]) -> io::Result<()> {
    for (address, length) in ADDRESSES {
        add_address(address, length)?;
    }
    let mut table = Table::default();
    table.begin_chain(PREROUTING).policy().begin_chain(INPUT).policy().begin_chain(OUTPUT);
    table.rule(Some(([127, 0, 0, 0], [255, 0, 0, 0])), 0, None, &verdict());
    table.rule(None, libc::IPPROTO_UDP, Some(NAMES_PORT), &redirect(names));
    table.rule(None, libc::IPPROTO_TCP, Some(NAMES_PORT), &redirect(names_tcp));
    table.rule(None, libc::IPPROTO_TCP, None, &redirect(tcp));
    table.policy().begin_chain(POSTROUTING).policy();
    table.rule(None, 0, None, &error());
    socket::replace_table(|counters| table.replacement(counters), CHAINS + 1)
}

fn add_address(address: [u8; 4], length: u8) -> io::Result<()> {
    const NEW_ADDRESS: u16 = 20;
    const ADDRESS: u16 = 1;
    const LOCAL: u16 = 2;
    let mut body = vec![libc::AF_INET as u8, length, 0, 0];
    body.extend(LOOPBACK.to_ne_bytes());
    let attributes = [attribute(LOCAL, &address), attribute(ADDRESS, &address)].concat();
    let mut batch = Batch::default();
    batch.asked(NEW_ADDRESS, CREATE | EXCLUSIVE, &body, &attributes);
    batch.send(&open(libc::NETLINK_ROUTE)?)
}

const NAMES_PORT: u16 = 53;
const CHAINS: usize = 4;
/// Of the hooks of a packet's way, those that the table "nat" has.
const PREROUTING: usize = 0;
const INPUT: usize = 1;
const OUTPUT: usize = 3;
const POSTROUTING: usize = 4;

#[derive(Default)]
struct Table {
    entries: Vec<u8>,
    count: u32,
    hooks: [u32; 5],
    policies: [u32; 5],
    chain: usize,
}

impl Table {
    fn begin_chain(&mut self, hook: usize) -> &mut Table {
        self.chain = hook;
        self.hooks[hook] = self.entries.len() as u32;
        self
    }

    /// The last rule of a chain: everything else passes.
    fn policy(&mut self) -> &mut Table {
        self.policies[self.chain] = self.entries.len() as u32;
        self.rule(None, 0, None, &verdict());
        self
    }

    /// A `struct ipt_entry`, perhaps with a match, and its target.
    fn rule(&mut self, to: Option<([u8; 4], [u8; 4])>, protocol: i32, port: Option<u16>, target: &[u8]) {
        let matching = port.map_or_else(Vec::new, |port| destination(protocol, port));
        let (address, mask) = to.unwrap_or_default();
        let mut entry = vec![0u8; ENTRY];
        entry[4..8].copy_from_slice(&address);
        entry[12..16].copy_from_slice(&mask);
        entry[80..82].copy_from_slice(&(protocol as u16).to_ne_bytes());
        let offset = ENTRY + matching.len();
        entry[88..90].copy_from_slice(&(offset as u16).to_ne_bytes());
        entry[90..92].copy_from_slice(&((offset + target.len()) as u16).to_ne_bytes());
        self.entries.extend(entry);
        self.entries.extend(matching);
        self.entries.extend(target);
        self.count += 1;
    }

    /// A `struct ipt_replace` with all of it; `counters` is where the old ones are written to.
    fn replacement(&self, counters: u64) -> Vec<u8> {
        let mut bytes = name::<32>(b"nat").to_vec();
        let hooks = 1u32 << PREROUTING | 1 << INPUT | 1 << OUTPUT | 1 << POSTROUTING;
        for word in [hooks, self.count, self.entries.len() as u32] {
            bytes.extend(word.to_ne_bytes());
        }
        for word in self.hooks.iter().chain(&self.policies) {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend((CHAINS as u32 + 1).to_ne_bytes());
        bytes.extend(counters.to_ne_bytes());
        bytes.extend(&self.entries);
        bytes
    }
}

const ENTRY: usize = 112;

/// A `struct xt_entry_match` for one port of either protocol: both have it at the same place.
fn destination(protocol: i32, port: u16) -> Vec<u8> {
    let kind: &[u8] = if protocol == libc::IPPROTO_UDP { b"udp" } else { b"tcp" };
    let mut body = vec![0u8; 16];
    for (at, bound) in [(2, u16::MAX), (4, port), (6, port)] {
        body[at..at + 2].copy_from_slice(&bound.to_ne_bytes());
    }
    headed(kind, &body)
}

/// The target that accepts.
fn verdict() -> Vec<u8> {
    const ACCEPT: i32 = -1 - 1;
    headed(b"", &[ACCEPT.to_ne_bytes(), [0; 4]].concat())
}

fn redirect(port: u16) -> Vec<u8> {
    const WITH_PORT: u32 = 2;
    let mut body = [1u32.to_ne_bytes(), WITH_PORT.to_ne_bytes(), [0; 4], [0; 4]].concat();
    body.extend(port.to_be_bytes());
    body.extend(port.to_be_bytes());
    body.extend([0; 4]);
    headed(b"REDIRECT", &body)
}

/// Every table ends with one that is never reached.
fn error() -> Vec<u8> {
    headed(b"ERROR", &name::<32>(b"ERROR"))
}

/// What a match and a target begin with: length, name, revision.
fn headed(kind: &[u8], body: &[u8]) -> Vec<u8> {
    let length = (32 + body.len()) as u16;
    [&length.to_ne_bytes()[..], &name::<29>(kind), &[0], body].concat()
}

fn name<const LENGTH: usize>(text: &[u8]) -> [u8; LENGTH] {
    let mut bytes = [0u8; LENGTH];
    bytes[..text.len()].copy_from_slice(text);
    bytes
}
