//! Receiving datagrams: the first 40 bytes of each buffer are not payload.
//!
//! A UD receive starts with room for a global routing header, whether or not a header is there, and
//! the completion's length counts it. [`UdRecvBuffer`] includes that room, so that it is not
//! mistaken for payload.
//!
//! # References
//! ibv_post_recv(3), ibv_create_ah_from_wc(3)

use crate::cq::Completion;
use crate::device::Gid;
use crate::error::{Error, Result};
use crate::mr::Mr;
use crate::wr::{Receive, Sge};

/// Bytes in front of the payload of each UD receive.
pub const GRH_LEN: usize = 40;

/// A buffer for one datagram: the GRH area, then room for payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UdRecvBuffer {
    sge: Sge,
    offset: usize,
}

/// A receive for UD.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UdRecvWr {
    /// The `wr_id` of the completion.
    pub wr_id: u64,
    /// Where the datagram goes.
    pub buffer: UdRecvBuffer,
}

impl UdRecvBuffer {
    /// `GRH_LEN + payload_len` bytes of `mr` at `offset`.
    ///
    /// # Errors
    /// EINVAL when they do not lie inside the region.
    pub fn new(mr: &Mr, offset: usize, payload_len: usize) -> Result<Self> {
        let len = payload_len.saturating_add(GRH_LEN);
        Ok(Self { sge: mr.sge(offset, len)?, offset })
    }

    /// Room for payload, in bytes.
    #[must_use]
    pub fn payload_room(&self) -> usize {
        self.sge.len as usize - GRH_LEN
    }

    /// Where the payload starts in the MR, and how long it is, once `completion` has come for this
    /// buffer.
    ///
    /// # Errors
    /// EINVAL when the completion is not that of a receive into a buffer of this size.
    pub fn payload(&self, completion: &Completion) -> Result<(usize, usize)> {
        let len = payload_len(completion)?;
        if len > self.payload_room() {
            let text = format!("{len} bytes of payload do not fit this buffer of {}", self.payload_room());
            return Err(Error::invalid("ibv_poll_cq", text));
        }
        Ok((self.offset + GRH_LEN, len))
    }

    /// Copies the payload out of `mr`, the region this buffer is in, and says how long it was.
    ///
    /// # Errors
    /// As [`UdRecvBuffer::payload`], and EINVAL when `into` is too short.
    pub fn read_payload(&self, mr: &Mr, completion: &Completion, into: &mut [u8]) -> Result<usize> {
        let (offset, len) = self.payload(completion)?;
        let room = into.len();
        let into = into.get_mut(..len).ok_or_else(|| {
            Error::invalid("ibv_poll_cq", format!("{len} bytes of payload do not fit {room} bytes"))
        })?;
        mr.read_at(offset, into)?;
        Ok(len)
    }

    /// Copies the header out of `mr`, if the datagram had one.
    ///
    /// # Errors
    /// EINVAL when `mr` is not the region this buffer is in.
    pub fn read_grh(&self, mr: &Mr, completion: &Completion) -> Result<Option<Grh>> {
        if !completion.has_grh {
            return Ok(None);
        }
        let mut bytes = [0; GRH_LEN];
        mr.read_at(self.offset, &mut bytes)?;
        Ok(Some(Grh(bytes)))
    }
}

impl Receive for UdRecvWr {
    const HAS_GRH_AREA: bool = true;

    fn wr_id(&self) -> u64 {
        self.wr_id
    }
    fn sges(&self) -> &[Sge] {
        std::slice::from_ref(&self.buffer.sge)
    }
}

/// Payload bytes of a UD receive.
///
/// # Errors
/// EINVAL when `completion` is not that of a successful receive.
pub fn payload_len(completion: &Completion) -> Result<usize> {
    if !completion.is_receive() {
        return Err(Error::invalid("ibv_poll_cq", "this is not the completion of a successful receive"));
    }
    (completion.byte_len as usize).checked_sub(GRH_LEN).ok_or_else(|| {
        Error::invalid("ibv_poll_cq", format!("{} bytes are too few for a UD receive", completion.byte_len))
    })
}

