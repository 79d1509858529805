//! A command of either interface: its number, its input, and the address of its answer.

use std::io;

use crate::host::{mem, sys};

/// Room for an answer in the program's memory.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Room {
    pub(crate) address: u64,
    pub(crate) len: usize,
}

/// One command.
#[derive(Debug, Default)]
pub(crate) struct Command {
    pub(crate) number: u32,
    pub(crate) core: Vec<u8>,
    pub(crate) uhw: Vec<u8>,
    pub(crate) core_out: Room,
    pub(crate) uhw_out: Room,
    /// The command descriptor of the call, to check the contents of the program's structures.
    pub(crate) fd: i32,
}

/// Reads native-endian fields at literal offsets. Fields beyond the input read as zero, as the
/// kernel pads the input.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl Reader<'_> {
    fn get<const N: usize>(self, offset: usize) -> [u8; N] {
        let mut out = [0; N];
        for (i, byte) in out.iter_mut().enumerate() {
            *byte = self.0.get(offset + i).copied().unwrap_or(0);
        }
        out
    }

    pub(crate) fn u8(self, offset: usize) -> u8 {
        self.get::<1>(offset)[0]
    }

    pub(crate) fn u16(self, offset: usize) -> u16 {
        u16::from_ne_bytes(self.get(offset))
    }

    pub(crate) fn u32(self, offset: usize) -> u32 {
        u32::from_ne_bytes(self.get(offset))
    }

    pub(crate) fn u64(self, offset: usize) -> u64 {
        u64::from_ne_bytes(self.get(offset))
    }

    pub(crate) fn bytes<const N: usize>(self, offset: usize) -> [u8; N] {
        self.get(offset)
    }
}

impl Command {
    /// Decodes a command of the write(2) interface.
    ///
    /// # Errors
    /// EINVAL when the header's sizes do not match the buffer.
    pub(crate) fn from_write(buf: &[u8]) -> io::Result<Self> {
        let invalid = || sys::errno(libc::EINVAL);
        if buf.len() < 8 {
            return Err(invalid());
        }
        let header = Reader(buf);
        let number = header.u32(0);
        let (in_words, out_words) = (usize::from(header.u16(4)), usize::from(header.u16(6)));
        if number & crate::objects::commands::EX != 0 {
            if buf.len() < 24 {
                return Err(invalid());
            }
            let response = header.u64(8);
            let (uhw_in, uhw_out) = (usize::from(header.u16(16)), usize::from(header.u16(18)));
            if buf.len() != 24 + (in_words + uhw_in) * 8 {
                return Err(invalid());
            }
            let core_end = 24 + in_words * 8;
            return Ok(Self {
                number,
                core: buf[24..core_end].to_vec(),
                uhw: buf[core_end..].to_vec(),
                core_out: Room { address: response, len: out_words * 8 },
                uhw_out: Room { address: response + out_words as u64 * 8, len: uhw_out * 8 },
                fd: -1,
            });
        }
        if buf.len() != in_words * 4 {
            return Err(invalid());
        }
        let body = &buf[8..];
        let (core_in, core_out) = legacy_sizes(number).ok_or_else(|| sys::errno(libc::EOPNOTSUPP))?;
        if body.len() < core_in || out_words * 4 < core_out {
            return Err(sys::errno(libc::ENOSPC));
        }
        let response = if core_out > 0 { header.u64(8) } else { 0 };
        Ok(Self {
            number,
            core: body[..core_in].to_vec(),
            uhw: body[core_in..].to_vec(),
            core_out: Room { address: response, len: core_out },
            uhw_out: Room { address: response + core_out as u64, len: out_words * 4 - core_out },
            fd: -1,
        })
    }

    pub(crate) fn core_out_len(&self) -> usize {
        self.core_out.len
    }

    /// Checks that input and room for the answer are at least that long.
    ///
    /// # Errors
    /// ENOSPC otherwise, as the kernel.
    pub(crate) fn need(&self, core_in: usize, core_out: usize) -> io::Result<()> {
        if self.core.len() < core_in || self.core_out.len < core_out {
            return Err(sys::errno(libc::ENOSPC));
        }
        Ok(())
    }

