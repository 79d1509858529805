//! The entry points of SRQs, except posting.

use super::abi::{SrqAttr, SrqParam};
use super::code::{Code, guard};
use super::convert::{count, ia_of, to_count};
use super::handle::Handle;
use super::objects::{IaObject, SrqObject};
use super::raw::{In, Out};
use super::slots::Hot;
use provider::{Pz, Srq};

pub(super) extern "C" fn srq_create(ia: Handle, pz: Handle, attr: In<SrqAttr>, out: Out<Handle>) -> u32 {
    guard("dat_srq_create", || {
        let object = ia.get::<IaObject>()?;
        let zone = pz.get::<Pz>()?;
        let attr = attr.need(3)?;
        out.need(4)?;
        let (depth, segments) = (count(attr.max_recv_dtos, 3)?, count(attr.max_recv_iov, 3)?);
        // The low watermark is DAT_SRQ_LW_DEFAULT at creation (R12).
        if attr.low_watermark != 0 {
            return Err(Code::arg(3));
        }
        let srq = Srq::builder(&object.ia, &zone).depth(depth).segments(segments).build()?;
        let handle = ia.sibling(SrqObject { srq: srq.inner.clone(), pz })?;
        srq.set_context(handle.0 as u64);
        handle.put_hot(Hot::Srq(srq));
        out.set(handle);
        Ok(())
    })
}

pub(super) extern "C" fn srq_free(srq: Handle) -> u32 {
    guard("dat_srq_free", || {
        srq.end::<SrqObject>(|object| {
            // Decided first, so that posts of other threads do not see a stale handle if the free
            // is refused.
            if let Err(error) = object.srq.shut() {
                return Err((object, error.into()));
            }
            drop(srq.take_srq());
            Ok(())
        })
    })
}

pub(super) extern "C" fn srq_query(srq: Handle, mask: u32, param: Out<SrqParam>) -> u32 {
    guard("dat_srq_query", || {
        let object = srq.get::<SrqObject>()?;
        if mask & !0xff != 0 {
            return Err(Code::arg(2));
        }
        param.need(3)?;
        let is = srq.srq()?.query()?;
        param.set(SrqParam {
            ia_handle: ia_of(srq),
            srq_state: is.state as u32,
            pad: 0,
            pz_handle: object.pz.0,
            max_recv_dtos: to_count(is.depth),
            max_recv_iov: to_count(is.segments),
            low_watermark: to_count(is.low_watermark),
            available_dto_count: to_count(is.available),
            outstanding_dto_count: to_count(is.outstanding),
            pad_end: 0,
        });
        Ok(())
    })
}

pub(super) extern "C" fn srq_resize(srq: Handle, depth: i32) -> u32 {
    guard("dat_srq_resize", || {
        let _object = srq.get::<SrqObject>()?;
        Ok(srq.srq()?.resize(count(depth, 2)?)?)
    })
}

pub(super) extern "C" fn srq_set_lw(srq: Handle, low_watermark: i32) -> u32 {
    guard("dat_srq_set_lw", || {
        // An agent may run in this call. It may not free the SRQ or close the IA meanwhile.
        let _object = srq.get::<SrqObject>()?;
        Ok(srq.srq()?.set_low_watermark(count(low_watermark, 2)?)?)
    })
}
