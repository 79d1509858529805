//! LMRs and PZs.

use super::abi::{LmrCookie, LmrParam, PzParam, Region};
use super::code::{Code, guard};
use super::convert::{self, ia_of};
use super::handle::Handle;
use super::objects::{IaObject, LmrObject};
use super::raw::{In, Memory, Out, register};
use provider::{Lmr, LmrTriplet, MemPriv, Pz};

/// `DAT_MEM_TYPE_VIRTUAL` and `DAT_MEM_TYPE_LMR`.
const VIRTUAL: u32 = 0;
const LMR: u32 = 1;
const SHARED_VIRTUAL: u32 = 2;

pub(super) extern "C" fn lmr_create(
    ia: Handle,
    mem_type: u32,
    region: Region,
    length: u64,
    pz: Handle,
    privileges: u32,
    va_type: u32,
    lmr: Out<Handle>,
    lmr_context: Out<u32>,
    rmr_context: Out<u32>,
    registered_length: Out<u64>,
    registered_address: Out<u64>,
) -> u32 {
    guard("dat_lmr_create", || {
        let object = ia.get::<IaObject>()?;
        let zone = pz.get::<Pz>()?;
        let whole = match mem_type {
            VIRTUAL | SHARED_VIRTUAL => None,
            LMR => {
                let other = Handle(region.first).get::<LmrObject>()?;
                Some((other.lmr.address(), other.lmr.len()))
            }
            _ => return Err(Code::arg(2)),
        };
        lmr.need(8)?;
        let flags = MemPriv::from_bits(privileges).ok_or_else(|| Code::arg(6))?;
        let va_type = convert::va_type(va_type, 7)?;
        let cookie = match mem_type {
            SHARED_VIRTUAL => Some(In::<LmrCookie>::at(region.second).need(3)?),
            _ => None,
        };
        // Registers the whole memory of another LMR, whatever length is given.
        let (start, len) = match whole {
            Some(whole) => whole,
            None => (region.first as u64, usize::try_from(length).map_err(|_| Code::arg(4))?),
        };
        if start == 0 {
            return Err(Code::null(3));
        }
        if start.checked_add(len as u64).is_none() {
            return Err(Code::arg(4));
        }
        let how = if cookie.is_some() { Memory::Shared } else { Memory::Private };
        let made = register(&object.ia, &zone, (start, len), flags, va_type, how)?;
        let (context, for_peers) = (made.context(), context_for_peers(&made));
        let (len, address) = (made.len() as u64, made.address());
        // The query returns a copy of the cookie, because the program may have freed its own.
        let cookie = cookie.map(Box::new);
        let second = cookie.as_ref().map_or(region.second, |cookie| cookie.as_ptr() as usize);
        let region = Region { second, ..region };
        lmr.set(ia.sibling(LmrObject { lmr: made, pz, mem_type, region, _cookie: cookie, privileges })?);
        lmr_context.set(context);
        rmr_context.set(for_peers);
        registered_length.set(len);
        registered_address.set(address);
        Ok(())
    })
}

/// Without a remote privilege there is no RMR context.
fn context_for_peers(lmr: &Lmr) -> u32 {
    let remote = MemPriv::REMOTE_READ | MemPriv::REMOTE_WRITE | MemPriv::REMOTE_ATOMIC;
    if lmr.privileges().intersects(remote) { lmr.rmr_context() } else { 0 }
}

pub(super) extern "C" fn lmr_query(lmr: Handle, mask: u32, param: Out<LmrParam>) -> u32 {
    guard("dat_lmr_query", || {
        let object = lmr.get::<LmrObject>()?;
        if mask & !0x7ff != 0 {
            return Err(Code::arg(2));
        }
        param.need(3)?;
        param.set(LmrParam {
            ia_handle: ia_of(lmr),
            mem_type: object.mem_type,
            pad: 0,
            region: object.region,
            length: object.lmr.len() as u64,
            pz_handle: object.pz.0,
            mem_priv: object.privileges,
            va_type: object.lmr.va_type() as u32,
            lmr_context: object.lmr.context(),
            rmr_context: context_for_peers(&object.lmr),
            registered_size: object.lmr.len() as u64,
            registered_address: object.lmr.address(),
        });
        Ok(())
    })
}

pub(super) extern "C" fn lmr_free(lmr: Handle) -> u32 {
    guard("dat_lmr_free", || {
        lmr.end::<LmrObject>(|object| match object.lmr.close() {
            Ok(()) => Ok(()),
            Err(refused) => Err((LmrObject { lmr: refused.object, ..object }, refused.error.into())),
        })
    })
}

/// `dat_lmr_sync_rdma_read` and `_write`: they have no effect, because memory is coherent (R272).
pub(super) extern "C" fn lmr_sync(ia: Handle, segments: In<LmrTriplet>, count: u64) -> u32 {
    guard("dat_lmr_sync", || {
        let object = ia.get::<IaObject>()?;
        for n in 0..count {
            object.ia.sync_rdma_read(&[segments.nth(n, 2)?])?;
        }
        Ok(())
    })
}

pub(super) extern "C" fn pz_create(ia: Handle, out: Out<Handle>) -> u32 {
    guard("dat_pz_create", || {
        let object = ia.get::<IaObject>()?;
        out.need(2)?;
        out.set(ia.sibling(Pz::new(&object.ia)?)?);
        Ok(())
    })
}

pub(super) extern "C" fn pz_query(pz: Handle, mask: u32, param: Out<PzParam>) -> u32 {
    guard("dat_pz_query", || {
        pz.get::<Pz>()?;
        if mask & !1 != 0 {
            return Err(Code::arg(2));
        }
        param.need(3)?;
        param.set(PzParam { ia_handle: ia_of(pz) });
        Ok(())
    })
}

pub(super) extern "C" fn pz_free(pz: Handle) -> u32 {
    guard("dat_pz_free", || {
        pz.end::<Pz>(|zone| zone.close().map_err(|refused| (refused.object, refused.error.into())))
    })
}
