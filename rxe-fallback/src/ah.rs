//! Address handles: destinations of UD sends.
#![expect(unsafe_code, reason = "calls into libibverbs")]

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use doorbell_sys as sys;

use crate::cq::Completion;
use crate::device::Gid;
use crate::error::{Error, Result, check};
use crate::pd::Pd;
use crate::ud::Grh;

/// A path to a port, for address handles and connected QPs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AhAttr {
    /// The local port, counted from 1.
    pub port: u8,
    /// The peer's GID; `None` for InfiniBand inside one subnet.
    pub dgid: Option<Gid>,
    /// The index of the local GID; used with `dgid`.
    pub sgid_index: u8,
    /// Hop limit; used with `dgid`.
    pub hop_limit: u8,
    /// Traffic class; used with `dgid`.
    pub traffic_class: u8,
    /// Flow label; used with `dgid`.
    pub flow_label: u32,
    /// The peer's local identifier; 0 on Ethernet.
    pub dlid: u16,
    /// Service level.
    pub sl: u8,
    /// Source path bits; InfiniBand only.
    pub src_path_bits: u8,
    /// Rate limit code; 0 for none.
    pub static_rate: u8,
}

impl Default for AhAttr {
    fn default() -> Self {
        Self {
            port: 1,
            dgid: None,
            sgid_index: 0,
            hop_limit: 64,
            traffic_class: 0,
            flow_label: 0,
            dlid: 0,
            sl: 0,
            src_path_bits: 0,
            static_rate: 0,
        }
    }
}

impl AhAttr {
    /// The path from the GID at `sgid_index` of `port` to `dgid`.
    #[must_use]
    pub fn for_gid(port: u8, sgid_index: u8, dgid: Gid) -> Self {
        Self { port, sgid_index, dgid: Some(dgid), ..Self::default() }
    }

    pub(crate) fn to_sys(self) -> sys::ibv_ah_attr {
        sys::ibv_ah_attr {
            grh: sys::ibv_global_route {
                dgid: self.dgid.unwrap_or_default().to_sys(),
                flow_label: self.flow_label,
                sgid_index: self.sgid_index,
                hop_limit: self.hop_limit,
                traffic_class: self.traffic_class,
            },
            dlid: self.dlid,
            sl: self.sl,
            src_path_bits: self.src_path_bits,
            static_rate: self.static_rate,
            is_global: u8::from(self.dgid.is_some()),
            port_num: self.port,
        }
    }

    pub(crate) fn from_sys(raw: &sys::ibv_ah_attr) -> Self {
        Self {
            port: raw.port_num,
            dgid: (raw.is_global != 0).then(|| Gid::from_sys(&raw.grh.dgid)),
            sgid_index: raw.grh.sgid_index,
            hop_limit: raw.grh.hop_limit,
            traffic_class: raw.grh.traffic_class,
            flow_label: raw.grh.flow_label,
            dlid: raw.dlid,
            sl: raw.sl,
            src_path_bits: raw.src_path_bits,
            static_rate: raw.static_rate,
        }
    }
}

/// An address handle; cheap to clone. Keep it until the sends that use it have completed.
#[derive(Debug, Clone)]
pub struct Ah {
    inner: Arc<AhInner>,
}

#[derive(Debug)]
struct AhInner {
    raw: NonNull<sys::ibv_ah>,
    attr: AhAttr,
    pd: Pd,
}

// SAFETY: an AH is not changed after creation, and verbs may use it from any thread.
unsafe impl Send for AhInner {}
// SAFETY: as above.
unsafe impl Sync for AhInner {}

impl Ah {
    /// Creates the handle of a path.
    ///
    /// # Errors
    /// EINVAL for a port or GID index that does not exist; EHOSTUNREACH or ETIMEDOUT if the
    /// neighbour's link-layer address cannot be resolved.
    ///
    /// # References
    /// ibv_create_ah(3)
    pub fn create(pd: &Pd, attr: &AhAttr) -> Result<Self> {
        let mut raw_attr = attr.to_sys();
        // SAFETY: the PD is alive and held as long as the AH lives.
        let raw = unsafe { sys::ibv_create_ah(pd.raw(), &mut raw_attr) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("ibv_create_ah"))?;
        Ok(Self { inner: Arc::new(AhInner { raw, attr: *attr, pd: pd.clone() }) })
    }

    /// Creates the handle of the path back to the sender of a datagram received on `port`.
    ///
    /// # Errors
    /// EINVAL if the completion is not that of a receive; otherwise as [`Ah::create`].
    ///
    /// # References
    /// ibv_create_ah_from_wc(3)
    pub fn from_completion(pd: &Pd, port: u8, completion: &Completion, grh: Option<&Grh>) -> Result<Self> {
        let verb = "ibv_init_ah_from_wc";
        if !completion.is_receive() {
            return Err(Error::invalid(verb, "this is not the completion of a successful receive"));
        }
        if completion.has_grh && grh.is_none() {
            return Err(Error::invalid(verb, "the datagram had a GRH: pass it (UdRecvBuffer::read_grh)"));
        }
        // SAFETY: plain integers, for which zeroes are valid.
        let mut wc: sys::ibv_wc = unsafe { std::mem::zeroed() };
        wc.src_qp = completion.src_qp;
        wc.slid = completion.slid;
        wc.sl = completion.sl;
        wc.dlid_path_bits = completion.dlid_path_bits;
        wc.pkey_index = completion.pkey_index;
        wc.wc_flags = if completion.has_grh { sys::ibv_wc_flags::IBV_WC_GRH.0 } else { 0 };
        let bytes = grh.map_or([0; crate::GRH_LEN], |grh| grh.0);
        // SAFETY: ibv_grh is 40 bytes of plain integers (size checked by the type of transmute).
        let mut raw_grh: sys::ibv_grh = unsafe { std::mem::transmute(bytes) };
        // SAFETY: plain integers, for which zeroes are valid.
        let mut attr: sys::ibv_ah_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the context is open, the structs are whole and live for the call.
        let returned =
            unsafe { sys::ibv_init_ah_from_wc(pd.context().raw(), port, &mut wc, &mut raw_grh, &mut attr) };
        check(verb, if returned < 0 { nix::errno::Errno::last_raw().max(libc::EINVAL) } else { returned })?;
        Self::create(pd, &AhAttr::from_sys(&attr))
    }

    /// The path.
    #[must_use]
    pub fn attr(&self) -> &AhAttr {
        &self.inner.attr
    }

    /// The PD it is in.
    #[must_use]
    pub fn pd(&self) -> &Pd {
        &self.inner.pd
    }

    /// The verbs object; valid while a clone of this AH lives.
    #[must_use]
    pub fn as_raw(&self) -> *mut c_void {
        self.raw().cast()
    }

    pub(crate) fn raw(&self) -> *mut sys::ibv_ah {
        self.inner.raw.as_ptr()
    }
}

impl Drop for AhInner {
    fn drop(&mut self) {
        // SAFETY: created by ibv_create_ah, freed only here.
        let returned = unsafe { sys::ibv_destroy_ah(self.raw.as_ptr()) };
        crate::log_failed_drop("ibv_destroy_ah", returned);
    }
}
