//! RMRs.

use super::abi::{RmrParam, two};
use super::code::{Code, guard};
use super::convert::{completion_flags, ia_of, va_type};
use super::handle::Handle;
use super::objects::{EpObject, LmrObject, RmrObject};
use super::raw::{In, Out};
use provider::inside::Target;
use provider::{LmrTriplet, MemPriv, Pz, Rmr, RmrScope};

/// `DAT_RMR_FIELD_ALL`.
const FIELDS: u32 = 0x7f;

fn create(slot: &'static str, pz: Handle, out: Out<Handle>, scope: RmrScope) -> u32 {
    guard(slot, || {
        let zone = pz.get::<Pz>()?;
        out.need(2)?;
        let rmr = Rmr::new(&zone, scope)?;
        let id = rmr.id();
        let handle = pz.sibling_known_as(RmrObject { rmr, pz }, id.0)?;
        out.set(handle);
        Ok(())
    })
}

pub(super) extern "C" fn rmr_create(pz: Handle, out: Out<Handle>) -> u32 {
    create("dat_rmr_create", pz, out, RmrScope::Pz)
}

pub(super) extern "C" fn rmr_create_for_ep(pz: Handle, out: Out<Handle>) -> u32 {
    create("dat_rmr_create_for_ep", pz, out, RmrScope::Ep)
}

pub(super) extern "C" fn rmr_query(rmr: Handle, mask: u32, param: Out<RmrParam>) -> u32 {
    guard("dat_rmr_query", || {
        let object = rmr.get::<RmrObject>()?;
        if mask & !FIELDS != 0 {
            return Err(Code::arg(2));
        }
        param.need(3)?;
        let is = object.rmr.query()?;
        param.set(RmrParam {
            ia_handle: ia_of(rmr),
            pz_handle: object.pz.0,
            lmr_triplet: [is.segment.virtual_address, two(is.segment.segment_length, is.segment.lmr_context)],
            mem_priv: is.privileges.bits(),
            rmr_context: is.rmr_context,
            rmr_scope: is.scope as u32,
            va_type: is.va_type as u32,
        });
        Ok(())
    })
}

pub(super) extern "C" fn rmr_bind(
    rmr: Handle,
    lmr: Handle,
    segment: In<LmrTriplet>,
    privileges: u32,
    va: u32,
    ep: Handle,
    cookie: u64,
    flags: u32,
    context: Out<u32>,
) -> u32 {
    guard("dat_rmr_bind", || {
        let object = rmr.get::<RmrObject>()?;
        let segment = segment.need(3)?;
        // An unbind needs no LMR.
        let lmr = match lmr.given() {
            None if segment.segment_length == 0 => None,
            _ => Some(lmr.get::<LmrObject>()?),
        };
        let ep = ep.get::<EpObject>()?;
        let privileges = MemPriv::from_bits(privileges).ok_or_else(|| Code::arg(4))?;
        let va_type = va_type(va, 5)?;
        let flags = completion_flags(flags, 8)?;
        let to = Target { lmr: lmr.as_ref().map(|lmr| &lmr.lmr.inner), segment, privileges, va_type };
        context.set(object.rmr.inner.bind(&ep.ep.inner, to, cookie, flags)?);
        Ok(())
    })
}

pub(super) extern "C" fn rmr_free(rmr: Handle) -> u32 {
    guard("dat_rmr_free", || {
        let mut outcome = Ok(());
        rmr.end::<RmrObject>(|object| {
            outcome = object.rmr.close();
            Ok(())
        })?;
        Ok(outcome?)
    })
}