/// The payload in `buffer`, the bytes of a whole UD receive.
///
/// # Errors
/// As [`payload_len`], and EINVAL when `buffer` is shorter than what was received.
pub fn payload<'a>(buffer: &'a [u8], completion: &Completion) -> Result<&'a [u8]> {
    let len = payload_len(completion)?;
    buffer.get(GRH_LEN..GRH_LEN + len).ok_or_else(|| {
        Error::invalid(
            "ibv_poll_cq",
            format!("the buffer has {} bytes, {len} + {GRH_LEN} came", buffer.len()),
        )
    })
}

/// A global routing header as it came: on RoCE v2 over IPv4 its last 20 bytes are the IPv4 header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grh(pub [u8; GRH_LEN]);

impl Grh {
    /// The sender's GID.
    #[must_use]
    pub fn source(&self) -> Gid {
        self.gid(8, 20 + 12)
    }

    /// The GID it was sent to.
    #[must_use]
    pub fn destination(&self) -> Gid {
        self.gid(24, 20 + 16)
    }

    fn gid(&self, at_v6: usize, at_v4: usize) -> Gid {
        if self.is_ipv4() {
            let octets: [u8; 4] = self.0[at_v4..at_v4 + 4].try_into().expect("four bytes");
            Gid::from_ip(std::net::IpAddr::from(octets))
        } else {
            Gid(self.0[at_v6..at_v6 + 16].try_into().expect("sixteen bytes"))
        }
    }

    /// An IPv6 header has version 6 in front; an IPv4 one sits in the last 20 bytes with the length
    /// of a plain header.
    fn is_ipv4(&self) -> bool {
        self.0[0] >> 4 != 6 && self.0[20] == 0x45
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cq::WcOpcode;

    fn receive(byte_len: u32) -> Completion {
        Completion { opcode: Some(WcOpcode::Recv), byte_len, ..Completion::default() }
    }

    #[test]
    fn payload_starts_after_the_grh_area() {
        let buffer: Vec<u8> = (0..60).collect();
        assert_eq!(payload(&buffer, &receive(50)).unwrap(), &buffer[40..50]);
        assert_eq!(payload(&buffer, &receive(40)).unwrap(), b"");
    }

    #[test]
    fn what_cannot_be_a_ud_receive_is_refused() {
        assert_eq!(payload_len(&receive(39)).unwrap_err().errno(), libc::EINVAL);
        let send = Completion { opcode: Some(WcOpcode::Send), byte_len: 80, ..Completion::default() };
        assert_eq!(payload_len(&send).unwrap_err().errno(), libc::EINVAL);
        assert_eq!(payload(&[0; 45], &receive(50)).unwrap_err().errno(), libc::EINVAL);
    }

    #[test]
    fn sender_is_read_from_either_header() {
        let mut v6 = [0; GRH_LEN];
        v6[0] = 0x60;
        v6[8..24].copy_from_slice(&Gid::from_ip("2001:db8::1".parse().unwrap()).0);
        v6[24..].copy_from_slice(&Gid::from_ip("2001:db8::2".parse().unwrap()).0);
        assert_eq!(Grh(v6).source().ip(), "2001:db8::1".parse::<std::net::IpAddr>().unwrap());
        assert_eq!(Grh(v6).destination().ip(), "2001:db8::2".parse::<std::net::IpAddr>().unwrap());

        let mut v4 = [0; GRH_LEN];
        v4[20] = 0x45;
        v4[32..36].copy_from_slice(&[10, 9, 0, 1]);
        v4[36..40].copy_from_slice(&[10, 9, 0, 2]);
        assert_eq!(Grh(v4).source().ip(), "10.9.0.1".parse::<std::net::IpAddr>().unwrap());
        assert_eq!(Grh(v4).destination().ip(), "10.9.0.2".parse::<std::net::IpAddr>().unwrap());
    }
}
