//! Datagrams: their addresses, and the network header that a receive buffer gets in front of the
//! payload.

use crate::objects::Seg;
use crate::wire::{Datagram, Payload};

fn is_mapped(gid: &[u8; 16]) -> bool {
    gid[..10] == [0; 10] && gid[10..12] == [0xff, 0xff]
}

/// The header flags of a datagram's CQE: the buffer holds a network header, over UDP, of this IP
/// version.
pub(super) fn datagram_flags(datagram: &Datagram) -> u32 {
    const IN_BUFFER: u32 = 1 << 28;
    const UDP: u32 = 1 << 27;
    const IPV4: u32 = 2 << 24;
    const IPV6: u32 = 1 << 24;
    let v4 = is_mapped(&datagram.source_gid) && is_mapped(&datagram.dest_gid);
    IN_BUFFER | UDP | if v4 { IPV4 } else { IPV6 }
}

/// Puts header and payload of a datagram into the receive buffers.
pub(super) fn deliver_datagram(datagram: &Datagram, list: &[Seg], payload: Payload<'_>, len: u32) {
    let mut bytes = vec![0; 40 + len as usize];
    bytes[..40].copy_from_slice(&global_header(datagram, len));
    payload.gather(&mut bytes[40..]);
    Payload::Bytes(&bytes).scatter(list, len + 40);
}

/// The 40 bytes in front of a datagram's payload: an IPv6 header, or an IPv4 header in the last 20.
fn global_header(datagram: &Datagram, len: u32) -> [u8; 40] {
    let mut out = [0; 40];
    // BTH, DETH and ICRC around the payload, and UDP.
    let udp_len = (len + 8 + 12 + 8 + 4) as u16;
    if is_mapped(&datagram.source_gid) && is_mapped(&datagram.dest_gid) {
        let header = &mut out[20..];
        header[0] = 0x45;
        header[1] = datagram.traffic_class;
        header[2..4].copy_from_slice(&(udp_len + 20).to_be_bytes());
        header[6] = 0x40;
        header[8] = datagram.hop_limit;
        header[9] = 17;
        header[12..16].copy_from_slice(&datagram.source_gid[12..]);
        header[16..20].copy_from_slice(&datagram.dest_gid[12..]);
        let mut sum: u32 =
            header.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        header[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    } else {
        let word = 6 << 28 | u32::from(datagram.traffic_class) << 20 | datagram.flow_label & 0xf_ffff;
        out[..4].copy_from_slice(&word.to_be_bytes());
        out[4..6].copy_from_slice(&udp_len.to_be_bytes());
        out[6] = 17;
        out[7] = datagram.hop_limit;
        out[8..24].copy_from_slice(&datagram.source_gid);
        out[24..40].copy_from_slice(&datagram.dest_gid);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv4_header_sums_to_zero() {
        let mut datagram = Datagram { hop_limit: 64, ..Datagram::default() };
        for gid in [&mut datagram.source_gid, &mut datagram.dest_gid] {
            gid[10..16].copy_from_slice(&[0xff, 0xff, 127, 0, 0, 1]);
        }
        let header = global_header(&datagram, 100);
        let sum: u32 = header[20..].chunks(2).map(|p| u32::from(u16::from_be_bytes([p[0], p[1]]))).sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
    }
}
