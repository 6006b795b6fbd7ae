//! Datagrams of a kernel in which every address is its own: what is sent anywhere is delivered to nobody,
//! without a word. A raw socket sees them all; those that were meant for elsewhere become records as
//! the host's kernel writes them (`struct nlmsghdr`, `struct nfgenmsg`, one attribute with the packet).

const LOG_PACKET: u16 = 4 << 8;
const PAYLOAD: u16 = 9;
/// The most of a packet that a record has.
const KEPT: usize = 128;
const HEADER: usize = 20;
const LOOPBACK: u8 = 127;
const NAMES_PORT: [u8; 2] = [0, 53];

/// A record of one packet of IPv4, unless it was for this very machine, as a question for a name is by
/// the time it is delivered, or is such a question's answer. Only the sandbox's root has that port.
pub fn recorded(packet: &[u8]) -> Option<Vec<u8>> {
    let length = usize::from(packet.first()? & 15) * 4;
    if packet[0] >> 4 != 4 || length < HEADER || packet.len() < length + 4 {
        return None;
    }
    let is_answer = packet[length..length + 2] == NAMES_PORT;
    if packet[16] == LOOPBACK || is_answer {
        return None;
    }
    let kept = &packet[..packet.len().min(KEPT)];
    let attribute = 4 + kept.len();
    let whole = 16 + 4 + attribute;
    let mut record = Vec::with_capacity(whole + 3);
    record.extend((whole as u32).to_ne_bytes());
    record.extend(LOG_PACKET.to_ne_bytes());
    record.extend([0; 2 + 4 + 4 + 4]);
    record.extend((attribute as u16).to_ne_bytes());
    record.extend(PAYLOAD.to_ne_bytes());
    record.extend(kept);
    record.resize((whole + 3) & !3, 0);
    Some(record)
}

#[cfg(test)]
mod tests {
    use super::recorded;

    fn packet(from: [u8; 4], to: [u8; 4], port: u16) -> Vec<u8> {
        let mut bytes = vec![0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0];
        bytes.extend(from);
        bytes.extend(to);
        bytes.extend(40_000u16.to_be_bytes());
        bytes.extend(port.to_be_bytes());
        bytes.extend([0, 8, 0, 0]);
        bytes
    }

    #[test]
    fn a_datagram_for_elsewhere_is_recorded_and_one_for_itself_is_not() {
        let sent = packet([1, 2, 3, 4], [8, 8, 8, 8], 443);
        let record = recorded(&sent).unwrap();
        assert_eq!(
            u32::from_ne_bytes([record[0], record[1], record[2], record[3]]) as usize,
            24 + sent.len()
        );
        assert_eq!(&record[24..24 + sent.len()], &sent[..]);
        assert!(recorded(&packet([127, 0, 0, 1], [127, 0, 0, 1], 443)).is_none());
        for cut in 0..24 {
            assert!(recorded(&sent[..cut]).is_none());
        }
    }
}
