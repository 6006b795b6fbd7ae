//! The few words of nftables that the way out is described in.
//!
//! A rule is expressions one after the other; the first that does not hold ends it. Numbers are
//! those of `linux/netfilter/nf_tables.h`.

use crate::sys::libc;
use crate::sys::netlink::{attribute, nested, open, text, Batch, APPEND, CREATE};
use std::io;

const SUBSYSTEM: u16 = 10;
const NEW_TABLE: u16 = SUBSYSTEM << 8;
const NEW_CHAIN: u16 = NEW_TABLE + 3;
const NEW_RULE: u16 = NEW_TABLE + 6;
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;
/// Both versions of IP in one table.
const HEAD: [u8; 4] = [1, 0, 0, 0];
const BATCH_HEAD: [u8; 4] = [0, 0, 0, SUBSYSTEM as u8];
const LOCAL_OUT: u32 = 3;
const TABLE: &str = "cloister";

pub struct Rules {
    batch: Batch,
}

impl Rules {
    pub fn begin() -> Rules {
        let mut batch = Batch::default();
        batch.message(BATCH_BEGIN, 0, &BATCH_HEAD, &[]);
        batch.asked(NEW_TABLE, CREATE, &HEAD, &text(1, TABLE));
        Rules { batch }
    }

    /// A chain that every packet sent inside goes through.
    pub fn chain(&mut self, name: &str, kind: &str, priority: i32) -> &mut Rules {
        let hook =
            nested(4, &[attribute(1, &LOCAL_OUT.to_be_bytes()), attribute(2, &priority.to_be_bytes())]);
        let attributes = [text(1, TABLE), text(3, name), hook, text(7, kind)].concat();
        self.batch.asked(NEW_CHAIN, CREATE, &HEAD, &attributes);
        self
    }

    pub fn add(&mut self, chain: &str, expressions: &[Vec<u8>]) {
        let attributes = [text(1, TABLE), text(2, chain), nested(4, expressions)].concat();
        self.batch.asked(NEW_RULE, CREATE | APPEND, &HEAD, &attributes);
    }

    pub fn apply(mut self) -> io::Result<()> {
        self.batch.message(BATCH_END, 0, &BATCH_HEAD, &[]);
        self.batch.send(&open(libc::NETLINK_NETFILTER)?)
    }
}

const VERDICT: u32 = 0;
const REGISTER: u32 = 1;

fn expression(name: &str, attributes: &[Vec<u8>]) -> Vec<u8> {
    nested(1, &[text(1, name), nested(2, attributes)])
}

fn number(kind: u16, value: u32) -> Vec<u8> {
    attribute(kind, &value.to_be_bytes())
}

pub fn family(value: i32) -> Vec<Vec<u8>> {
    const FAMILY: u32 = 15;
    [meta(FAMILY), equals(&[value as u8])].concat()
}

pub fn protocol(value: i32) -> Vec<Vec<u8>> {
    const PROTOCOL: u32 = 16;
    [meta(PROTOCOL), equals(&[value as u8])].concat()
}

fn meta(key: u32) -> Vec<Vec<u8>> {
    vec![expression("meta", &[number(1, REGISTER), number(2, key)])]
}

pub fn network_header(offset: u32, length: u32) -> Vec<Vec<u8>> {
    payload(1, offset, length)
}

pub fn destination_port() -> Vec<Vec<u8>> {
    payload(2, 2, 2)
}

fn payload(base: u32, offset: u32, length: u32) -> Vec<Vec<u8>> {
    let place = [number(1, REGISTER), number(2, base), number(3, offset), number(4, length)];
    vec![expression("payload", &place)]
}

pub fn equals(value: &[u8]) -> Vec<Vec<u8>> {
    let (equal, data) = (number(2, 0), nested(3, &[attribute(1, value)]));
    vec![expression("cmp", &[number(1, REGISTER), equal, data])]
}

pub fn accept() -> Vec<Vec<u8>> {
    let verdict = nested(2, &[nested(2, &[number(1, 1)])]);
    vec![expression("immediate", &[number(1, VERDICT), verdict])]
}

/// To this port of the sandbox's own loopback.
pub fn redirect(port: u16) -> Vec<Vec<u8>> {
    let value = nested(2, &[attribute(1, &port.to_be_bytes())]);
    vec![expression("immediate", &[number(1, REGISTER), value]), expression("redir", &[number(1, REGISTER)])]
}

/// Tell whoever listens to the group.
pub fn report(group: u16) -> Vec<Vec<u8>> {
    vec![expression("log", &[attribute(1, &group.to_be_bytes())])]
}

/// With an answer: "administratively prohibited".
pub fn refuse() -> Vec<Vec<u8>> {
    vec![expression("reject", &[number(1, 2), attribute(2, &[3])])]
}
