//! Attributes of a call of the ioctl interface.

use std::io;

use super::command::Room;
use crate::host::{mem, sys};

/// Namespace of the driver's objects, methods and attributes.
pub(super) const DRIVER: u16 = 1 << 12;
const F_VALID_OUTPUT: u16 = 2;

/// One attribute of a call.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attr {
    pub(super) id: u16,
    pub(super) len: u16,
    pub(super) flags: u16,
    pub(super) data: u64,
    /// Where the attribute itself lies, to answer into it.
    pub(super) address: u64,
}

impl Attr {
    /// Input bytes: inline when they fit.
    pub(super) fn input(&self) -> io::Result<Vec<u8>> {
        let len = usize::from(self.len);
        if len <= 8 {
            return Ok(self.data.to_ne_bytes()[..len].to_vec());
        }
        let mut bytes = vec![0; len];
        mem::copy_from_user(self.data, &mut bytes)?;
        Ok(bytes)
    }

    pub(super) fn room(&self) -> Room {
        Room { address: self.data, len: usize::from(self.len) }
    }

    /// Marks a pointer attribute as written.
    pub(super) fn mark_valid(&self) -> io::Result<()> {
        mem::copy_to_user(self.address + 4, &(self.flags | F_VALID_OUTPUT).to_ne_bytes())
    }

    /// Writes an answer into the place the attribute points at.
    pub(super) fn answer(&self, data: &[u8]) -> io::Result<()> {
        if usize::from(self.len) < data.len() {
            return Err(sys::errno(libc::ENOSPC));
        }
        mem::copy_to_user(self.data, data)?;
        self.mark_valid()
    }

    /// Writes an object handle into the attribute.
    pub(super) fn answer_handle(&self, handle: u32) -> io::Result<()> {
        mem::copy_to_user(self.address + 8, &u64::from(handle).to_ne_bytes())
    }
}

pub(super) fn find(attrs: &[Attr], id: u16) -> Option<&Attr> {
    attrs.iter().find(|attr| attr.id == id)
}

pub(super) fn need(attrs: &[Attr], id: u16) -> io::Result<&Attr> {
    find(attrs, id).ok_or_else(|| sys::errno(libc::EINVAL))
}
