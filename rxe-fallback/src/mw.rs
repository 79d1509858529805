//! Memory windows: keys for part of an MR, bound and invalidated by work requests.
#![expect(unsafe_code, reason = "calls into libibverbs")]

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use doorbell_sys as sys;

use crate::error::{Error, Result, check};
use crate::mr::{Access, Mr};
use crate::pd::Pd;

/// Kind of memory window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MwKind {
    /// Bound with [`Mw::bind`]; the device picks the new key.
    Type1,
    /// Bound with [`SendOp::BindMw`](crate::SendOp::BindMw); the caller picks the low byte of the
    /// key.
    Type2,
}

/// A memory window; cheap to clone.
#[derive(Debug, Clone)]
pub struct Mw {
    inner: Arc<MwInner>,
}

#[derive(Debug)]
struct MwInner {
    raw: NonNull<sys::ibv_mw>,
    kind: MwKind,
    freed: bool,
    pd: Pd,
}

/// A window that could not be freed, with the error.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct FreeError {
    /// The window, which peers may still use.
    pub mw: Mw,
    /// The error of the verb.
    pub error: Error,
}

// SAFETY: verbs on a window are thread safe; the key is read with a volatile read, see `rkey`.
unsafe impl Send for MwInner {}
// SAFETY: as above.
unsafe impl Sync for MwInner {}

/// The range that a window is bound to. Length 0 unbinds (type 1).
#[derive(Debug, Clone, Copy)]
pub struct BindMw<'a> {
    /// The window.
    pub mw: &'a Mw,
    /// The region, registered with [`Access::MW_BIND`].
    pub mr: &'a Mr,
    /// Address of the first byte.
    pub addr: u64,
    /// Length in bytes.
    pub len: u64,
    /// What peers may do.
    pub access: Access,
    /// The new key (type 2 only): the window's key with another low byte, see [`Mw::next_rkey`].
    pub rkey: u32,
}

impl BindMw<'_> {
    pub(crate) fn to_sys(self) -> sys::ibv_mw_bind_info {
        sys::ibv_mw_bind_info {
            mr: self.mr.raw(),
            addr: self.addr,
            length: self.len,
            mw_access_flags: self.access.bits(),
        }
    }
}

impl Mw {
    /// Allocates a window.
    ///
    /// # Errors
    /// EOPNOTSUPP when the device has none of this kind; ENOMEM when it has no more.
    ///
    /// # References
    /// ibv_alloc_mw(3)
    pub fn alloc(pd: &Pd, kind: MwKind) -> Result<Self> {
        let verb = "ibv_alloc_mw";
        let device = pd.context().attributes();
        let (raw_kind, there) = match kind {
            MwKind::Type1 => (sys::ibv_mw_type::IBV_MW_TYPE_1, device.memory_windows),
            MwKind::Type2 => (sys::ibv_mw_type::IBV_MW_TYPE_2, device.memory_windows_type2),
        };
        let refused =
            || Error::unsupported(verb, format!("{} has no memory windows of {kind:?}", pd.context().name()));
        if !there {
            return Err(refused());
        }
        // SAFETY: the PD is alive and held as long as the window lives.
        let raw = unsafe { sys::ibv_alloc_mw(pd.raw(), raw_kind) };
        let raw = NonNull::new(raw).ok_or_else(|| {
            let error = Error::last(verb);
            if error.is_unsupported() { refused() } else { error }
        })?;
        Ok(Self { inner: Arc::new(MwInner { raw, kind, freed: false, pd: pd.clone() }) })
    }

    /// The window's key; after a type 1 binding was posted, the new one.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        // SAFETY: the window is alive. A provider stores a new key while a binding is posted; an
        // aligned 32-bit volatile read sees the old or the new one.
        unsafe { std::ptr::addr_of!((*self.raw()).rkey).read_volatile() }
    }

    /// Stores the key that a posted binding of type 2 gives the window; the next work request on
    /// the window uses this key.
    pub fn set_rkey(&self, rkey: u32) {
        // SAFETY: the window is alive. Nobody else writes the key of a window of type 2, and
        // providers read it while a work request is posted: an aligned 32-bit volatile write gives
        // them the old or the new one.
        unsafe { std::ptr::addr_of_mut!((*self.raw()).rkey).write_volatile(rkey) }
    }

    /// The window's key with its low byte one higher: the key for the next binding of type 2.
    #[must_use]
    pub fn next_rkey(rkey: u32) -> u32 {
        (rkey & !0xff) | (rkey.wrapping_add(1) & 0xff)
    }

    /// Its kind.
    #[must_use]
    pub fn kind(&self) -> MwKind {
        self.inner.kind
    }

    /// The PD it is in.
    #[must_use]
    pub fn pd(&self) -> &Pd {
        &self.inner.pd
    }

    /// The verbs object; valid while a clone of this window lives.
    #[must_use]
    pub fn as_raw(&self) -> *mut c_void {
        self.raw().cast()
    }

    /// Frees the window now: afterwards no peer can use its key.
    ///
    /// # Errors
    /// The error returns the window: EBUSY if it has other clones, otherwise `ibv_dealloc_mw`'s
    /// errno.
    ///
    /// # References
    /// ibv_dealloc_mw(3)
    pub fn free(self) -> Result<(), FreeError> {
        let mut inner = match Arc::try_unwrap(self.inner) {
            Ok(inner) => inner,
            Err(inner) => {
                let error =
                    Error::new("ibv_dealloc_mw", libc::EBUSY).with_detail("the window has other clones");
                return Err(FreeError { mw: Self { inner }, error });
            }
        };
        match inner.free() {
            Ok(()) => Ok(()),
            Err(error) => Err(FreeError { mw: Self { inner: Arc::new(inner) }, error }),
        }
    }

    pub(crate) fn raw(&self) -> *mut sys::ibv_mw {
        self.inner.raw.as_ptr()
    }
}

impl MwInner {
    fn free(&mut self) -> Result<()> {
        // SAFETY: allocated and not yet freed: this runs from Drop, or from Mw::free with the only
        // handle, and success is remembered.
        check("ibv_dealloc_mw", unsafe { sys::ibv_dealloc_mw(self.raw.as_ptr()) })?;
        self.freed = true;
        Ok(())
    }
}

impl Drop for MwInner {
    fn drop(&mut self) {
        if !self.freed
            && let Err(error) = self.free()
        {
            tracing::warn!(%error, "cannot free a memory window");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_key_changes_the_low_byte_only() {
        assert_eq!(Mw::next_rkey(0x1234_5600), 0x1234_5601);
        assert_eq!(Mw::next_rkey(0x1234_56ff), 0x1234_5600);
        assert_eq!(Mw::next_rkey(u32::MAX), 0xffff_ff00);
    }
}