    /// Checks the driver's part.
    ///
    /// # Errors
    /// EINVAL when it is too short.
    pub(crate) fn need_uhw(&self, uhw_in: usize) -> io::Result<()> {
        if self.uhw.len() < uhw_in {
            return Err(sys::errno(libc::EINVAL));
        }
        Ok(())
    }

    pub(crate) fn core(&self) -> Reader<'_> {
        Reader(&self.core)
    }

    pub(crate) fn uhw(&self) -> Reader<'_> {
        Reader(&self.uhw)
    }

    /// Writes the core answer, cut to the size of the caller's buffer.
    ///
    /// # Errors
    /// EFAULT when the buffer is not mapped.
    pub(crate) fn answer(&self, data: &[u8]) -> io::Result<()> {
        mem::copy_to_user(self.core_out.address, &data[..data.len().min(self.core_out.len)])
    }

    /// Writes the driver's answer, cut to the size of the caller's buffer.
    ///
    /// # Errors
    /// EFAULT when the buffer is not mapped.
    pub(crate) fn answer_uhw(&self, data: &[u8]) -> io::Result<()> {
        mem::copy_to_user(self.uhw_out.address, &data[..data.len().min(self.uhw_out.len)])
    }

    /// True for commands that only take things away.
    pub(crate) fn destroys(&self) -> bool {
        use crate::objects::commands::*;
        matches!(
            self.number & !EX,
            DEALLOC_PD
                | DESTROY_AH
                | DEREG_MR
                | DEALLOC_MW
                | DESTROY_CQ
                | DESTROY_QP
                | DESTROY_SRQ
                | CLOSE_XRCD
                | DESTROY_FLOW
                | DESTROY_WQ
                | DESTROY_RWQ_IND_TBL
        )
    }
}

/// Sizes of the core input and output of the legacy commands, in bytes. The driver's part starts
/// behind them.
fn legacy_sizes(number: u32) -> Option<(usize, usize)> {
    use crate::objects::commands::*;
    Some(match number {
        GET_CONTEXT => (8, 8),
        QUERY_DEVICE => (8, 176),
        QUERY_PORT => (16, 40),
        ALLOC_PD => (8, 4),
        DEALLOC_PD | DEREG_MR | DEALLOC_MW | DESTROY_AH | CLOSE_XRCD => (4, 0),
        CREATE_AH => (56, 4),
        REG_MR => (40, 12),
        REREG_MR => (48, 8),
        ALLOC_MW => (16, 8),
        CREATE_COMP_CHANNEL => (8, 4),
        CREATE_CQ => (32, 8),
        RESIZE_CQ => (16, 8),
        DESTROY_CQ => (16, 8),
        CREATE_QP => (56, 32),
        OPEN_QP => (32, 32),
        QUERY_QP => (16, 128),
        MODIFY_QP => (112, 0),
        DESTROY_QP | DESTROY_SRQ => (16, 4),
        CREATE_SRQ => (32, 16),
        CREATE_XSRQ => (48, 16),
        MODIFY_SRQ => (16, 0),
        QUERY_SRQ => (16, 16),
        OPEN_XRCD => (16, 4),
        _ => return None,
    })
}

/// Builds an answer field by field, native-endian.
#[derive(Debug, Default)]
pub(crate) struct Answer(pub(crate) Vec<u8>);

impl Answer {
    pub(crate) fn u8(&mut self, value: u8) -> &mut Self {
        self.0.push(value);
        self
    }

    pub(crate) fn u16(&mut self, value: u16) -> &mut Self {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    pub(crate) fn u32(&mut self, value: u32) -> &mut Self {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    pub(crate) fn u64(&mut self, value: u64) -> &mut Self {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    pub(crate) fn bytes(&mut self, value: &[u8]) -> &mut Self {
        self.0.extend_from_slice(value);
        self
    }

    pub(crate) fn zeros(&mut self, count: usize) -> &mut Self {
        self.0.resize(self.0.len() + count, 0);
        self
    }
}
