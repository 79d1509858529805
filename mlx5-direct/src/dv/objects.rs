//! Address handles and memory windows of verbs.

use core::mem::zeroed;
use std::sync::atomic::{AtomicIsize, Ordering::Relaxed};

use doorbell_sys::{ibv_ah, ibv_mw, ibv_mw_bind_info, ibv_mw_type};

use super::{DvError, abi, checked, lib_for, require};
use crate::wr::{AddressVector, Bind};

/// Distance from an `ibv_ah` to its address vector, in bytes; 0 until it is known. libmlx5 keeps
/// both in one struct.
static AV_DISTANCE: AtomicIsize = AtomicIsize::new(0);

impl AddressVector {
    /// The path of an address handle. The first call asks `mlx5dv_init_obj`; later calls copy 48
    /// bytes.
    ///
    /// # Errors
    ///
    /// [`DvError`]: no libmlx5, not an mlx5 device.
    ///
    /// # Safety
    ///
    /// `ah` is a live address handle, as the `*mut ibv_ah` of any crate that declares that type.
    pub unsafe fn from_verbs<T>(ah: *mut T) -> Result<Self, DvError> {
        let ah: *mut ibv_ah = require(ah.cast(), "address handle")?;
        let mut distance = AV_DISTANCE.load(Relaxed);
        if distance == 0 {
            // SAFETY: a live handle, which has a live context.
            let lib = unsafe { lib_for((*ah).context) }?;
            // SAFETY: integers and pointers only, for which zero is a value.
            let (mut obj, mut out): (abi::DvObj, abi::DvAh) = unsafe { (zeroed(), zeroed()) };
            obj.ah = abi::DvPair { object: ah.cast(), out: (&raw mut out).cast() };
            // SAFETY: a live handle and structs at least as large as the library's.
            checked("mlx5dv_init_obj(AH)", unsafe { (lib.init_obj)(&mut obj, abi::OBJ_AH) })?;
            distance = (out.av as isize).wrapping_sub(ah as isize);
            AV_DISTANCE.store(distance, Relaxed);
        }
        let av = ah.cast::<u8>().wrapping_offset(distance).cast::<[u64; 6]>();
        // SAFETY: these are the 48 bytes of the handle's address vector. All handles of libmlx5
        // have the same struct, and the vector does not change while the handle lives.
        Ok(Self::from_words(unsafe { av.read_unaligned() }))
    }
}

impl Bind {
    /// The binding of a window with a new remote key, as `ibv_wr_bind_mw` describes it.
    ///
    /// # Safety
    ///
    /// `mw` is a live window and `info` a valid description with a live region or none, as the
    /// `*mut ibv_mw` and `*const ibv_mw_bind_info` of any crate that declares these types.
    pub unsafe fn from_verbs<W, I>(mw: *mut W, new_rkey: u32, info: *const I) -> Self {
        // SAFETY: valid by contract.
        let (mw, info) = unsafe { (&*mw.cast::<ibv_mw>(), &*info.cast::<ibv_mw_bind_info>()) };
        Self {
            rkey: mw.rkey,
            new_rkey,
            type2: mw.type_ == ibv_mw_type::IBV_MW_TYPE_2,
            // SAFETY: null or live by contract.
            lkey: unsafe { info.mr.as_ref() }.map_or(0, |mr| mr.lkey),
            addr: info.addr,
            len: info.length,
            access: info.mw_access_flags,
        }
    }
}
