//! `dat_extension_op`: the operations of the IB extension, counters, and queries of an IA that is
//! not open.
//!
//! # References
//! dat_ib_extensions.h.

use super::abi::AddrHandle;
use super::code::{Code, guard};
use super::convert::immediate;
use super::counters;
use super::handle::Handle;
use super::ia;
use super::objects::EpObject;
use super::post::request;
use super::raw::{In, VaList};
use provider::inside::RequestKind;
use provider::{CloseFlags, LmrTriplet, RmrTriplet, Subtype};
use std::ffi::c_char;

mod op {
    pub(super) const FETCH_AND_ADD: i32 = 0;
    pub(super) const CMP_AND_SWAP: i32 = 1;
    pub(super) const RDMA_WRITE_IMMED: i32 = 2;
    pub(super) const UD_SEND: i32 = 3;
    pub(super) const UD_CM_FREE: i32 = 28;
    pub(super) const UD_AH_FREE: i32 = 29;
    pub(super) const QUERY_COUNTERS: i32 = 4;
    pub(super) const PRINT_COUNTERS: i32 = 5;
    pub(super) const START_COUNTERS: i32 = 26;
    pub(super) const STOP_COUNTERS: i32 = 27;
    pub(super) const OPEN_QUERY: i32 = 0x1000;
    pub(super) const CLOSE_QUERY: i32 = 0x2000;
}

/// `handle` is an EP; for counters an EP, EVD or IA; for OPEN_QUERY the name of an IA; for
/// CLOSE_QUERY the handle that OPEN_QUERY returned.
pub(super) extern "C" fn handle_extendedop(handle: In<c_char>, operation: i32, args: VaList) -> u32 {
    guard("dat_extension_op", || {
        let ep = Handle(handle.address());
        match operation {
            op::FETCH_AND_ADD => {
                ep.get::<EpObject>()?;
                let add = args.next();
                let (iov, cookie, remote) = local_and_remote(args)?;
                let flags = args.next() as u32;
                request(ep, RequestKind::FetchAdd(remote, add), 1, iov, cookie, flags, 5)
            }
            op::CMP_AND_SWAP => {
                ep.get::<EpObject>()?;
                let (compare, swap) = (args.next(), args.next());
                let (iov, cookie, remote) = local_and_remote(args)?;
                let flags = args.next() as u32;
                request(ep, RequestKind::CompareSwap(remote, compare, swap), 1, iov, cookie, flags, 5)
            }
            op::RDMA_WRITE_IMMED => {
                ep.get::<EpObject>()?;
                let count = args.next() as i32;
                let (iov, cookie, remote) = local_and_remote(args)?;
                let data = immediate(args.next() as u32);
                let flags = args.next() as u32;
                request(ep, RequestKind::WriteImmediate(remote, data), count, iov, cookie, flags, 7)
            }
            op::UD_SEND => {
                ep.get::<EpObject>()?;
                let count = args.next() as i32;
                let iov = args.next_in();
                let to = args.next_in::<AddrHandle>().need(4)?;
                let cookie = args.next();
                let flags = args.next() as u32;
                request(ep, RequestKind::SendUd(to.destination()), count, iov, cookie, flags, 6)
            }
            op::UD_CM_FREE => {
                let object = ep.get::<EpObject>()?;
                let cm = args.next();
                object.ep.inner.free_datagram_cm(cm)?;
                object.private_data.lock().unwrap().by_cm.remove(&cm);
                Ok(())
            }
            op::UD_AH_FREE => {
                let object = ep.get::<EpObject>()?;
                let handle = args.next_in::<AddrHandle>().need(2)?;
                Ok(object.ep.inner.free_address_handle(handle.destination().token)?)
            }
            op::QUERY_COUNTERS => {
                let (counter, out) = (args.next() as i32, args.next_out());
                counters::query(ep, counter, out, args.next() as i32 != 0)
            }
            op::PRINT_COUNTERS => {
                let counter = args.next() as i32;
                counters::print(ep, counter, args.next() as i32 != 0)
            }
            op::START_COUNTERS => counters::start(ep, args.next() as i32),
            op::STOP_COUNTERS => counters::stop(ep, args.next() as i32),
            op::OPEN_QUERY => {
                let name = handle.text().ok_or_else(|| Code::null(1))?;
                let out = args.next_out::<Handle>();
                let (ia_mask, ia_attr) = (args.next(), args.next_out());
                let (provider_mask, provider_attr) = (args.next(), args.next_out());
                out.need(2)?;
                let ia = ia::open(&name, 8, ia::AsyncEvents::Elsewhere)?;
                let outcome =
                    ia::query(ia, In::<Handle>::nowhere(), ia_mask, ia_attr, provider_mask, provider_attr);
                if outcome.is_err() {
                    let _ = ia::close(ia, CloseFlags::Abrupt);
                }
                outcome?;
                out.set(ia);
                Ok(())
            }
            op::CLOSE_QUERY => ia::close(ep, CloseFlags::Abrupt),
            _ => {
                ep.kind().ok_or_else(|| Code::handle(Subtype::InvalidHandle1))?;
                tracing::debug!(operation, "this extension operation is not supported");
                Err(Code::not_supported())
            }
        }
    })
}

fn local_and_remote(args: VaList) -> Result<(In<LmrTriplet>, u64, RmrTriplet), Code> {
    let iov = args.next_in();
    let cookie = args.next();
    let remote = args.next_in::<RmrTriplet>().need(5)?;
    Ok((iov, cookie, remote))
}
